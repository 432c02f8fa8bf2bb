"""`timings` and `prompt_progress`, as llama-server writes them. Pure functions."""

from collections.abc import Callable
from typing import Any

from srb.engine.telling.events import ProgressEvent, StartEvent, StreamEvent, Timings


def timings(timings: Timings, n_prompt: int) -> dict[str, Any]:
    """How long the `n_prompt` tokens of a prompt and the tokens after it took, as JSON."""
    drafted = {"draft_n": timings.n_ahead, "draft_n_accepted": timings.n_met} if timings.n_ahead else {}
    return {
        "cache_n": n_prompt - timings.n_cut - timings.prompt_n,
        **_pace("prompt", timings.prompt_n, timings.prompt_ms),
        **_pace("predicted", timings.predicted_n, timings.predicted_ms),
        **drafted,
    }


def _pace(name: str, n: int, ms: float) -> dict[str, Any]:
    return {
        f"{name}_n": n,
        f"{name}_ms": round(ms, 3),
        f"{name}_per_token_ms": round(ms / n, 3) if n else 0.0,
        f"{name}_per_second": round(n / ms * 1000, 3) if ms else 0.0,
    }


class RunningTimings:
    """`timings` of alternatives while they run, measured when their events come, for `timings_per_token`.

    clock: seconds from any beginning.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = self._first = 0.0
        self._start: StartEvent | None = None
        self._n_tokens: dict[int, int] = {}

    def begin(self, event: StartEvent) -> None:
        """Call this when the request is admitted."""
        self._started, self._start = self._clock(), event

    def after(self, event: StreamEvent) -> dict[str, Any]:
        """The timings of an alternative after its next event, which must have its `tokens`."""
        assert self._start
        now = self._clock()
        if not self._n_tokens:
            self._first = now
        count = self._n_tokens[event.index] = self._n_tokens.get(event.index, 0) + len(event.tokens)
        n_cut = self._start.n_cut
        known = self._start.prompt_tokens - n_cut - self._start.cached_tokens
        ms = 1000 * (self._first - self._started), 1000 * (now - self._first)
        return timings(Timings(0, known, ms[0], count, ms[1], n_cut), self._start.prompt_tokens)


def prompt_progress(event: ProgressEvent, seconds: float) -> dict[str, Any]:
    """How far the evaluation of a request's prompts has come. seconds: since the request's start."""
    return {
        "total": event.total,
        "cache": event.cached,
        "processed": event.cached + event.evaluated,
        "time_ms": round(seconds * 1000),
    }
