"""The wire format of Hugging Face's Text Generation Inference: `/generate` and `/generate_stream`. Pure functions."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from pydantic import Field

from srb.engine.asking.sampling_params import MAX_STOP_STRINGS
from srb.engine.telling.events import ErrorEvent, Event, StartEvent, StopEvent, StreamEvent, Token
from srb.errors import InvalidRequestError, QueueFullError, SrbError, UnavailableError
from srb.wire.limits import Limits
from srb.wire.openai.reply import logprob_of
from srb.wire.reply.one import Answer, parse_one
from srb.wire.reply.reply import Reply
from srb.wire.request.body_fields import BodyFields, Int
from srb.wire.request.fields import SamplingFields
from srb.wire.request.read import depth_refused, read_fields, show
from srb.wire.serving import Serving, Told

_SAMPLE = {"temperature", "top_k", "top_p", "typical_p"}
"""If one of these fields is sent, tokens are drawn. Otherwise the likeliest token is taken."""


class TgiParameters(SamplingFields):
    """The `parameters` of a request."""

    best_of: Int | None = Field(
        None, description="run this many alternatives: the likeliest is the answer, and the others are in its details."
    )
    do_sample: bool | None = Field(
        None, description="true: draw tokens. false: take the likeliest token, unless a field says how to draw."
    )
    details: bool | None = Field(None, description="show the tokens, and why the text ended.")
    decoder_input_details: bool | None = Field(None, description="show the tokens of the prompt in the details, too.")
    return_full_text: bool | None = Field(None, description="begin the text with the prompt.")
    top_n_tokens: Int | None = Field(None, description="show this many of the likeliest tokens at each place.")
    truncate: Int | None = Field(None, description="take only so many tokens of the prompt, the last ones.")
    grammar: Any = Field(
        None, description='{"type": "json", "value": SCHEMA}, the same with regex and a text, or GBNF as a text.'
    )


class TgiFields(BodyFields):
    """The body of `POST /generate`, `POST /generate_stream` and `POST /`."""

    inputs: str = Field(description="the prompt.")
    parameters: TgiParameters | None = Field(None, description="how to draw, and what to show.")
    stream: bool = Field(False, description="answer with a stream; /generate_stream always does.")
    detach: bool | None = Field(None, description="the request goes on when its connection is closed.")


def generate(body: bytes, serving: Serving, *, stream: bool = False, listed: bool = False) -> Reply:
    """Go on with a prompt, as Text Generation Inference does.

    stream: answer with a stream, whatever the body says. listed: put the answer's object into a list.
    """
    with depth_refused():
        fields = read_fields(body, TgiFields)
        parameters = fields.parameters or TgiParameters.model_validate({})
        stream = stream or fields.stream
        best_of = _best_of(parameters, stream, serving.limits)
        if parameters.max_tokens is not None and parameters.max_tokens < 1:
            raise _wrong("max_new_tokens", "must be at least 1", parameters.max_tokens)
        if parameters.do_sample is not True and not _SAMPLE & parameters.model_fields_set and best_of == 1:
            parameters.temperature = 0
        details = bool(parameters.details or stream)
        echo = bool(parameters.details and parameters.decoder_input_details and not stream)
        parsed = parse_one(
            fields,
            parameters,
            serving,
            prompt=_prompt(fields.inputs, parameters.truncate, serving),
            n=best_of,
            stream=stream,
            detach=fields.detach,
            logprobs=(parameters.top_n_tokens or 0) if details or best_of > 1 else None,
            echo=echo,
            **_grammar(parameters.grammar),
        )
        parsed.ignored.extend(f"parameters.{name}" for name in parameters.model_extra or ())
        without_effect = {
            "decoder_input_details": parameters.decoder_input_details and not echo,
            "top_n_tokens": parameters.top_n_tokens and not details,
        }
        parsed.ignored.extend(f"parameters.{name}" for name, sent in without_effect.items() if sent)

    before = fields.inputs if parameters.return_full_text else ""
    make = partial(
        _Out,
        serving.vocabulary.tokenizer.is_end,
        before=before,
        n_prompt=len(parsed.completion.prompts[0]),
        n_echoed=len(parsed.completion.prompts[0]) if echo else 0,
        count=best_of,
        details=details,
        top=bool(parameters.top_n_tokens),
        listed=listed,
    )

    return Reply(parsed.completion, parsed.ignored, stream, make, detach=parsed.detach, keeps=before)


def _best_of(parameters: TgiParameters, stream: bool, limits: Limits) -> int:
    best_of = 1 if parameters.best_of is None else parameters.best_of
    if not 1 <= best_of <= limits.max_n:
        raise _wrong("best_of", f"must be from 1 to {limits.max_n} (--max-n)", best_of)
    if best_of > 1 and stream:
        raise _wrong("best_of", "must be 1 in a stream, which has place for one alternative", best_of)
    if best_of > 1 and parameters.do_sample is False and not _SAMPLE & parameters.model_fields_set:
        raise _wrong("best_of", "must be 1 without do_sample, as all would be the same", best_of)
    return best_of


def _wrong(name: str, what: str, value: Any) -> InvalidRequestError:
    return InvalidRequestError(f"parameters.{name} {what}, got {value!s:.60}", param=f"parameters.{name}")


def _prompt(text: str, truncate: int | None, serving: Serving) -> str | list[int]:
    """The text, or its last `truncate` tokens."""
    if truncate is None:
        return text
    if truncate < 1:
        raise _wrong("truncate", "must be at least 1", truncate)
    return list(serving.engine.tokenize(text)[-truncate:])


def _grammar(grammar: Any) -> dict[str, Any]:
    """The fields of `CompletionFields` for a grammar in one of TGI's notations.

    Empty for a text in llama.cpp's notation, which is the field `grammar` already. Raises `InvalidRequestError`.
    """
    if grammar is None or isinstance(grammar, str):
        return {}
    kind, value = (grammar.get("type"), grammar.get("value")) if isinstance(grammar, dict) else (None, None)
    if kind == "json" and value is not None:
        return {"grammar": None, "json_schema": value}
    if kind == "json_schema" and isinstance(value, dict) and "schema" in value:
        return {"grammar": None, "json_schema": value["schema"]}
    if kind == "regex" and isinstance(value, str):
        return {"grammar": None, "regex": value}
    raise _wrong(
        "grammar",
        'is {"type": "json", "value": SCHEMA}, {"type": "regex", "value": TEXT}, or GBNF as a text',
        show(grammar),
    )


class _Out:
    """Makes one answer, from the events of its request.

    is_end: says whether a token ends a text. before: a text that the answer begins with. n_prompt: how many tokens the
    prompt has. n_echoed: how many of them are events before the answer. count: how many alternatives there are.
    details: whether to show details. top: whether to show the likeliest tokens.
    listed: whether the object is in a list.
    """

    def __init__(
        self,
        is_end: Callable[[int], bool],
        *,
        before: str,
        n_prompt: int,
        n_echoed: int,
        count: int,
        details: bool,
        top: bool,
        listed: bool,
    ) -> None:
        self._listed = listed
        self._is_end = is_end
        self._before = before
        self._n_prompt = n_prompt
        self._n_echoed = n_echoed
        self._details = details
        self._top = top
        self._answers = [Answer() for _ in range(count)]
        self._seeds: tuple[int, ...] = (0,) * count
        self._n_tokens = 0

    def object(self, events: list[Event]) -> dict[str, Any] | list[dict[str, Any]]:
        """The likeliest alternative of a finished request. Raises `SrbError` if all failed."""
        fault: SrbError | None = None
        for event in events:
            match event:
                case StartEvent():
                    self._seeds = event.seeds
                case StreamEvent() | StopEvent():
                    answer = self._answers[event.index]
                    if isinstance(event, StreamEvent) and len(answer.tokens) < self._n_echoed:
                        event = replace(event, text="")  # the text of the prompt isn't a part of the answer
                    answer.take(event)
                case ErrorEvent(index=None):
                    raise event.error
                case ErrorEvent():
                    fault = event.error
        good = [
            (answer.stop.mean_logprob or 0.0, answer, answer.stop, seed)
            for answer, seed in zip(self._answers, self._seeds, strict=True)
            if answer.stop and answer.stop.finish_reason != "error"
        ]
        if fault and not good:
            raise fault
        shown = [
            (self._text(answer), self._sequence(answer, stop, seed))
            for _mean, answer, stop, seed in sorted(good, key=lambda each: -each[0])
        ]
        (text, details), *others = shown
        if others:
            details["best_of_sequences"] = [{"generated_text": text} | sequence for text, sequence in others]
        result = {"generated_text": text} | ({"details": details} if self._details else {})
        return [result] if self._listed else result

    def chunks(self, events: list[Event]) -> Iterator[dict[str, Any]]:
        """The chunks for the next events of a stream: one for each token. The last has the whole text, and its end."""
        (answer,) = self._answers
        held: StreamEvent | None = None  # the last token comes in one batch with the end, and both become one chunk
        for event in events:
            match event:
                case StartEvent():
                    self._seeds = event.seeds
                case StreamEvent(token=Token()):
                    if held:
                        yield self._chunk(held)
                    held = event
                    answer.take(event)
                case ErrorEvent():
                    yield error(event.error)
                case StopEvent():
                    last = held or StreamEvent(event.request_id, 0, "", token=_NOTHING)
                    held = None
                    ended = {
                        "finish_reason": _finish(event),
                        "generated_tokens": event.length,
                        "seed": self._seeds[0],
                        "input_length": self._n_prompt,
                    }
                    yield self._chunk(last) | {"generated_text": self._text(answer), "details": ended}
        if held:
            yield self._chunk(held)

    def _text(self, answer: Answer) -> str:
        return self._before + answer.text

    def _chunk(self, event: StreamEvent) -> dict[str, Any]:
        assert event.token
        self._n_tokens += 1
        return {
            "index": self._n_tokens,
            "token": self._token(event.token) | {"text": event.text},
            "top_tokens": [self._token(each) for each in event.token.top_logprobs],
            "generated_text": None,
            "details": None,
        }

    def _sequence(self, answer: Answer, stop: StopEvent, seed: int) -> dict[str, Any]:
        prompt, tokens = answer.tokens[: self._n_echoed], answer.tokens[self._n_echoed :]
        sequence = {
            "finish_reason": _finish(stop),
            "generated_tokens": stop.length,
            "seed": seed,
            "prefill": [self._token(each) for each in prompt],
            "tokens": [self._token(each) for each in tokens],
        }
        top = [[self._token(each) for each in token.top_logprobs] for token in tokens]
        return sequence | ({"top_tokens": top} if self._top else {})

    def _token(self, token: Token) -> dict[str, Any]:
        return {
            "id": token.id,
            "text": token.piece.decode(errors="replace"),
            "logprob": logprob_of(token),
            "special": self._is_end(token.id),
        }


_NOTHING = Token(0, b"", 0.0)
"""The token of the last chunk, if an alternative ends without a token."""


def _finish(stop: StopEvent) -> str:
    """The reason in TGI's terms, which has only these three."""
    if stop.finish_reason != "stop":
        return "length"
    return "stop_sequence" if stop.stop_reason else "eos_token"


def error(error: SrbError) -> dict[str, Any]:
    """The body of an error."""
    kind = "generation"
    if isinstance(error, InvalidRequestError):
        kind = "validation"
    elif isinstance(error, (QueueFullError, UnavailableError)):
        kind = "overloaded"
    return {"error": error.message, "error_type": kind}


def info(_body: bytes, serving: Serving) -> Told:
    """The model and its limits, as Text Generation Inference has them."""
    n_cells = serving.engine.n_cells
    return {
        "model_id": serving.limits.model,
        "model_pipeline_tag": "text-generation",
        "max_concurrent_requests": serving.stats.max_sequences,
        "max_best_of": serving.limits.max_n,
        "max_stop_sequences": MAX_STOP_STRINGS,
        "max_input_tokens": n_cells,
        "max_total_tokens": n_cells,
        "max_client_batch_size": 1,
        "router": "srb",
        "version": serving.version,
    }, []
