"""Preemption and changes of the layout: texts are what they would be alone, and everything is given back."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
from driver import check_order, own, request, run, stops, texts
from fake_backend import IN_STEP, FakeBackend

from srb.engine.backend import TRY_AGAIN_SECONDS
from srb.engine.engine import Engine
from srb.engine.events import DoneEvent, ErrorEvent, Event, StartEvent, StopEvent
from srb.engine.kv_cache.allocator import Layout, Load
from srb.engine.request import CompletionRequest
from srb.errors import InvalidRequestError

STORY = "there was a king who had a daughter, and she had a golden ball; " * 3
STREAMS = Layout(False, 128, 6)


def alone(each: CompletionRequest, window: int | None = None) -> dict[int, str]:
    """What a request says that has a large cache to itself."""
    return texts(run(Engine(FakeBackend(n_cells=4000, window=window)), dataclasses.replace(each, id="alone")))


def assert_empty(engine: Engine, backend: FakeBackend) -> None:
    """Checks that nothing is allocated, set aside or open."""
    assert backend.cells == 0
    assert (engine.stats().cells, engine._allocator.free_seqs) == (0, backend.layout.n_seqs)
    assert engine._states.n_set_aside == 0
    assert (backend.open_samplers, backend.open_compiled) == (0, 0)
    rollback = vars(engine._parts.rollback)
    assert not any(isinstance(each, dict) and each for each in rollback.values()), "no logits are kept"


@pytest.mark.parametrize("cache_bytes", [0, 10**6])
@pytest.mark.parametrize("window", [None, 0, 8])
def test_all_alternatives_begin_at_once_and_the_youngest_are_preempted(window: int | None, cache_bytes: int) -> None:
    backend = FakeBackend(n_cells=200, window=window)
    engine = Engine(backend, cache_bytes=cache_bytes)
    engine.add_request(each := request(STORY[:60], n=8, max_tokens=60, ignore_eos=True))
    events = [*engine.step(), *engine.step()]
    assert engine.stats().sequences == 8
    events += run(engine)
    assert engine.stats().preemptions > 0
    assert texts(events) == alone(each, window)
    first = next(event.index for event in events if isinstance(event, StopEvent))
    assert first == 0, "the oldest is never preempted"
    assert_empty(engine, backend)


def test_what_can_not_be_swapped_in_is_computed_again() -> None:
    """What has finished waits with its cells until it is cached, but not if nothing else has any."""
    backend = FakeBackend(n_cells=200)
    restore, refused = backend.restore, list[int]()
    save, ticks = backend.save, itertools.count()

    def save_slowly(seq_id: int, start: int, end: int, max_bytes: int) -> bytearray | None:
        assert all(next(ticks) for _ in range(100))
        return save(seq_id, start, end, max_bytes)

    def refuse_once(state: Any, seq_id: int, start: int, end: int) -> bool:
        if start and not refused:
            refused.append(seq_id)
            return False
        return restore(state, seq_id, start, end)

    backend.restore, backend.save = refuse_once, save_slowly  # type: ignore[method-assign]
    engine = Engine(backend, cache_bytes=10**6, clock=lambda: next(ticks) / 10_000)
    events = run(engine, each := request(STORY[:60], n=8, max_tokens=60, ignore_eos=True), steps=200)
    assert refused
    assert texts(events) == alone(each)
    assert_empty(engine, backend)


@pytest.mark.parametrize("window", [0, 8])
def test_a_model_that_forgets_goes_on_from_its_states_alone(window: int) -> None:
    """The prompt's end may be in no sequence any more, so nothing can be computed from there."""
    engine = Engine(backend := FakeBackend(n_cells=200, window=window))
    backend.restore = lambda *_args: False  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="can't be swapped in"):
        run(engine, request(STORY[:60], n=8, max_tokens=60, ignore_eos=True))


def test_a_prompt_that_is_half_computed_again_completes_no_state_for_streams() -> None:
    layout = Layout(True, 130, 16)
    backend = FakeBackend(n_cells=130, n_batch=16, chooser=lambda _backend, _loads: layout)
    engine = Engine(backend, cache_bytes=10**6)
    engine.add_request(each := request(STORY[:60], n=2, max_tokens=60, ignore_eos=True))
    events = [event for _ in range(32) for event in engine.step()]
    engine.add_request(dataclasses.replace(request("u" * 110, max_tokens=3), priority=-1))
    prompt = engine._scheduler.running[each.id].prompts[0]
    with mock.patch.object(backend, "restore", lambda _state, _seq_id, start, _end: start > 0):
        while prompt.n_computed in (0, len(prompt.tokens)):
            events += engine.step()
    layout = STREAMS
    events += run(engine, request("o" * 20, max_tokens=3))
    assert engine.stats().layout_changes > 0
    assert texts(own(events, each)) == alone(each)
    assert_empty(engine, backend)


@pytest.mark.parametrize("number", [1, 2])
def test_where_a_state_can_not_be_completed_for_streams_the_negative_is_computed_again_too(number: int) -> None:
    """Whether it is that of the sequence, or that of its negative."""
    layout = Layout(True, 130, 16)
    backend = FakeBackend(n_cells=130, chooser=lambda _backend, _loads: layout)
    engine = Engine(backend, cache_bytes=10**6)
    engine.add_request(each := request(STORY[:30], max_tokens=20, ignore_eos=True, guidance_scale=2.0))
    events = [event for _ in range(8) for event in engine.step()]
    engine.add_request(dataclasses.replace(request("u" * 110, max_tokens=3), priority=-1))
    while not engine.stats().n_preempted:
        events += engine.step()
    layout, restore, refused = STREAMS, backend.restore, list[int]()

    def refuse_one(state: Any, seq_id: int, start: int, end: int) -> bool:
        refused.extend([seq_id] if start else ())
        return (not start or len(refused) != number) and restore(state, seq_id, start, end)

    with mock.patch.object(backend, "restore", refuse_one):
        events += run(engine, request("o" * 20, max_tokens=3))
    assert len(refused) >= number
    assert texts(own(events, each)) == alone(each)
    assert_empty(engine, backend)


def test_a_prompt_whose_cells_are_in_the_states_of_all_its_alternatives_needs_no_stream() -> None:
    layout = Layout(True, 200, 16)
    backend = FakeBackend(n_cells=200, chooser=lambda _backend, _loads: layout)
    engine = Engine(backend, cache_bytes=10**6)
    engine.add_request(each := request(STORY[:60], n=4, max_tokens=20, ignore_eos=True))
    events = [event for _ in range(8) for event in engine.step()]
    engine.abort(each.id, 3)
    engine.add_request(urgent := dataclasses.replace(request("u" * 180, max_tokens=3), priority=-1))
    while engine.stats().n_preempted < 3:
        events += engine.step()
    layout = Layout(False, 200, 3)
    while not stops(own(events, urgent)):
        events += engine.step()
    events += [*engine.step(), *engine.step()]
    assert (engine.stats().layout, engine.stats().sequences) == ("streams", 3)
    events += run(engine)
    assert {k: text for k, text in texts(own(events, each)).items() if k < 3} == {k: alone(each)[k] for k in range(3)}
    assert_empty(engine, backend)


def test_what_never_fits_is_refused_and_the_rest_goes_on() -> None:
    backend = FakeBackend(n_cells=256)
    backend.prepare(Layout(False, 32, 16))  # and there is no memory for another one
    engine = Engine(backend)
    small, large, growing = (request(text, n=2, max_tokens=40, ignore_eos=True) for text in ("s", "l" * 50, "g" * 20))
    small = dataclasses.replace(small, branches=request(n=2, max_tokens=9).branches)
    events = run(engine, growing, large, small)
    assert texts(own(events, small)) == alone(small)
    for each in (large, growing):
        check_order(own(events, each), each, started=each is growing)
        (error,) = [event.error for event in own(events, each) if isinstance(event, ErrorEvent)]
        assert error.status == 503
    said = texts(own(events, growing))
    assert [stop.length for stop in stops(own(events, growing)).values()] == [13, 13], "they fill their streams"
    assert all(alone(growing)[index].startswith(said[index][:-1]) for index in said)
    assert_empty(engine, backend)


@pytest.mark.parametrize("forced", [lambda _params, _tokens: (), lambda _params, _tokens: (0,) * 6])
def test_a_negative_sequence_that_fills_its_stream_takes_its_positive_along(forced: Any) -> None:
    backend = FakeBackend(n_cells=256, forced=forced, costs=dataclasses.replace(IN_STEP, step=100.0))
    backend.prepare(Layout(False, 32, 16))  # and there is no memory for another one
    engine = Engine(backend)
    guided: dict[str, Any] = {"guidance_scale": 2.0, "negative_prompt": "n" * 26, "grammar": "g"}
    events = run(engine, each := request("g" * 20, max_tokens=40, ignore_eos=True, **guided))
    (error,) = [event.error for event in own(events, each) if isinstance(event, ErrorEvent)]
    assert error.status == 503
    assert stops(events)[0].length == 7, "it fills the stream of the negative sequence"
    assert_empty(engine, backend)


def test_a_layout_without_memory_is_tried_again_while_a_request_waits() -> None:
    now, backend = 0.0, FakeBackend(n_cells=256)
    backend.prepare(streams := Layout(False, 32, 16))
    larger, is_free = Layout(False, 128, 16), False
    backend.has_memory = lambda _layout: is_free
    refused = [0.0]

    def choose(backend: FakeBackend, loads: Sequence[Load]) -> Layout:
        fits = all(load.n_tokens + load.n_generated < streams.n_cells for load in loads)
        if fits or now < refused[0]:
            return backend.layout
        refused[0] = now + TRY_AGAIN_SECONDS
        return larger

    backend.chooser = choose
    engine = Engine(backend, clock=lambda: now)
    long, waiting = request("p", max_tokens=30, ignore_eos=True), request("w" * 50, max_tokens=5, ignore_eos=True)
    for each in (long, waiting):
        engine.add_request(each)
    events = [event for _ in range(10) for event in engine.step()]
    is_free = True
    now += TRY_AGAIN_SECONDS + 1
    events += run(engine)
    turns = [event.request_id for event in events if isinstance(event, StartEvent | DoneEvent)]
    assert turns == [long.id, waiting.id, long.id, waiting.id]
    assert [texts(own(events, each)) for each in (long, waiting)] == [alone(long), alone(waiting)]


@pytest.mark.parametrize(
    ("param", "fields"), [("search", {"search": "beam"}), ("suffix", {"suffix": (1,)})], ids=["search", "suffix"]
)
def test_what_takes_a_unified_cache_is_refused_where_there_is_none(param: str, fields: dict[str, Any]) -> None:
    engine = Engine(FakeBackend(can_unify=False))
    with pytest.raises(InvalidRequestError, match="needs a unified KV cache; start the server without") as error:
        engine.add_request(dataclasses.replace(request(max_tokens=5), **fields))
    assert error.value.param == param


def test_guides_have_cells_for_the_tokens_ahead_of_their_sequences() -> None:
    backend = FakeBackend(
        n_cells=120,
        script=lambda params, _tokens: 97 + params.seed,
        forced=lambda params, _tokens: (97 + params.seed,) * 15,
        costs=dataclasses.replace(IN_STEP, step=100.0),
    )
    engine = Engine(backend)
    events = run(engine, request("p" * 20, n=3, max_tokens=30, ignore_eos=True, guidance_scale=2.0, grammar="g"))
    assert backend.decodes < 30
    assert texts(events) == {k: chr(97 + k) * 30 for k in range(3)}
    assert_empty(engine, backend)


@pytest.mark.parametrize("window", [None, 0, 8])
def test_a_prompt_that_its_last_sequence_has_taken_along_is_not_shared(window: int | None) -> None:
    """If the model forgets, the sequence can't be forked at the end of the prompt any more."""
    engine = Engine(backend := FakeBackend(n_cells=120, window=window, max_seqs=3), cache_bytes=10**4)
    old, young, last = (request(text, max_tokens=50, ignore_eos=True) for text in ("o" * 30, STORY[:30], STORY[:35]))
    engine.add_request(old)
    engine.add_request(young)
    events: list[Event] = []
    while not engine.stats().n_preempted:
        events += engine.step()
    while engine.stats().n_preempted:
        events += engine.step()
    events += [*engine.step(), *run(engine, last)]
    for each in (old, young, last):
        assert texts(own(events, each)) == alone(each, window)
    assert_empty(engine, backend)


def test_what_a_text_still_computes_again_is_not_shared() -> None:
    """Others waited for it, and for ever if it was aborted meanwhile."""
    backend = FakeBackend(n_cells=160, script=lambda _params, _tokens: 65)
    engine = Engine(backend)
    lasting = dataclasses.replace(request("p" * 40, max_tokens=100, ignore_eos=True), priority=1)
    engine.add_request(lasting)
    while engine.stats().tokens_generated < 40:
        engine.step()
    engine.add_request(request("u" * 90, max_tokens=3, ignore_eos=True))
    while not any(isinstance(event, DoneEvent) for event in engine.step()):
        pass
    for _ in range(4):
        engine.step()  # it has been preempted without a state, and computes its tokens one by one
    assert engine.stats().preemptions == 1
    other = dataclasses.replace(request("p" * 40 + "A" * 30, max_tokens=2, ignore_eos=True), priority=1)
    engine.add_request(other)
    for _ in range(2):
        engine.step()
    engine.abort(lasting.id)
    assert texts(run(engine)) == {0: "AA"}
    assert_empty(engine, backend)


def test_a_search_that_urgent_requests_preempt_keeps_the_layout_that_it_needs() -> None:
    def choose(backend: FakeBackend, loads: Sequence[Load]) -> Layout:
        return Layout(True, 300, 16) if any(load.needs_unified for load in loads) else STREAMS

    backend = FakeBackend(n_cells=300, n_parallel=6, chooser=choose)
    engine = Engine(backend, cache_bytes=10**6)
    search = dataclasses.replace(request("p" * 40, n=6, max_tokens=20), search="beam", priority=1)
    engine.add_request(search)
    events = [event for _ in range(8) for event in engine.step()]
    others = [request(letter * 40, max_tokens=5, ignore_eos=True) for letter in "qrst"]
    events += run(engine, *others)
    for each in (search, *others):
        assert texts(own(events, each)) == alone(each)
    assert_empty(engine, backend)


@pytest.mark.parametrize("n_steps", [20, 21, 22, 50])
@pytest.mark.parametrize("aborted", [None, 0])
def test_alternatives_that_shift_their_context_go_on_together(n_steps: int, aborted: int | None) -> None:
    """The first of them has taken their prompt along, and leaves it to the other one if it is aborted."""

    def small() -> FakeBackend:
        return FakeBackend(n_cells=80, shifts=True)

    engine = Engine(backend := small())
    shifting = request(STORY[:40], n=2, max_tokens=90, ignore_eos=True)
    engine.add_request(each := dataclasses.replace(shifting, context_shift=True, n_keep=10, n_discard=4))
    events = [event for _ in range(n_steps) for event in engine.step()]
    engine.add_request(urgent := dataclasses.replace(request("u" * 70, max_tokens=3), priority=-1))
    events += [event for _ in range(2) for event in engine.step()]
    assert engine.stats().n_preempted == 2
    if aborted is not None:
        engine.abort(each.id, aborted)
    events += run(engine)
    assert texts(own(events, urgent)) == alone(urgent)
    assert texts(own(events, each))[1] == texts(run(Engine(small()), dataclasses.replace(each, id="alone")))[1]
    assert stops(own(events, each))[1].finish_reason == "length"
    assert_empty(engine, backend)
