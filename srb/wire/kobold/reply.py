"""Builds KoboldCpp's responses: objects with `results`, streams of `token`, and the texts of running requests."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from srb.engine.events import Event, StopEvent, StreamEvent
from srb.wire.answer import Answer, Change, Response
from srb.wire.context import Abort, RequestContext
from srb.wire.kobold.body import CountFields, IdsFields, KeyFields, KoboldFields, parse
from srb.wire.openai.completions import Completion, content_of
from srb.wire.reply import SSE_MESSAGE, Reply
from srb.wire.tokens import decoded, tokens_of


@dataclass(frozen=True)
class Results:
    """KoboldCpp's objects and streams. n_prompt: the number of tokens of the prompt. count: that of alternatives."""

    n_prompt: int
    count: int
    has_logprobs: bool

    def body(self, answer: Answer) -> dict[str, Any]:
        """The alternatives of a finished request, as choices of OpenAI's."""
        form = Completion(head={}, per_prompt=self.count, n=self.count, has_logprobs=self.has_logprobs, shows_end=False)
        return {"results": [choice | self._end(answer[choice["index"]].stop) for choice in form.choices(answer)]}

    def _end(self, stop: StopEvent | None) -> dict[str, Any]:
        assert stop
        counts = {"prompt_tokens": self.n_prompt, "completion_tokens": stop.length}
        return {"finish_reason": _finish(stop.finish_reason)} | counts

    def chunk(self, answer: Answer, event: Event, _changes: list[Change]) -> Iterator[dict[str, Any]]:
        """The chunks for an event. The last one has no text, but a `finish_reason`, and maybe an error."""
        match event:
            case StreamEvent(text=text):
                answer[event.index].drain()
                if text:
                    shown = content_of([event.token])[0] if event.token else {}
                    yield shown | {"token": text, "finish_reason": None}
            case StopEvent():
                failure = answer.failure
                error = {"error": failure.body()} if failure else {}
                yield {"token": "", "finish_reason": _finish(event.finish_reason)} | error


def parse_generate(fields: KoboldFields, context: RequestContext, *, stream: bool = False) -> Reply:
    """Continue a prompt, as in KoboldAI: a result for each alternative."""
    parsed = parse(fields, context, stream=stream)
    completion = parsed.completion
    form = Results(len(completion.prompts[0]), completion.count, completion.logprobs is not None)
    watch = partial(context.state(Generations).watch, Generation(fields.genkey, completion.id, form))
    return Reply.of(parsed, partial(Response, form), frame=SSE_MESSAGE, watch=watch, payload=fields.genkey)


def _finish(reason: str) -> str:
    """The reason in KoboldCpp's terms, which has only `stop` and `length`."""
    return "stop" if reason == "stop" else "length"


def token_count(fields: CountFields, context: RequestContext) -> dict[str, Any]:
    """Tokenize a text, as in KoboldCpp."""
    tokens = tokens_of([fields.prompt], "prompt", context.engine.model.tokenizer, add_special=fields.special)
    return {"value": len(tokens), "ids": tokens}


def detokenize(fields: IdsFields, context: RequestContext) -> dict[str, Any]:
    """Detokenize tokens, as in KoboldCpp."""
    return {"result": decoded(fields.ids, "ids", context.engine.model.tokenizer), "success": True}


@dataclass(eq=False)
class Generation:
    """A generation. form: how its results look. answer: what has come of it. abort: ends it while it is running."""

    genkey: str
    request_id: str
    form: Results
    answer: Answer = field(default_factory=Answer)
    abort: Callable[[], object] = lambda: None

    def take(self, events: list[Event]) -> None:
        """Takes the next events."""
        for event in events:
            self.answer.take(event)

    def so_far(self) -> dict[str, Any]:
        """The texts so far."""
        return {"results": [{"text": self.answer[index].text} for index in range(self.form.count)]}

    def logprobs(self) -> dict[str, Any] | None:
        """The log-probabilities of the first text, if all have ended and the request asked for them."""
        if self.answer.failure or not all(self.answer[index].stop for index in range(self.form.count)):
            return None
        found: dict[str, Any] | None = self.form.body(self.answer)["results"][0]["logprobs"]
        return found

    def perf(self) -> dict[str, Any]:
        """The numbers of a finished request. Times are in seconds; those per token in milliseconds."""
        result: dict[str, Any] = {}
        answer, stop = self.answer, self.answer[0].stop
        if answer.start:
            result["last_seed"] = answer.start.seeds[0]
        if stop:
            result["stop_reason"] = (1 if stop.stop_reason is None else 2) if stop.finish_reason == "stop" else 0
        if answer.done:
            timings, usage = answer.done.timings, answer.done.usage
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
        self, generation: Generation, owner: str | None, abort: Abort
    ) -> Iterator[Callable[[list[Event]], object]]:
        """Registers a generation while the block runs. The function takes its events."""
        generation.abort = partial(abort, generation.request_id, None, "cancelled")
        self.running.append((owner, generation))
        try:
            yield generation.take
        finally:
            self.running.remove((owner, generation))
            if not generation.form.has_logprobs:
                for each in generation.answer.alternatives.values():
                    each.text, each.items = "", []
            self.last[owner], self.total, self.idle_since = generation, self.total + 1, time.time()

    def named(self, genkey: str, owner: str | None) -> list[Generation]:
        """The running generations of an owner with this genkey.

        An empty genkey finds a generation only if it is the only one without a genkey: else it would be ambiguous.
        """
        found = [each for its, each in tuple(self.running) if (its, each.genkey) == (owner, genkey)]
        return found if genkey or len(found) == 1 else []


def check(fields: KeyFields | None, context: RequestContext) -> dict[str, Any]:
    """Show the texts so far of the request with this genkey."""
    found = context.state(Generations).named(fields.genkey if fields else "", context.owner)
    return found[-1].so_far() if found else {"results": [{"text": ""}]}


def last_logprobs(fields: KeyFields, context: RequestContext) -> dict[str, Any]:
    """Show the log-probabilities of the last request with this genkey, or null, as in KoboldCpp."""
    genkey, generations = fields.genkey, context.state(Generations)
    ended = generations.last.get(context.owner)
    found = [*([ended] if ended and ended.genkey == genkey else []), *generations.named(genkey, context.owner)]
    return {"logprobs": found[-1].logprobs() if found else None}


def abort(fields: KeyFields, context: RequestContext) -> dict[str, Any]:
    """Abort the requests with this genkey."""
    found = context.state(Generations).named(fields.genkey, context.owner)
    for each in found:
        each.abort()
    return {"success": bool(found), "done": bool(found)}


def perf(_fields: None, context: RequestContext) -> dict[str, Any]:
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
    return _NO_PERF | (last.perf() if last else {}) | busy
