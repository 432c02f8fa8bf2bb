"""Builds KoboldCpp's responses: objects with `results`, and streams of `token`."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, ClassVar

from srb.engine.events import ErrorEvent, Event, StopEvent, StreamEvent, Token
from srb.errors import SrbError
from srb.wire.context import JsonAnswer, RequestContext
from srb.wire.kobold.body import CountFields, IdsFields, parse
from srb.wire.kobold.generations import Generations
from srb.wire.openai.chat import content_of
from srb.wire.openai.completions import Completion
from srb.wire.reply import Reply
from srb.wire.request.read import read_fields


class _ResultsBuilder(Completion):
    """Builds the response of a request. n_prompt: the number of tokens of its prompt."""

    shows_end: ClassVar[bool] = False

    def __init__(self, request_id: str, *, n_prompt: int, **more: Any) -> None:
        super().__init__(request_id, **more)
        self._n_prompt = n_prompt
        self._error: SrbError | None = None

    def logprobs(self, tokens: list[Token], offsets: list[int]) -> dict[str, Any]:
        """The log-probabilities in the formats of both completions and chats, as in KoboldCpp."""
        return super().logprobs(tokens, offsets) | {"content": content_of(tokens)}

    def object(self, events: Iterable[Event]) -> dict[str, Any]:
        """The alternatives of a finished request. Raises `SrbError` if all failed."""
        lengths = {event.index: event.length for event in events if isinstance(event, StopEvent)}
        choices = super().object(events)["choices"]
        return {
            "results": [
                choice
                | {
                    "finish_reason": _finish(choice["finish_reason"]),
                    "prompt_tokens": self._n_prompt,
                    "completion_tokens": lengths[choice["index"]],
                }
                for choice in choices
            ]
        }

    def chunks(self, events: Iterable[Event]) -> Iterator[dict[str, Any] | str]:
        """The chunks for the next events. The last one has no text, but a `finish_reason`, and maybe an error."""
        for event in events:
            match event:
                case StreamEvent(text=text) if text:
                    shown = content_of([event.token])[0] if event.token else {}
                    yield shown | {"token": text, "finish_reason": None}
                case ErrorEvent():
                    self._error = event.error
                case StopEvent():
                    error = {"error": self._error.body()} if self._error else {}
                    yield {"token": "", "finish_reason": _finish(event.finish_reason)} | error


def parse_generate(body: bytes, context: RequestContext, *, stream: bool = False) -> Reply:
    """Continue a prompt, as in KoboldAI: a result for each alternative."""
    fields, completion, ignored = parse(body, context, stream=stream)
    count = completion.count
    make = partial(
        _ResultsBuilder,
        completion.id,
        n_prompt=len(completion.prompts[0]),
        model=context.limits.model,
        created=0,
        fingerprint="",
        per_prompt=count,
        n=count,
        logprobs=completion.logprobs is not None,
    )
    watch = partial(context.state(Generations).watch, fields.genkey, completion.id, count)
    return Reply(completion, ignored, stream, make, detach=bool(fields.detach), watch=watch, payload=fields.genkey)


def _finish(reason: str) -> str:
    """The reason in KoboldCpp's terms, which has only `stop` and `length`."""
    return "stop" if reason == "stop" else "length"


def token_count(data: bytes, context: RequestContext) -> JsonAnswer:
    """Tokenize a text, as in KoboldCpp."""
    fields = read_fields(data, CountFields)
    tokens = context.vocabulary.encode(fields.prompt, "prompt", add_special=fields.special)
    return {"value": len(tokens), "ids": tokens}, fields.unread()


def detokenize(data: bytes, context: RequestContext) -> JsonAnswer:
    """Detokenize tokens, as in KoboldCpp."""
    fields = read_fields(data, IdsFields)
    return {"result": context.vocabulary.decode(fields.ids, "ids"), "success": True}, fields.unread()
