"""KoboldAI's wire format, as KoboldCpp has it: answers with `results`, and streams of `token`."""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from srb.engine.telling.events import DoneEvent, ErrorEvent, Event, StartEvent, StopEvent, StreamEvent, Token
from srb.errors import SrbError
from srb.wire.kobold.body import CountFields, IdsFields, KoboldParsed
from srb.wire.openai import chat
from srb.wire.openai import reply as openai
from srb.wire.request.read import read_fields
from srb.wire.serving import Serving, Told


class _Results(openai.Completion):
    """OpenAI's object, with the probabilities in the formats of both completions and chats, as in KoboldCpp."""

    shows_end: ClassVar[bool] = False

    def logprobs(self, tokens: list[Token], offsets: list[int]) -> dict[str, Any]:
        return super().logprobs(tokens, offsets) | {"content": chat.content_of(tokens)}


class Generation:
    """Makes the answers of one request, from its events."""

    def __init__(self, parsed: KoboldParsed, *, model: str) -> None:
        self.genkey = parsed.genkey
        self.request_id = parsed.completion.id
        self._count = parsed.completion.count
        self._n_prompt = len(parsed.completion.prompts[0])
        self._reply = _Results(
            self.request_id,
            model=model,
            created=0,
            fingerprint="",
            per_prompt=self._count,
            n=self._count,
            logprobs=parsed.logprobs,
        )
        self._events: list[Event] = []
        self._error: SrbError | None = None

    def take(self, events: Iterable[Event]) -> None:
        """Takes the next events of the request."""
        self._events += events

    def so_far(self) -> dict[str, Any]:
        """The texts so far."""
        texts: list[list[str]] = [[] for _ in range(self._count)]
        for event in self._events:
            if isinstance(event, StreamEvent):
                texts[event.index].append(event.text)
        return {"results": [{"text": "".join(parts)} for parts in texts]}

    def results(self) -> dict[str, Any]:
        """The alternatives of a finished request. Raises `SrbError` if all failed."""
        lengths = {event.index: event.length for event in self._events if isinstance(event, StopEvent)}
        return {
            "results": [
                choice
                | {
                    "finish_reason": _finish(choice["finish_reason"]),
                    "prompt_tokens": self._n_prompt,
                    "completion_tokens": lengths[choice["index"]],
                }
                for choice in self._reply.object(self._events)["choices"]
            ]
        }

    def chunks(self, events: list[Event]) -> Iterator[dict[str, Any]]:
        """The chunks for the next events of a stream.

        The last chunk has no text. It has a `finish_reason`, and the error if there is one.
        """
        self.take(events)
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

    def perf(self) -> dict[str, Any]:
        """The numbers of a finished request. Times are in seconds, those for one token in milliseconds."""
        result: dict[str, Any] = {}
        for event in self._events:
            match event:
                case StartEvent():
                    result["last_seed"] = event.seeds[0]
                case StopEvent():
                    ended = event.finish_reason == "stop"
                    result["stop_reason"] = (2 if event.stop_reason else 1) if ended else 0
                case DoneEvent(timings=timings, usage=usage):
                    result |= _pace("process", timings.prompt_n, timings.prompt_ms)
                    result |= _pace("eval", timings.predicted_n, timings.predicted_ms)
                    result |= {"last_input_count": usage.prompt_tokens, "last_token_count": usage.completion_tokens}
        return result


NO_PERF: dict[str, Any] = {
    **dict.fromkeys(("last_process", "last_process_time", "last_process_speed"), 0.0),
    **dict.fromkeys(("last_eval", "last_eval_time", "last_eval_speed"), 0.0),
    "last_input_count": 0,
    "last_token_count": 0,
    "last_seed": -1,
    "stop_reason": -1,
}
"""Stands for `Generation.perf` while no request has finished."""


def _pace(name: str, n: int, ms: float) -> dict[str, float]:
    return {
        f"last_{name}": round(ms / n, 3) if n else 0.0,
        f"last_{name}_time": round(ms / 1000, 3),
        f"last_{name}_speed": round(n / ms * 1000, 3) if ms else 0.0,
    }


def _finish(reason: str) -> str:
    """The reason in KoboldCpp's terms, which has only `stop` and `length`."""
    return "stop" if reason == "stop" else "length"


def token_count(data: bytes, serving: Serving) -> Told:
    """`POST /api/extra/tokencount` and `/api/extra/tokenize`."""
    fields = read_fields(data, CountFields)
    tokens = serving.vocabulary.encode(fields.prompt, "prompt", add_special=fields.special)
    return {"value": len(tokens), "ids": tokens}, list(fields.model_extra or ())


def detokenize(data: bytes, serving: Serving) -> Told:
    """`POST /api/extra/detokenize`."""
    fields = read_fields(data, IdsFields)
    return {"result": serving.vocabulary.decode(fields.ids, "ids"), "success": True}, list(fields.model_extra or ())
