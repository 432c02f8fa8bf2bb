"""Runs an engine on the fake backend to its end, and reads its events."""

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from srb.engine.engine import Engine
from srb.engine.events import DoneEvent, ErrorEvent, Event, StartEvent, StopEvent, StreamEvent
from srb.engine.request import CompletionRequest
from srb.engine.resume import resume
from srb.engine.sampling_params import SamplingParams


def request(prompt: str | list[str] = "p", n: int = 1, **params: object) -> CompletionRequest:
    """A request with n alternatives, with the seeds 0, 1, and so on."""
    prompts = [prompt] if isinstance(prompt, str) else prompt
    branches = SamplingParams(**{"seed": 0} | params).alternatives(n)  # type: ignore[arg-type]
    return CompletionRequest(tuple(tuple(text.encode()) for text in prompts), branches)


def run(engine: Engine, *requests: CompletionRequest, steps: int = 10_000) -> list[Event]:
    """Adds requests and steps the engine until it has no work."""
    for each in requests:
        engine.add_request(each)
    events: list[Event] = []
    while engine.has_work:
        steps -= 1
        assert steps >= 0, "the engine doesn't come to an end"
        events += engine.step()
    return events


def run_interrupted(make: Callable[[], Engine], each: CompletionRequest, cuts: list[int]) -> list[Event]:
    """The events of a request whose engine is lost after cuts[0] steps, the next one after cuts[1], and so on.

    Each next engine resumes the request, and the last one runs to its end.
    """
    events: list[Event] = []
    living: CompletionRequest | None = each
    for cut in [*cuts, 10_000]:
        if living is None:
            break
        engine = make()
        engine.add_request(living)
        for _ in range(cut):
            if not engine.has_work:
                break
            events += engine.step()
        living = resume(each, events)
    return events


def check_aborted(backend: Any, each: CompletionRequest, rng: random.Random) -> None:
    """Checks that a request which is aborted, all of it or one alternative, gives everything back."""
    engine = Engine(backend)
    engine.add_request(each)
    for _ in range(rng.randint(1, 8)):
        engine.step()
    engine.abort(each.id, rng.choice([None, 0]))
    while engine.has_work:
        engine.step()
    check_idle(engine, backend)


def check_idle(engine: Engine, backend: Any) -> None:
    """Checks that all was given back."""
    stats = engine.stats()
    assert (stats.sequences, stats.cells, backend.cells) == (0, 0, 0)
    assert (backend.open_samplers, backend.open_compiled) == (0, 0)


def evaluated(engine: Engine, *requests: CompletionRequest) -> int:
    """How many prompt tokens are evaluated for some requests, one after another."""
    before = engine.stats().prompt_tokens_evaluated
    for each in requests:
        run(engine, each)
    return engine.stats().prompt_tokens_evaluated - before


def own(events: Iterable[Event], each: CompletionRequest) -> list[Event]:
    """The events of one request."""
    return [event for event in events if event.request_id == each.id]


def texts(events: list[Event]) -> dict[int, str]:
    """The text of each index; only for the events of one request."""
    result: dict[int, str] = {}
    for event in events:
        if isinstance(event, StreamEvent):
            result[event.index] = result.get(event.index, "") + event.text
    return result


def tokens_of(events: list[Event], index: int) -> list[int]:
    """The tokens of an index; only for the events of one request."""
    own = [event for event in events if isinstance(event, StreamEvent) and event.index == index]
    return [token for event in own for token in event.sampled]


def stops(events: list[Event]) -> dict[int, StopEvent]:
    """The `StopEvent` of each index. Checks that it is the only one, and the last event of its index."""
    result: dict[int, StopEvent] = {}
    for event in events:
        if isinstance(event, (StreamEvent, StopEvent, ErrorEvent)) and event.index is not None:
            assert event.index not in result, f"{event} came after the index had stopped"
        if isinstance(event, StopEvent):
            result[event.index] = event
    return result


def check_order(
    events: list[Event], each: CompletionRequest, *, started: bool = True, is_resumed: bool = False
) -> None:
    """Checks the order of events: one start first, one stop per index, one done last.

    is_resumed: whether it was interrupted; then it may have started more than once.
    """
    found = own(events, each)
    starts = [event for event in found if isinstance(event, StartEvent)]
    assert found[: bool(starts)] == starts[:1]
    assert bool(starts) == started
    assert is_resumed or len(starts) <= 1
    assert set(stops(found)) == set(range(each.count))
    assert [event for event in found if isinstance(event, DoneEvent)] == found[-1:]


def few(*values: Any, many: Iterable[Any]) -> list[Any]:
    """Values for `pytest.mark.parametrize`, and many more of them for `./build.sh test --all`."""
    return [*values, *(pytest.param(value, marks=pytest.mark.nightly) for value in many)]


def seeds(n: int, first: int) -> list[Any]:
    """Seeds for `pytest.mark.parametrize`: the first ones, and the others for `./build.sh test --all`."""
    return few(*range(first), many=range(first, n))
