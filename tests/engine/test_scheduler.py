"""Who begins when, with how many sequences and tokens."""

import dataclasses
from unittest.mock import patch

import pytest
from driver import own, request, run, run_interrupted, stops, texts
from fake_backend import FakeBackend

from srb.engine.engine import Engine
from srb.engine.events import DoneEvent, Event, StartEvent, StreamEvent
from srb.engine.kv_cache.allocator import Layout
from srb.engine.kv_cache.prefix_cache import PrefixCache
from srb.engine.request import LOWEST_PRIORITY, CompletionRequest
from srb.errors import InvalidRequestError


@pytest.mark.parametrize("n", [1, 12])
def test_open_ended_alternatives_have_no_more_than_the_request_says(n: int) -> None:
    engine = Engine(backend := FakeBackend(n_cells=4000, n_parallel=4))
    each = dataclasses.replace(request("p" * 20, n=n, max_tokens=-1, ignore_eos=True), most_tokens=200)
    events = run(engine, each)
    (start,) = (event for event in events if isinstance(event, StartEvent))
    assert start.max_tokens == 200
    assert {(stop.length, stop.finish_reason) for stop in stops(events).values()} == {(200, "length")}
    assert backend.cells == 0
    few = dataclasses.replace(each, most_tokens=5, id="few")
    assert {stop.length for stop in stops(run(engine, few)).values()} == {5}
    with pytest.raises(InvalidRequestError, match="most_tokens must be at least 1, got 0"):
        dataclasses.replace(each, most_tokens=0)


def test_what_was_generated_before_an_interruption_counts() -> None:
    each = dataclasses.replace(request("p" * 20, n=2, max_tokens=-1, ignore_eos=True), most_tokens=200)
    events = run_interrupted(lambda: Engine(FakeBackend(n_cells=4000)), each, [50, 190])
    assert {stop.length for stop in stops(events).values()} == {200}


def test_a_request_without_cells_looks_up_no_prefixes() -> None:
    engine = Engine(FakeBackend(n_cells=200, n_parallel=1))
    engine.add_request(request("r", max_tokens=30, ignore_eos=True))
    engine.step()
    for k in range(100):
        engine.add_request(request(f"{k:03} waits", max_tokens=2))
    with patch.object(PrefixCache, "find", autospec=True, side_effect=AssertionError) as find:
        for _ in range(10):
            engine.step()
    find.assert_not_called()
    run(engine)


def test_an_overtaken_request_looks_up_prefixes_once_in_an_admission() -> None:
    """And those behind it not at all, as long as they don't fit as they are."""
    engine = Engine(FakeBackend(n_cells=300, n_parallel=4))
    engine.add_request(request("r" * 150, n=1, max_tokens=20, ignore_eos=True))
    engine.step()
    find = PrefixCache.find
    with patch.object(PrefixCache, "find", autospec=True, side_effect=find) as spied:
        for k in range(100):
            engine.add_request(request(f"{k:03}" + "w" * 200, max_tokens=2))
        engine.step()
    assert spied.call_count == 1
    run(engine)


def in_streams(backend: FakeBackend) -> Engine:
    """An engine with as many seq_ids as rows, each with cells of its own."""
    backend.prepare(Layout(False, backend.n_cells, backend.n_parallel))
    return Engine(backend, cache_bytes=10**6)


def steps_to_end(engine: Engine, each: CompletionRequest) -> tuple[int, list[Event]]:
    """How many steps a request takes that comes now, and all events of these steps."""
    engine.add_request(each)
    events: list[Event] = []
    for n in range(1, 1000):
        events += engine.step()
        if any(isinstance(event, DoneEvent) and event.request_id == each.id for event in events):
            return n, events
    raise AssertionError("it waits")


@pytest.mark.parametrize("is_unified", [True, False])
@pytest.mark.parametrize(("n_requests", "n"), [(1, 32), pytest.param(4, 8, marks=pytest.mark.nightly), (32, 1)])
def test_a_small_request_waits_behind_no_large_one(n_requests: int, n: int, is_unified: bool) -> None:
    backend = FakeBackend(n_cells=4000, n_parallel=32)
    engine = Engine(backend) if is_unified else in_streams(backend)
    large = [request(f"{k} is large", n=n, max_tokens=60, ignore_eos=True) for k in range(n_requests)]
    for each in large:
        engine.add_request(each)
    events = [event for _ in range(20) for event in engine.step()]
    n_steps, more = steps_to_end(engine, small := request("s", max_tokens=2, ignore_eos=True))
    events += more
    if n_requests < 32:  # else each of them has its share
        assert n_steps <= 4
    decodes = backend.decodes
    events += run(engine)
    assert backend.decodes - decodes <= 60 - 20 + 8
    for each in (large[0], large[-1], small):
        assert texts(own(events, each)) == texts(
            run(Engine(FakeBackend(n_cells=4000, n_parallel=40)), dataclasses.replace(each, id="alone"))
        )
    assert backend.cells == 0


@pytest.mark.parametrize("is_unified", [True, False])
def test_requests_without_readers_give_way_at_once(is_unified: bool) -> None:
    backend = FakeBackend(n_cells=4000, n_parallel=20)
    engine = Engine(backend) if is_unified else in_streams(backend)
    gone = [request(f"{k} is gone", max_tokens=60, ignore_eos=True) for k in range(20)]
    for each in gone:
        engine.add_request(each)
    for _ in range(20):
        engine.step()
    for each in gone:
        engine.prioritize(each.id, LOWEST_PRIORITY)
    n_steps, events = steps_to_end(engine, request("s", max_tokens=5, ignore_eos=True))
    assert n_steps <= 8
    assert not any(isinstance(event, StreamEvent) and event.request_id == gone[0].id for event in events[2:])
    engine.prioritize(gone[7].id, 0)  # its reader comes back
    ends = [event.request_id for event in run(engine) if isinstance(event, DoneEvent)]
    assert ends[0] == gone[7].id
    assert sorted(ends) == sorted(each.id for each in gone)
    assert backend.cells == 0


@pytest.mark.parametrize("is_unified", [True, False])
def test_many_small_requests_beside_a_large_one_have_their_share_from_their_first_step_on(is_unified: bool) -> None:
    backend = FakeBackend(n_cells=4000, n_parallel=32)
    engine = Engine(backend) if is_unified else in_streams(backend)
    large = request("large", n=32, max_tokens=40, ignore_eos=True)
    small = [request(f"{k}", max_tokens=20, ignore_eos=True) for k in range(64)]
    engine.add_request(large)
    for _ in range(5):
        engine.step()
    for each in small:
        engine.add_request(each)
    began, ended, step = dict[str, int](), dict[str, int](), 0
    while engine.has_work:
        step += 1
        for event in engine.step():
            if isinstance(event, StreamEvent):
                began.setdefault(event.request_id, step)
            elif isinstance(event, DoneEvent):
                ended[event.request_id] = step
    taken = [ended[each.id] - began[each.id] for each in small]
    assert max(taken) <= 2 * 20, "a row in every second step at least"
    assert sum(each.id in began and began[each.id] < 20 for each in small) >= 31
    assert set(ended) == {each.id for each in (large, *small)}
    assert backend.cells == 0


def test_the_most_urgent_requests_run_alone() -> None:
    engine = Engine(backend := FakeBackend(n_cells=300, n_parallel=4))
    requests = [
        dataclasses.replace(request(f"{k}" * 40, n=2, max_tokens=10, ignore_eos=True), priority=k) for k in (2, 0, 1, 0)
    ]
    events = run(engine, *requests)
    ends = [event.request_id for event in events if isinstance(event, DoneEvent)]
    assert [requests[k].id for k in (2, 0)] == ends[2:]
    for each in requests:
        assert texts(own(events, each)) == texts(run(Engine(FakeBackend()), dataclasses.replace(each, id="alone")))
    assert backend.cells == 0


def test_an_urgent_request_takes_all_cells_and_one_that_it_shares_a_prompt_with_is_computed_for_it() -> None:
    engine = Engine(backend := FakeBackend(n_cells=200, n_parallel=4, n_batch=8))
    late = dataclasses.replace(request("p" * 100, n=3, max_tokens=20, ignore_eos=True), priority=5)
    engine.add_request(late)
    events = [event for _ in range(4) for event in engine.step()]  # its prompt isn't computed yet
    urgent = [request("p" * 100 + "q", n=2, max_tokens=20, ignore_eos=True), request("r" * 150, max_tokens=40)]
    for each in urgent:
        engine.add_request(each)
    events += run(engine)
    ends = [event.request_id for event in events if isinstance(event, DoneEvent)]
    assert ends[-1] == late.id
    for each in (late, *urgent):
        assert texts(own(events, each)) == texts(run(Engine(FakeBackend()), dataclasses.replace(each, id="alone")))
    assert backend.cells == 0
