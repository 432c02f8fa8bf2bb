"""`POST /v1/completions`: parses bodies, and builds OpenAI's object or chunks from the engine's events.

The list of models is here, too, as OpenAI, TabbyAPI and text-generation-webui have it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar

from srb.engine.events import (
    DoneEvent,
    ErrorEvent,
    Event,
    ProgressEvent,
    PromptLogprobsEvent,
    StartEvent,
    StopEvent,
    StreamEvent,
    Timings,
    Token,
    Usage,
)
from srb.errors import InvalidRequestError, NotFoundError
from srb.wire.answer import Alternative, Answer, Change, Response, Tokens
from srb.wire.context import RequestContext
from srb.wire.native.reply import usage_json
from srb.wire.reply import Reply, logprob_of, prompt_progress
from srb.wire.reply import timings as timings_json
from srb.wire.request.body import parse
from srb.wire.request.fields import CompletionFields


def parse_completion(fields: CompletionFields, context: RequestContext, *, openai: bool = False) -> Reply:
    """Continue a prompt, in n alternatives: native events, OpenAI's chunks, or OpenAI's object.

    With `openai`, a body that names no format gets OpenAI's.
    """
    return parse_as(Completion, fields, context, openai=openai)


def parse_as(kind: type["Completion"], fields: CompletionFields, context: RequestContext, **how: bool) -> Reply:
    """Makes the reply to a completion or a chat. how: for `parse`."""
    parsed = parse(fields, context.limits, **how)
    completion = context.original or parsed.completion
    if fields.return_tokens and completion.heal and completion.echo and parsed.format != "events":
        raise InvalidRequestError(
            "return_token_ids with echo and heal is for native events: heal takes the prompt's last token back; leave "
            "echo or heal out",
            param="heal",
        )
    head = {"id": completion.id, "created": int(context.now), "model": context.limits.model}
    form = kind(
        head=head | {"system_fingerprint": context.fingerprint},
        per_prompt=len(completion.branches),
        n=parsed.n,
        has_logprobs=parsed.logprobs,
        prompts=completion.token_ids if fields.return_tokens else None,
        echo=completion.echo,
        has_usage=parsed.format == "object" or bool((fields.stream_options or {}).get("include_usage")),
        has_times=bool(fields.timings_per_token),
    )
    make = partial(Response, form, completion.id, parsed.reader)
    reply = Reply.of(parsed, None if parsed.format == "events" else make)
    return replace(reply, completion=completion)


NO_TOKENS = Tokens()


@dataclass(frozen=True, kw_only=True)
class Completion:
    """OpenAI's object and chunks. Of each prompt, `per_prompt` alternatives run, and n of them are returned.

    Attributes:
        head: The fields that the object and each chunk begin with.
        has_logprobs: Whether log-probabilities are shown.
        prompts: The token ids of each prompt, which are shown with those of the alternatives. None: no ids are shown.
        echo: Whether the events of each alternative begin with the prompt's tokens.
        has_usage: Whether a stream shows the usage.
        has_times: Whether each chunk has `timings`.
        shows_end: Whether the probabilities include that of the end token, which has no text.
    """

    kind: ClassVar[str] = "text_completion"
    chunk_kind: ClassVar[str] = "text_completion"

    head: dict[str, Any]
    per_prompt: int
    n: int
    has_logprobs: bool = False
    prompts: tuple[tuple[int, ...], ...] | None = None
    echo: bool = False
    has_usage: bool = True
    has_times: bool = False
    shows_end: bool = True

    def body(self, answer: Answer) -> dict[str, Any]:
        """The object, with the n of `per_prompt` alternatives of the best mean log-probability."""
        assert answer.done
        usage, first = answer.done.usage, self._returned(answer)[0].index
        head = self.head | {"object": self.kind, "choices": self.choices(answer), "usage": _usage(usage)}
        head |= self.timings(answer.done.timings, usage.prompt_tokens)
        return head | ({} if self.prompt_in_choices else _prompts(answer).get(first, {}) | self._prompt_ids(answer[0]))

    def choices(self, answer: Answer) -> list[dict[str, Any]]:
        """The `choices` of the object."""
        prompts = _prompts(answer) if self.prompt_in_choices else {}
        choices = []
        for k, each in enumerate(self._returned(answer)):
            tokens = self._shown(each.tokens, each)
            choices.append(self._choice(k, each, self.message(each), tokens, each.stop, prompts.get(each.index)))
        return choices

    def _returned(self, answer: Answer) -> list[Alternative]:
        """The alternatives to return, in the order of their prompts; those of a bridge in the order of their ranks."""
        stops = [each.stop for each in answer.ordered if each.stop]
        has_ranks = any(stop.rank for stop in stops)
        if self.n < self.per_prompt or has_ranks:
            ran = (stops[start : start + self.per_prompt] for start in range(0, len(stops), self.per_prompt))
            stops = [stop for each in ran for stop in sorted(each, key=_place)[: self.n]]
        return [answer[stop.index] for stop in stops]

    def chunk(self, answer: Answer, event: Event, changes: list[Change]) -> Iterator[dict[str, Any] | str]:
        """The chunks for an event. After the last chunk comes `[DONE]`."""
        match event:
            case StreamEvent(index=index):
                chunks = self._contents(answer[index], changes)
                if self.has_times:
                    times = timings_json(answer.running_timings(index), answer.prompt_tokens)
                    chunks = (chunk | {"timings": times} for chunk in chunks)
                yield from chunks
            case StopEvent():
                alternative = answer[event.index]
                yield from self._contents(alternative, changes)
                tokens = self._shown(alternative.drain(), alternative)
                chunk = self._chunk(alternative, self.nothing | finish(alternative), tokens, event)
                yield chunk | self.timings(event.timings, answer.prompt_tokens)
            case StartEvent():
                for index in range(event.count) if self.first else ():
                    yield self._chunk(answer[index], self.first)
            case ProgressEvent():
                progress = prompt_progress(event, answer.now - answer.started)
                yield self._chunk(answer[0], self.nothing) | {"prompt_progress": progress}
            case PromptLogprobsEvent():
                shown = _prompt(event.tokens)
                for index in event.indices if self.prompt_in_choices else event.indices[:1]:
                    chunk = self._chunk(answer[index], self.nothing, prompt=shown if self.prompt_in_choices else None)
                    yield chunk | ({} if self.prompt_in_choices else shown)
            case ErrorEvent(index=None):  # others are sent with the last chunk: clients end a stream at a bare error
                yield {"error": event.error.body()}
            case DoneEvent():
                if self.has_usage:
                    chunk = {"object": self.chunk_kind, "choices": [], "usage": _usage(event.usage)}
                    yield self.head | chunk | self.timings(event.timings, event.usage.prompt_tokens)
                yield "[DONE]"

    def _contents(self, alternative: Alternative, changes: list[Change]) -> Iterator[dict[str, Any]]:
        """A chunk for each change that has a content. The first one has all tokens since the chunk before."""
        for change in changes:
            if content := self.content(change):
                yield self._chunk(alternative, content, alternative.drain())

    def _chunk(self, alternative: Alternative, content: dict[str, Any], *shown: Any, **more: Any) -> dict[str, Any]:
        choices = [self._choice(alternative.index, alternative, content, *shown, **more)]
        usage = {"usage": None} if self.has_usage else {}
        prompt = {} if self.prompt_in_choices or alternative.index else self._prompt_ids(alternative)
        return self.head | {"object": self.chunk_kind, "choices": choices} | usage | prompt

    def _choice(
        self,
        index: int,
        alternative: Alternative,
        content: dict[str, Any],
        tokens: Tokens = NO_TOKENS,
        stop: StopEvent | None = None,
        prompt: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        return {
            "index": index,
            **content,
            "logprobs": self.logprobs(tokens) if self.has_logprobs else None,
            "finish_reason": stop.finish_reason if stop else None,
            # As in vLLM, where it isn't the reason of an abort.
            "stop_reason": stop.stop_reason if stop and stop.finish_reason == "stop" else None,
            **(prompt or {}),
            **({} if self.prompts is None else {"token_ids": self._ids(tokens, alternative)}),
            **(self._prompt_ids(alternative) if self.prompt_in_choices else {}),
            **({"error": alternative.error.body()} if alternative.error else {}),
        } | content

    def _prompt_of(self, alternative: Alternative) -> tuple[int, ...]:
        return self.prompts[alternative.index // self.per_prompt] if self.prompts else ()

    def _prompt_ids(self, alternative: Alternative) -> dict[str, Any]:
        """The token ids of an alternative's prompt, once. Each placeholder of an image or a sound is -1."""
        if self.prompts is None or alternative.prompt_is_told:
            return {}
        alternative.prompt_is_told = True
        return {"prompt_token_ids": [max(token, -1) for token in self._prompt_of(alternative)]}

    def _ids(self, tokens: Tokens, alternative: Alternative) -> list[int]:
        """The ids of these last tokens of an alternative, without those of an echo."""
        n_echoed = len(self._prompt_of(alternative)) if self.echo else 0
        return tokens.ids[max(0, n_echoed + len(tokens.ids) - alternative.n_ids) :]

    def _shown(self, tokens: Tokens, alternative: Alternative) -> Tokens:
        """These last tokens of an alternative that has ended. Those of a stop string aren't shown."""
        stop = alternative.stop
        is_whole = self.shows_end and (not stop or stop.stop_reason is None)
        return tokens if is_whole else tokens.with_text(alternative.text)

    # Chat completions override these.

    prompt_in_choices: ClassVar[bool] = True
    """Whether each choice has the log-probabilities and token ids of its prompt, and not the response."""

    first: ClassVar[dict[str, Any]] = {}
    """The content of each choice's first chunk, before its text. Empty: there is no such chunk."""

    nothing: ClassVar[dict[str, Any]] = {"text": ""}
    """The content of a chunk that has no text."""

    def message(self, alternative: Alternative) -> dict[str, Any]:
        """The content of a whole alternative."""
        return {"text": alternative.text}

    def content(self, change: Change) -> dict[str, Any]:
        """The content of a chunk. Empty: there is no chunk for this change."""
        return {"text": change.text} if change.text else {}

    def timings(self, timings: Timings | None, n_prompt: int) -> dict[str, Any]:
        """`timings` of an alternative or the request, with a prompt of n_prompt tokens. A completion has none."""
        return {}

    def logprobs(self, tokens: Tokens) -> dict[str, Any]:
        """The probabilities of tokens."""
        reported = tokens.reported
        return {
            "tokens": [text_of(token) for token in reported],
            "token_logprobs": [logprob_of(token) for token in reported],
            "top_logprobs": [
                None
                if token.logprob is None
                else {text_of(each): logprob_of(each) for each in (*token.top_logprobs, token)}
                for token in reported
            ],
            "text_offset": tokens.offsets,
            "content": content_of(reported),  # as in llama-server, for lm-eval's `gguf`
        }


def finish(alternative: Alternative) -> dict[str, Any]:
    """The finish reason `tool_calls`, if the answer ends with complete calls; else nothing."""
    return {"finish_reason": "tool_calls"} if alternative.ends_with_calls else {}


def _place(stop: StopEvent) -> tuple[bool, bool, float]:
    """Sorts alternatives: failed ones last; those of a bridge by their ranks, others by their mean log-probability."""
    return stop.finish_reason == "error", not stop.rank, stop.rank or -(stop.mean_logprob or 0.0)


def text_of(token: Token) -> str:
    """A token's text. Bytes that aren't text are written as OpenAI does, as in `bytes:\\xe2\\x80`."""
    try:
        return token.piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.piece)


def content_of(tokens: Iterable[Token]) -> list[dict[str, Any]]:
    """The JSON of tokens, each with the top tokens at its position."""
    return [_token(token) | {"top_logprobs": [_token(each) for each in token.top_logprobs]} for token in tokens]


def _token(token: Token) -> dict[str, Any]:
    return {"id": token.id, "token": text_of(token), "logprob": logprob_of(token), "bytes": list(token.piece)}


def _prompts(answer: Answer) -> dict[int, dict[str, Any]]:
    """The log-probabilities of each alternative's prompt. Those of the same prompt share one list."""
    shown = [(indices, _prompt(tokens)) for indices, tokens in answer.prompts.items()]
    return {index: prompt for indices, prompt in shown for index in indices}


def _prompt(tokens: Iterable[Token]) -> dict[str, Any]:
    """The log-probabilities of a prompt."""
    return {"prompt_logprobs": [*map(_prompt_token, tokens)]}


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


def models(_fields: None, context: RequestContext) -> dict[str, Any]:
    """List the server's one model."""
    return {"object": "list", "data": [_model(context)]}


def one_model(_fields: None, context: RequestContext) -> dict[str, Any]:
    """Show the model of this name."""
    model, name = _model(context), context.path_params["id"]
    if model["id"] not in (name, name.removesuffix("/")):
        raise NotFoundError(f"there is no model {name}; there is {model['id']}", param="model", code="model_not_found")
    return model


def model_card(_fields: None, context: RequestContext) -> dict[str, Any]:
    """Show the model with the size of its context, as in TabbyAPI."""
    return _model(context) | {"parameters": {"max_seq_len": context.engine.model.n_cells}}


def model_info(_fields: None, context: RequestContext) -> dict[str, Any]:
    """Show the model's name, as in text-generation-webui.

    SillyTavern asks for it before it counts tokens.
    """
    return {"model_name": context.limits.model, "lora_names": [], "loader": "llama.cpp"}


def _model(context: RequestContext) -> dict[str, Any]:
    model = context.engine.model
    capabilities = ["completion", "multimodal"] if model.media_kinds else ["completion"]
    known = {"id": context.limits.model, "object": "model", "created": int(context.created), "owned_by": "llamacpp"}
    # Agents read the context's size: vLLM's name, and llama-server's.
    sizes = {"max_model_len": model.n_cells, "meta": {"n_ctx": model.n_cells, "n_vocab": model.tokenizer.n_vocab}}
    created_at = datetime.fromtimestamp(int(context.created), UTC).isoformat().replace("+00:00", "Z")
    of_anthropic = {"type": "model", "display_name": context.limits.model, "created_at": created_at}
    return known | {"capabilities": capabilities} | sizes | of_anthropic
