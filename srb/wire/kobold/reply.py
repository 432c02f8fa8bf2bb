"""KoboldAI's wire format, as KoboldCpp has it: answers with `results`, and streams of `token`."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, ClassVar

from srb.engine.events import ErrorEvent, Event, StopEvent, StreamEvent, Token
from srb.errors import SrbError
from srb.wire.kobold.body import CountFields, IdsFields, parse
from srb.wire.kobold.generations import Generations
from srb.wire.openai import chat
from srb.wire.openai import reply as openai
from srb.wire.reply import Reply
from srb.wire.request.read import read_fields
from srb.wire.serving import Serving, Told


class _Results(openai.Completion):
    """Makes the answers of one request. n_prompt: how many tokens its prompt has."""

    shows_end: ClassVar[bool] = False

    def __init__(self, request_id: str, *, n_prompt: int, **more: Any) -> None:
        super().__init__(request_id, **more)
        self._n_prompt = n_prompt
        self._error: SrbError | None = None

    def logprobs(self, tokens: list[Token], offsets: list[int]) -> dict[str, Any]:
        """In the formats of both completions and chats, as in KoboldCpp."""
        return super().logprobs(tokens, offsets) | {"content": chat.content_of(tokens)}

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
                    shown = chat.content_of([event.token])[0] if event.token else {}
                    yield shown | {"token": text, "finish_reason": None}
                case ErrorEvent():
                    self._error = event.error
                case StopEvent():
                    error = {"error": self._error.body()} if self._error else {}
                    yield {"token": "", "finish_reason": _finish(event.finish_reason)} | error


def generate(body: bytes, serving: Serving, *, stream: bool = False) -> Reply:
    """Continue a prompt, as KoboldAI does: a result for each alternative."""
    fields, completion, ignored = parse(body, serving, stream=stream)
    count = completion.count
    make = partial(
        _Results,
        completion.id,
        n_prompt=len(completion.prompts[0]),
        model=serving.limits.model,
        created=0,
        fingerprint="",
        per_prompt=count,
        n=count,
        logprobs=completion.logprobs is not None,
    )
    watch = partial(serving.recall(Generations).watch, fields.genkey, completion.id, count)
    return Reply(completion, ignored, stream, make, detach=bool(fields.detach), watch=watch, keeps=fields.genkey)


def _finish(reason: str) -> str:
    """The reason in KoboldCpp's terms, which has only `stop` and `length`."""
    return "stop" if reason == "stop" else "length"


def token_count(data: bytes, serving: Serving) -> Told:
    """The tokens of a text, as KoboldCpp has them."""
    fields = read_fields(data, CountFields)
    tokens = serving.vocabulary.encode(fields.prompt, "prompt", add_special=fields.special)
    return {"value": len(tokens), "ids": tokens}, fields.unread()


def detokenize(data: bytes, serving: Serving) -> Told:
    """The text of some tokens, as KoboldCpp has it."""
    fields = read_fields(data, IdsFields)
    return {"result": serving.vocabulary.decode(fields.ids, "ids"), "success": True}, fields.unread()
