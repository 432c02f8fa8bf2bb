"""Builds KoboldCpp's responses: objects with `results`, streams of `token`, and the texts of running requests."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from srb.engine.events import DoneEvent, ErrorEvent, Event, StartEvent, StopEvent, StreamEvent
from srb.errors import SrbError
from srb.wire.context import Abort, JsonAnswer, RequestContext
from srb.wire.kobold.body import CountFields, IdsFields, parse, read_key
from srb.wire.openai.completions import Completion, Shown, content_of
from srb.wire.reply import Reply
from srb.wire.request.read import read_fields


class _ResultsBuilder(Completion):
    """Builds the response of a request. n_prompt: the number of tokens of its prompt."""

    shows_end: ClassVar[bool] = False

    def __init__(self, request_id: str, *, n_prompt: int, **more: Any) -> None:
        super().__init__(request_id, **more)
        self._n_prompt = n_prompt
        self._error: SrbError | None = None

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
        shown=Shown(logprobs=completion.logprobs is not None),
    )
    watch = partial(context.state(Generations).watch, Generation(fields.genkey, completion.id, count, make))
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


@dataclass(eq=False)
class Generation:
    """A generation. count: the number of alternatives. make: makes their results. events: those that have arrived."""

    genkey: str
    request_id: str
    count: int
    make: Callable[[], _ResultsBuilder]
    events: list[Event] = field(default_factory=list)

    def so_far(self) -> dict[str, Any]:
        """The texts so far."""
        texts: list[list[str]] = [[] for _ in range(self.count)]
        for event in self.events:
            if isinstance(event, StreamEvent):
                texts[event.index].append(event.text)
        return {"results": [{"text": "".join(parts)} for parts in texts]}

    def logprobs(self) -> dict[str, Any] | None:
        """The log-probabilities of the first text, if all have ended and the request asked for them."""
        if sum(isinstance(each, StopEvent) for each in self.events) == self.count:
            with suppress(SrbError):  # all have failed
                found: dict[str, Any] | None = self.make().object(self.events)["results"][0]["logprobs"]
                return found
        return None

    def perf(self) -> dict[str, Any]:
        """The numbers of a finished request. Times are in seconds; those per token in milliseconds."""
        result: dict[str, Any] = {}
        for event in self.events:
            match event:
                case StartEvent():
                    result["last_seed"] = event.seeds[0]
                case StopEvent():
                    ended = event.finish_reason == "stop"
                    result["stop_reason"] = (1 if event.stop_reason is None else 2) if ended else 0
                case DoneEvent(timings=timings, usage=usage):
                    result |= _pace("process", timings.prompt_n, timings.prompt_ms)
                    result |= _pace("eval", timings.predicted_n, timings.predicted_ms)
                    result |= {"last_input_count": usage.prompt_tokens, "last_token_count": usage.completion_tokens}
        return result


_NO_PERF: dict[str, Any] = {
    **dict.fromkeys(("last_process", "last_process_time", "last_process_speed"), 0.0),
    **dict.fromkeys(("last_eval", "last_eval_time", "last_eval_speed"), 0.0),
    "last_input_count": 0,
    "last_token_count": 0,
    "last_seed": -1,
    "stop_reason": -1,
}
"""`Generation.perf` until a request has finished."""


def _pace(name: str, n: int, ms: float) -> dict[str, float]:
    return {
        f"last_{name}": round(ms / n, 3) if n else 0.0,
        f"last_{name}_time": round(ms / 1000, 3),
        f"last_{name}_speed": round(n / ms * 1000, 3) if ms else 0.0,
    }


@dataclass(eq=False)
class Generations:
    """The running generations in the order of their arrival, and the last one of each owner.

    Attributes:
        running: Pairs of an owner and a generation.
        last: Each owner's last generation, without texts that nobody can ask for any more.
        total: How many have ended.
        idle_since: When the last one ended, in seconds since 1970; None: none has.
    """

    running: list[tuple[str | None, Generation]] = field(default_factory=list)
    last: dict[str | None, Generation] = field(default_factory=dict)
    total: int = 0
    idle_since: float | None = None

    @contextmanager
    def watch(
        self, generation: Generation, owner: str | None, _end: Abort
    ) -> Iterator[Callable[[list[Event]], object]]:
        """Registers a generation while the block runs. The function takes its events."""
        self.running.append((owner, generation))
        try:
            yield generation.events.extend
        finally:
            self.running.remove((owner, generation))
            generation.events = [each for each in generation.events if not isinstance(each, StreamEvent) or each.token]
            self.last[owner], self.total, self.idle_since = generation, self.total + 1, time.time()

    def named(self, genkey: str, owner: str | None) -> list[Generation]:
        """The running generations of an owner with this genkey.

        An empty genkey finds a generation only if it is the only one without a genkey: else it would be ambiguous.
        """
        found = [each for its, each in tuple(self.running) if (its, each.genkey) == (owner, genkey)]
        return found if genkey or len(found) == 1 else []

    def abort(self, abort: Abort, genkey: str, owner: str | None) -> bool:
        """Ends the running generations of an owner with this genkey. Returns False if there are none."""
        ended = [abort(each.request_id, None, "cancelled") for each in self.named(genkey, owner)]  # all of them
        return any(ended)


def check(body: bytes, context: RequestContext) -> JsonAnswer:
    """Show the texts so far of the request with this genkey."""
    genkey, ignored = read_key(body)
    found = context.state(Generations).named(genkey, context.owner)
    return found[-1].so_far() if found else {"results": [{"text": ""}]}, ignored


def last_logprobs(body: bytes, context: RequestContext) -> JsonAnswer:
    """Show the log-probabilities of the last request with this genkey, or null, as in KoboldCpp."""
    genkey, ignored = read_key(body)
    generations = context.state(Generations)
    ended = generations.last.get(context.owner)
    found = [*([ended] if ended and ended.genkey == genkey else []), *generations.named(genkey, context.owner)]
    return {"logprobs": found[-1].logprobs() if found else None}, ignored


def abort(body: bytes, context: RequestContext) -> JsonAnswer:
    """Abort the requests with this genkey."""
    genkey, ignored = read_key(body)
    ended = context.call_in_loop((context.state(Generations).abort, genkey, context.owner))
    return {"success": ended, "done": ended}, ignored


def perf(_body: bytes, context: RequestContext) -> JsonAnswer:
    """Show the speed of the last request, as in KoboldCpp."""
    health, generations, now = context.engine.health, context.state(Generations), context.now
    idle_since = context.created if generations.idle_since is None else generations.idle_since
    busy = {
        "total_gens": generations.total,
        "queue": health.waiting,
        "idle": int(not health.running),
        "uptime": round(now - context.created, 3),
        "idletime": 0 if generations.running else round(now - idle_since, 3),
        "quiet": True,
    }
    last = generations.last.get(context.owner)
    return _NO_PERF | (last.perf() if last else {}) | busy, []
