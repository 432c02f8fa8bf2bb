"""Requests in parts: what comes of them is what one engine says."""

import dataclasses
from itertools import chain
from typing import Any

import pytest
from driver import check_order, request, run, stops, texts
from fake_backend import FakeBackend
from hypothesis import given
from hypothesis import strategies as st

from srb.cluster.split_request import SplitRequest, split
from srb.engine.engine import Engine
from srb.engine.events import DoneEvent, ErrorEvent, Event, StartEvent, StreamEvent
from srb.engine.request import CompletionRequest
from srb.engine.resume import resume
from srb.engine.sampling_params import SamplingParams
from srb.errors import BackendError


def in_parts(each: CompletionRequest, room: int, n_replicas: int) -> list[Event]:
    """Runs each part on an engine of its own, a step at a time in turn."""
    whole = SplitRequest(each, split(each, room, n_replicas))
    events: list[Event] = []
    engines = [(part, Engine(FakeBackend())) for part in whole.parts]
    for part, engine in engines:
        engine.add_request(part.request)
    while any(engine.has_work for _, engine in engines):
        for part, engine in engines:
            if engine.has_work:
                events += whole.take(part, engine.step())
    assert whole.done
    return events


def test_candidates_go_with_their_alternatives() -> None:
    each = CompletionRequest.scoring((1, 2), [(3, 4), (5,), (6, 7), (8,)])
    said = {(event.index, event.sampled) for event in in_parts(each, 2, 2) if isinstance(event, StreamEvent)}
    assert said == {(0, (3,)), (0, (4,)), (1, (5,)), (2, (6,)), (2, (7,)), (3, (8,))}


@given(
    prompts=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4),
    n=st.integers(1, 12),
    room=st.integers(1, 8),
    n_replicas=st.integers(1, 4),
)
def test_parts_say_what_the_whole_says(prompts: list[str], n: int, room: int, n_replicas: int) -> None:
    each = request(prompts, n=n, max_tokens=6)
    events, expected = in_parts(each, room, n_replicas), run(Engine(FakeBackend()), each)
    check_order(events, each)
    assert texts(events) == texts(expected)
    ends, wanted = stops(events), stops(expected)
    assert {k: (end.length, end.finish_reason) for k, end in ends.items()} == {
        k: (end.length, end.finish_reason) for k, end in wanted.items()
    }
    start, done = events[0], events[-1]
    assert isinstance(start, StartEvent)
    assert isinstance(done, DoneEvent)
    assert isinstance(expected[0], StartEvent)
    assert isinstance(expected[-1], DoneEvent)
    assert (start.seeds, start.count, start.prompt_tokens) == (
        expected[0].seeds,
        each.count,
        expected[0].prompt_tokens,
    )
    assert done.usage.completion_tokens == expected[-1].usage.completion_tokens
    assert done.usage.prompt_tokens == expected[-1].usage.prompt_tokens


@given(
    n_prompts=st.integers(1, 6),
    n=st.integers(1, 40),
    room=st.integers(1, 16),
    n_replicas=st.integers(1, 5),
)
def test_each_alternative_is_in_one_part(n_prompts: int, n: int, room: int, n_replicas: int) -> None:
    each = request(["p"] * n_prompts, n=n)
    parts = split(each, room, n_replicas)
    assert sorted(chain.from_iterable(part.indices for part in parts)) == list(range(each.count))
    assert 1 <= len(parts) <= n_replicas
    assert (len(parts) == 1) == (each.count <= room or n_replicas == 1)
    for part in parts:
        for index, place in enumerate(part.indices):
            mine = part.request.branches[index % len(part.request.branches)]
            assert mine == each.branches[place % n]


@pytest.mark.parametrize("params", [{"diversity": 1}, {"avoid": ()}, {"avoid": ("x",)}, {}])
def test_alternatives_that_must_differ_stay_in_one_part(params: dict[str, Any]) -> None:
    branches = (*request(n=7).branches, SamplingParams(**params))
    each = CompletionRequest(((1,),), branches, distinct=not params)
    assert len(split(each, 4, 2)) == 1
    assert len(split(dataclasses.replace(each, prompts=((1,), (2,))), 8, 2)) == 2


def test_a_search_is_never_parted_and_its_beams_count() -> None:
    each = dataclasses.replace(request("p", 2, max_tokens=5), search="beam", beams=8)
    assert len(split(each, 4, 4)) == 1
    several = dataclasses.replace(each, prompts=((1,), (2,)))
    assert len(split(several, 16, 2)) == 1
    assert [part.request.prompts for part in split(several, 8, 2)] == [((1,),), ((2,),)]


def test_a_bridge_is_parted_only_between_its_prompts() -> None:
    each = dataclasses.replace(request(["p", "q"], 2, max_tokens=5), suffix=tuple(b"end"), n_candidates=4)
    assert [len(part.indices) for part in split(dataclasses.replace(each, prompts=each.prompts[:1]), 2, 4)] == [2]
    assert [len(part.indices) for part in split(each, 4, 4)] == [2, 2]
    events, expected = in_parts(each, 4, 4), run(Engine(FakeBackend()), each)
    assert texts(events) == texts(expected)
    assert {k: end.rank for k, end in stops(events).items()} == {k: end.rank for k, end in stops(expected).items()}
    assert [event.infill for event in events if isinstance(event, StartEvent)] == ["bridge"]


def test_a_part_that_fails_ends_its_own_alternatives() -> None:
    each = request(n=4, max_tokens=3, ignore_eos=True)
    whole = SplitRequest(each, split(each, 2, 2))
    engine = Engine(FakeBackend())
    events = whole.take(whole.parts[0], run(engine, whole.parts[0].request))
    events += whole.end(whole.parts[1], "error", None, error := BackendError("it broke"))
    check_order(events, each)
    assert [event for event in events if isinstance(event, ErrorEvent)] == [
        ErrorEvent(each.id, 2, error),
        ErrorEvent(each.id, 3, error),
    ]
    assert [stops(events)[k].finish_reason for k in range(4)] == ["length", "length", "error", "error"]


@pytest.mark.parametrize("n_prompts", [2, 3])
def test_a_resumed_request_keeps_its_names_without_the_parts_that_have_ended(n_prompts: int) -> None:
    """All of the first prompt's alternatives have ended, so only the other prompts are sent."""
    each = request(["p", "q", "r"][:n_prompts], n=2, max_tokens=6)
    expected = run(Engine(FakeBackend()), each)
    rest = resume(each, [event for event in expected if getattr(event, "index", 0) < 2 and event is not expected[-1]])
    assert rest is not None
    events = in_parts(rest, 2, n_prompts)
    assert {event.request_id for event in events} == {each.id}
    assert set(stops(events)) == set(range(2, each.count))
    done, whole = events[-1], expected[-1]
    assert isinstance(done, DoneEvent)
    assert isinstance(whole, DoneEvent)
    assert (done.count, done.usage.prompt_tokens) == (each.count, each.prompt_tokens)
    assert done.usage.completion_tokens == whole.usage.completion_tokens
