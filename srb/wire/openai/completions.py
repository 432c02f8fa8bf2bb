"""`POST /v1/completions`: parses bodies, and builds OpenAI's object or chunks from the engine's events.

The list of models is here, too, as OpenAI, TabbyAPI and text-generation-webui have it.
"""

import codecs
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar

from srb.engine.events import (
    DoneEvent,
    ErrorEvent,
    Event,
    FinishReason,
    ProgressEvent,
    PromptLogprobsEvent,
    StartEvent,
    StopEvent,
    StopReason,
    StreamEvent,
    Timings,
    Token,
    Usage,
)
from srb.errors import NotFoundError, SrbError
from srb.wire.context import JsonAnswer, RequestContext
from srb.wire.native.reply import usage_json
from srb.wire.reply import Reply, RunningTimings, logprob_of, prompt_progress
from srb.wire.request.body import Parsed, parse


def parse_completion(body: bytes, context: RequestContext, *, openai: bool = False) -> Reply:
    """Continue a prompt, in n alternatives: native events, OpenAI's chunks, or OpenAI's object.

    With `openai`, a body that names no format gets OpenAI's.
    """
    if openai:
        context = replace(context, limits=replace(context.limits, openai=True))
    return parse_as(body, context, chat=False, builder_of=lambda _parsed: Completion)


def parse_as(body: bytes, context: RequestContext, *, chat: bool, builder_of: Callable[[Parsed], Any]) -> Reply:
    """Parses the body of a completion or a chat. builder_of: the class, or a partial of it, that builds responses."""
    parsed = parse(
        body,
        context.limits,
        context.engine.tokenize,
        context.vocabulary.template,
        chat=chat,
        path_to=context.path_to,
        texts_of=context.texts_of,
        take=context.take,
    )
    completion = context.original or parsed.completion
    make = partial(
        builder_of(parsed),
        completion.id,
        model=context.limits.model,
        created=int(context.now),
        fingerprint=context.fingerprint,
        per_prompt=len(completion.branches),
        n=parsed.n,
        shown=Shown(
            logprobs=parsed.logprobs,
            prompts=completion.token_ids if parsed.token_ids else None,
            echo=completion.echo,
            usage=parsed.usage,
            times=parsed.times,
        ),
    )
    reply = Reply.of(parsed, parsed.format != "object", None if parsed.format == "events" else make)
    return replace(reply, completion=completion)


@dataclass
class _Choice:
    """One alternative, as far as its events have come."""

    text: str = ""
    tokens: list[Token] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    n_echoed: int = 0  # how many of the prompt's ids are still to come
    finish_reason: FinishReason | None = None
    stop_reason: StopReason = None
    mean_logprob: float = 0.0
    rank: int = 0
    prompt: list[dict[str, Any] | None] = field(default_factory=list)
    error: SrbError | None = None

    def add(self, event: StreamEvent) -> None:
        if event.token:
            self.tokens.append(event.token)
        echoed = event.tokens[: self.n_echoed]
        self.n_echoed -= len(echoed)
        self.token_ids += event.tokens[len(echoed) :]
        if event.text:
            self.place(event.text)

    def place(self, text: str) -> None:
        """Add the text that the tokens without offset have waited for, and find where in it they begin."""
        place, decoder = 0, codecs.getincrementaldecoder("utf-8")("replace")
        for token in self.tokens[len(self.offsets) :]:
            self.offsets.append(len(self.text) + place)
            piece = decoder.decode(token.piece)
            if text.startswith(piece, place) or piece.startswith(text[place:]):  # else it is special, and has no text
                place = min(place + len(piece), len(text))
        self.text += text

    def drop_textless(self) -> None:
        """Drops the tokens at the end that add no text."""
        while self.tokens and self.offsets[-1] == len(self.text):
            self.tokens.pop()
            self.offsets.pop()


@dataclass(frozen=True)
class Shown:
    """What a response shows besides the texts.

    Attributes:
        logprobs: Whether log-probabilities are shown.
        prompts: The token ids of each prompt, which are shown with those of the alternatives. None: no ids are shown.
        echo: Whether the events of each alternative begin with the prompt's tokens.
        usage: Whether a stream shows the usage.
        times: Whether each chunk has `timings`.
    """

    logprobs: bool = False
    prompts: tuple[tuple[int, ...], ...] | None = None
    echo: bool = False
    usage: bool = True
    times: bool = False


class Completion:
    """Builds the response of a completion from its events.

    Of each prompt, `per_prompt` alternatives run, and n of them are returned.
    """

    kind: ClassVar[str] = "text_completion"
    chunk_kind: ClassVar[str] = "text_completion"

    def __init__(
        self,
        request_id: str,
        *,
        model: str,
        created: int,
        fingerprint: str,
        per_prompt: int,
        n: int,
        shown: Shown,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._head = {"id": request_id, "created": created, "model": model, "system_fingerprint": fingerprint}
        self._per_prompt = per_prompt
        self._n = n
        self._shown = shown
        self._clock = clock
        self._times = RunningTimings(clock) if shown.times else None
        self._started = 0.0
        self._prompt_tokens = 0
        self._choices: dict[int, _Choice] = {}
        self._told: set[int] = set()  # the choices that the prompt's ids were shown with

    def object(self, events: Iterable[Event]) -> dict[str, Any]:
        """The object of a finished request, with the n of `per_prompt` alternatives of the best mean log-probability.

        Raises `SrbError` if the request or all of its alternatives failed.
        """
        usage: dict[str, Any] = {}
        timings: dict[str, Any] = {}
        error: SrbError | None = None
        for event in events:
            match event:
                case StreamEvent():
                    self._choice(event.index).add(event)
                case PromptLogprobsEvent():
                    tokens = [*map(_prompt_token, event.tokens)]
                    for index in event.indices:
                        self._choice(index).prompt += tokens
                case StopEvent():
                    self._end(event)
                case ErrorEvent(index=None):
                    raise event.error
                case ErrorEvent(index=int(index)):
                    error = self._choice(index).error = event.error
                case DoneEvent():
                    usage = _usage(event.usage)
                    timings = self.timings(event.timings, event.usage.prompt_tokens)
        if error and all(choice.finish_reason == "error" for choice in self._choices.values()):
            raise error
        choices = [
            self._choice_object(k, self.whole(k, choice.text, choice.finish_reason), choice)
            for k, choice in enumerate(self._returned())
        ]
        prompt = self._prompt(next((choice.prompt for choice in self._returned()), []))
        head = self._head | {"object": self.kind, "choices": choices, "usage": usage} | timings | prompt
        return head | ({} if self.prompt_in_choices else self._prompt_ids(0))

    def _prompt_ids(self, index: int) -> dict[str, Any]:
        """The token ids of a choice's prompt, once. Each placeholder of an image or a sound is -1."""
        if self._shown.prompts is None or index in self._told:
            return {}
        self._told.add(index)
        return {"prompt_token_ids": [max(token, -1) for token in self._shown.prompts[index // self._n]]}

    def _prompt(self, tokens: list[dict[str, Any] | None]) -> dict[str, Any]:
        """The log-probabilities of the prompt, for the response."""
        return {"prompt_logprobs": tokens} if tokens and not self.prompt_in_choices else {}

    def _returned(self) -> list[_Choice]:
        """The alternatives to return, in the order of their prompts; those of a bridge in the order of their ranks."""
        in_order = [self._choices[index] for index in sorted(self._choices)]
        has_ranks = any(choice.rank for choice in in_order)
        if self._n == self._per_prompt and not has_ranks:
            return in_order
        result = []
        for start in range(0, len(in_order), self._per_prompt):
            ran = in_order[start : start + self._per_prompt]
            ran.sort(key=lambda choice: (not choice.rank, choice.rank) if has_ranks else (False, -choice.mean_logprob))
            result += sorted(ran, key=lambda choice: choice.finish_reason == "error")[: self._n]
        return result

    def chunks(self, events: Iterable[Event]) -> Iterator[dict[str, Any] | str]:
        """The chunks of the next events of a stream. After the last chunk comes `[DONE]`."""
        for event in events:
            match event:
                case StartEvent():
                    self._started, self._prompt_tokens = self._clock(), event.prompt_tokens
                    if self._times:
                        self._times.begin(event)
                    for index in range(event.count) if self.first else ():
                        yield self._chunk(index, self.first, _Choice())
                case ProgressEvent():
                    progress = prompt_progress(event, self._clock() - self._started)
                    yield self._chunk(0, self.end(0, None), _Choice()) | {"prompt_progress": progress}
                case PromptLogprobsEvent():
                    tokens = [*map(_prompt_token, event.tokens)]
                    for index in event.indices if self.prompt_in_choices else event.indices[:1]:
                        chunk = self._chunk(index, self.end(index, None), _Choice(prompt=tokens))
                        yield chunk | self._prompt(tokens)
                case StreamEvent():
                    self._choice(event.index).add(event)
                    times = {"timings": self._times.after(event)} if self._times else {}
                    yield from (
                        chunk | times for chunk in self._with_tokens(event.index, self.parts(event.index, event.text))
                    )
                case StopEvent():
                    yield from self._with_tokens(event.index, self.rest(event.index))
                    chunk = self._chunk(event.index, self.end(event.index, event.finish_reason), self._end(event))
                    yield chunk | self.timings(event.timings, self._prompt_tokens)
                case ErrorEvent(index=None):
                    yield {"error": event.error.body()}
                case ErrorEvent(index=int(index)):  # sent with the last chunk: clients end a stream at a bare error
                    self._choice(index).error = event.error
                case DoneEvent():
                    if self._shown.usage:
                        chunk = {"object": self.chunk_kind, "choices": [], "usage": _usage(event.usage)}
                        yield self._head | chunk | self.timings(event.timings, event.usage.prompt_tokens)
                    yield "[DONE]"

    def _with_tokens(self, index: int, contents: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """A chunk for each of these contents. The first one has all tokens since the chunk before."""
        choice = self._choice(index)
        for content in contents:
            yield self._chunk(index, content, choice)
            choice.tokens, choice.offsets, choice.token_ids = [], [], []

    def _end(self, event: StopEvent) -> _Choice:
        choice = self._choice(event.index)
        choice.finish_reason = event.finish_reason
        # As in vLLM, where it isn't the reason of an abort.
        choice.stop_reason = event.stop_reason if event.finish_reason == "stop" else None
        choice.mean_logprob = event.mean_logprob or 0.0
        choice.rank = event.rank or 0
        choice.place("")
        if event.stop_reason is not None or not self.shows_end:  # a stop string's tokens aren't shown
            choice.drop_textless()
        return choice

    def _choice(self, index: int) -> _Choice:
        if index not in self._choices:
            shown = self._shown
            echoed = shown.prompts[index // self._per_prompt] if shown.prompts and shown.echo else ()
            self._choices[index] = _Choice(n_echoed=len(echoed))
        return self._choices[index]

    def _chunk(self, index: int, content: dict[str, Any], choice: _Choice) -> dict[str, Any]:
        usage = {"usage": None} if self._shown.usage else {}
        choices = [self._choice_object(index, content, choice)]
        prompt = {} if self.prompt_in_choices else self._prompt_ids(0)
        return self._head | {"object": self.chunk_kind, "choices": choices} | usage | prompt

    def _choice_object(self, index: int, content: dict[str, Any], choice: _Choice) -> dict[str, Any]:
        return {
            "index": index,
            **content,
            "logprobs": self.logprobs(choice.tokens, choice.offsets) if self._shown.logprobs else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            **({"prompt_logprobs": choice.prompt} if choice.prompt and self.prompt_in_choices else {}),
            **({} if self._shown.prompts is None else {"token_ids": choice.token_ids}),
            **(self._prompt_ids(index) if self.prompt_in_choices else {}),
            **({"error": choice.error.body()} if choice.error else {}),
        } | content

    # Chat completions override these.

    prompt_in_choices: ClassVar[bool] = True
    """Whether each choice has the log-probabilities and token ids of its prompt, and not the response."""

    shows_end: ClassVar[bool] = True
    """Whether the probabilities include that of the end token, which has no text."""

    first: ClassVar[dict[str, Any]] = {}
    """The content of each choice's first chunk, before its text. Empty: there is no such chunk."""

    def whole(self, index: int, text: str, finish_reason: FinishReason | None) -> dict[str, Any]:
        """The fields for an alternative's whole text, in the object."""
        return {"text": text}

    def parts(self, index: int, text: str) -> list[dict[str, Any]]:
        """The contents of the chunks for the next piece of an alternative's text."""
        return [{"text": text}] if text else []

    def rest(self, index: int) -> list[dict[str, Any]]:
        """The contents of the chunks for the text that `parts` has buffered, when no more text comes."""
        return []

    def end(self, index: int, finish_reason: FinishReason | None) -> dict[str, Any]:
        """The content of a chunk that has no text."""
        return {"text": ""}

    def timings(self, timings: Timings | None, n_prompt: int) -> dict[str, Any]:
        """`timings` of an alternative or the request, with a prompt of n_prompt tokens. A completion has none."""
        return {}

    def logprobs(self, tokens: list[Token], offsets: list[int]) -> dict[str, Any]:
        """The probabilities of tokens that begin at these offsets in the text, in characters."""
        return {
            "tokens": [text_of(token) for token in tokens],
            "token_logprobs": [logprob_of(token) for token in tokens],
            "top_logprobs": [
                None
                if token.logprob is None
                else {text_of(each): logprob_of(each) for each in (*token.top_logprobs, token)}
                for token in tokens
            ],
            "text_offset": offsets,
            "content": content_of(tokens),  # as in llama-server, for lm-eval's `gguf`
        }


def text_of(token: Token) -> str:
    """A token's text. Bytes that aren't text are written as OpenAI does, as in `bytes:\\xe2\\x80`."""
    try:
        return token.piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.piece)


def content_of(tokens: list[Token]) -> list[dict[str, Any]]:
    """The JSON of tokens, each with the top tokens at its position."""
    return [_token(token) | {"top_logprobs": [_token(each) for each in token.top_logprobs]} for token in tokens]


def _token(token: Token) -> dict[str, Any]:
    return {"id": token.id, "token": text_of(token), "logprob": logprob_of(token), "bytes": list(token.piece)}


def _prompt_token(token: Token) -> dict[str, Any] | None:
    """A token of a prompt, then the top tokens at its place, by their ids, as in vLLM. The first token has nothing."""
    if token.logprob is None:
        return None
    top = ((each, rank) for rank, each in enumerate(token.top_logprobs, 1) if each.id != token.id)
    return {
        str(each.id): {"logprob": logprob_of(each), "rank": rank, "decoded_token": each.piece.decode(errors="replace")}
        for each, rank in ((token, token.rank), *top)
    }


def _usage(usage: Usage) -> dict[str, Any]:
    value: dict[str, Any] = {**usage_json(usage)}
    value["prompt_tokens_details"] = {"cached_tokens": value.pop("cached_tokens")}
    return value


def models(_body: bytes, context: RequestContext) -> JsonAnswer:
    """List the server's one model."""
    return {"object": "list", "data": [_model(context)]}, []


def one_model(_body: bytes, context: RequestContext) -> JsonAnswer:
    """Show the model of this name."""
    model, name = _model(context), context.path_params["id"]
    if model["id"] not in (name, name.removesuffix("/")):
        raise NotFoundError(f"there is no model {name}; there is {model['id']}", param="model", code="model_not_found")
    return model, []


def model_card(_body: bytes, context: RequestContext) -> JsonAnswer:
    """Show the model with the size of its context, as in TabbyAPI."""
    return _model(context) | {"parameters": {"max_seq_len": context.engine.model.n_cells}}, []


def model_info(_body: bytes, context: RequestContext) -> JsonAnswer:
    """Show the model's name, as in text-generation-webui.

    SillyTavern asks for it before it counts tokens.
    """
    return {"model_name": context.limits.model, "lora_names": [], "loader": "llama.cpp"}, []


def _model(context: RequestContext) -> dict[str, Any]:
    model = context.engine.model
    capabilities = ["completion", "multimodal"] if model.media_kinds else ["completion"]
    known = {"id": context.limits.model, "object": "model", "created": int(context.created), "owned_by": "llamacpp"}
    # Agents read the context's size: vLLM's name, and llama-server's.
    sizes = {"max_model_len": model.n_cells, "meta": {"n_ctx": model.n_cells, "n_vocab": model.tokenizer.n_vocab}}
    created_at = datetime.fromtimestamp(int(context.created), UTC).isoformat().replace("+00:00", "Z")
    of_anthropic = {"type": "model", "display_name": context.limits.model, "created_at": created_at}
    return known | {"capabilities": capabilities} | sizes | of_anthropic
