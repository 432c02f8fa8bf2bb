"""An engine failure is a pause: another engine resumes the requests."""

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from driver import check_order, request, stops, texts
from fake_backend import FakeBackend, Gate, babble
from mixed import ascii_babble
from waiting import until

from srb.engine.backend import Batch
from srb.engine.engine import Engine
from srb.engine.events import ErrorEvent, Event, StopEvent
from srb.engine.kv_cache.allocator import Layout, Load
from srb.engine.kv_cache.cells import Cells
from srb.engine.lora import Adapter
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import BackendError, EngineDeadError, EngineRestartError
from srb.serving.async_engine import AsyncEngine
from srb.serving.event_log import EventLog
from srb.serving.recovery import Recovery
from srb.serving.request_registry import RequestRegistry


class BugError(Exception):
    """What is thrown into the engine."""


@asynccontextmanager
async def engine_on(backend: FakeBackend, **options: Any) -> AsyncIterator[AsyncEngine]:
    """An engine that frees everything."""
    async with AsyncEngine(lambda _progress: backend, **options) as engine:
        yield engine
    assert (backend.open_samplers, backend.open_compiled, backend.closed) == (0, 0, True)
    assert backend.cells == 0 or engine.health.status == "dead"


async def collect(engine: AsyncEngine, each: CompletionRequest) -> list[Event]:
    return [event async for event in engine.generate(each)]


def failing_at(backend: FakeBackend, *decodes: int, error: Exception | None = None) -> threading.Event:
    """Throws an exception in the middle of these decodes, counted from 1. Cleared, the result stops all decodes."""
    goes_on = threading.Event()
    goes_on.set()

    def throw() -> None:
        assert goes_on.wait(10)
        if backend.decodes in decodes:
            raise error or BugError

    backend.on_decode = throw
    return goes_on


async def undisturbed(*requests: CompletionRequest) -> list[list[Event]]:
    async with engine_on(FakeBackend()) as engine:
        return [await collect(engine, each) for each in requests]


def check_same(events: list[Event], expected: list[Event], each: CompletionRequest) -> None:
    check_order(events, each)
    assert texts(events) == texts(expected)
    assert stops(events) == stops(expected)


async def test_texts_resume_after_their_last_token() -> None:
    each = request(n=8, max_tokens=30, ignore_eos=True)
    (expected,) = await undisturbed(each)
    failing_at(backend := FakeBackend(), 1, *range(8, 70, 9))
    async with engine_on(backend) as engine:
        check_same(await collect(engine, each), expected, each)
        assert engine.health.engine_restarts > 6  # some tokens come between any two failures
        assert engine.health.status == "ready"
        assert engine.health.stats
        assert engine.health.stats.last_error == "BugError"


async def test_an_exception_outside_of_a_decode() -> None:
    calls = 0

    class FailsOnce(Engine):
        def step(self) -> list[Event]:
            nonlocal calls
            calls += 1
            events = super().step()
            if calls == 6:
                raise BugError  # the events of this step are lost
            return events

    each = request(n=4, max_tokens=20)
    (expected,) = await undisturbed(each)
    async with engine_on(FakeBackend(), make=FailsOnce) as engine:
        check_same(await collect(engine, each), expected, each)
        assert engine.health.engine_restarts == 1


async def test_an_exception_in_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    put, calls = RequestRegistry.put, 0

    def fail_once(self: RequestRegistry, events: list[Event]) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise BugError
        put(self, events)

    each = request(n=4, max_tokens=20)
    (expected,) = await undisturbed(each)
    monkeypatch.setattr(RequestRegistry, "put", fail_once)
    async with engine_on(FakeBackend()) as engine:
        check_same(await collect(engine, each), expected, each)
        assert engine.health.engine_restarts == 0


def poisonous(script: Callable[[SamplingParams, tuple[int, ...]], int] = babble) -> FakeBackend:
    """A backend whose sampler breaks at the fifth token of an alternative that has the label `poison`."""

    def throw(params: SamplingParams, tokens: tuple[int, ...]) -> int:
        if params.label == "poison" and len(tokens) == 5:
            raise BugError
        return script(params, tokens)

    return FakeBackend(script=throw)


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_request_that_makes_it_fail_twice_ends_alone(place: int) -> None:
    good = [request(n=2, max_tokens=30, ignore_eos=True) for _ in range(2)]
    bad = request(n=2, label="poison", ignore_eos=True)
    expected = await undisturbed(*good)
    async with engine_on(poisonous()) as engine:
        requests = [*good[:place], bad, *good[place:]]
        tasks = {each.id: asyncio.create_task(collect(engine, each)) for each in requests}
        for each, events in zip(good, expected, strict=True):
            check_same(await tasks[each.id], events, each)
        events = await tasks[bad.id]
        check_order(events, bad)
        (error,) = [event.error for event in events if isinstance(event, ErrorEvent)]
        assert (error.code, "BugError" in error.message) == ("engine_failed", True)
        assert {stop.finish_reason for stop in stops(events).values()} == {"error"}
        await until(lambda: engine.health.engine_restarts == 2)  # its end comes before that
        assert engine.health.status == "ready"
        check_order(await collect(engine, other := request()), other)


@pytest.mark.parametrize("error", [OSError(24, "too many open files"), MemoryError()])
async def test_the_machines_limits_are_no_requests_fault(error: Exception) -> None:
    each = request(n=2, max_tokens=10)
    (expected,) = await undisturbed(each)
    failing_at(backend := FakeBackend(), 3, 4, error=error)
    async with engine_on(backend) as engine:
        check_same(await collect(engine, each), expected, each)


class Poisoned(FakeBackend):
    """Fails in a decode, as a bug would, that computes the fourth token of a sequence that begins with an x."""

    def decode(self, batch: Batch, interrupted: Callable[[], bool] | None) -> bool:
        beginnings = {seq_id for seq_id, cells in self.sequences.items() if cells and cells[0].token == ord("x")}
        if any(
            position >= 3 and seq_id in beginnings
            for position, seq_id in zip(batch.positions, batch.seq_ids, strict=True)
        ):
            raise BugError
        return super().decode(batch, interrupted)


@pytest.mark.parametrize("is_named", [True, False])
async def test_a_poisonous_request_ends_and_others_go_on(is_named: bool) -> None:
    """Each is the suspect of two failures, and ends. The engine names it, or it fails while it is resumed alone."""
    backend = poisonous(ascii_babble) if is_named else Poisoned(script=ascii_babble)
    good = request(n=2, max_tokens=200, ignore_eos=True)
    async with engine_on(FakeBackend(script=ascii_babble)) as engine:
        expected = await collect(engine, good)
    async with engine_on(backend) as engine:
        running = asyncio.create_task(collect(engine, good))
        for number in range(1, 4):
            bad = request("x" * number, n=2, label="poison", ignore_eos=True)
            events = await collect(engine, bad)
            check_order(events, bad)
            (error,) = [event.error for event in events if isinstance(event, ErrorEvent)]
            assert error.code == "engine_failed"
            await collect(engine, request())  # the other one may have ended, and an engine that always fails is dead
        check_same(await running, expected, good)
        assert engine.health.engine_restarts == (6 if is_named else 9)
        for _ in range(3):  # nothing is resumed beside it, but others end
            await collect(engine, request("x", label="poison", ignore_eos=True))
            check_order(await collect(engine, each := request()), each)
        assert engine.health.status == "ready"


async def test_a_request_that_makes_it_fail_before_its_start_ends_alone() -> None:
    good, bad = request(n=2, max_tokens=30, ignore_eos=True), request("x" * 77, n=2)
    (expected,) = await undisturbed(good)

    def choose(backend: FakeBackend, loads: Sequence[Load]) -> Layout:
        if any(load.n_tokens == 77 for load in loads):
            raise BugError
        return backend.layout

    async with engine_on(FakeBackend(chooser=choose)) as engine:
        tasks = [asyncio.create_task(collect(engine, each)) for each in (good, bad)]
        check_same(await tasks[0], expected, good)
        check_order(events := await tasks[1], bad, started=False)
        assert [event.error.code for event in events if isinstance(event, ErrorEvent)] == ["engine_failed"]
        await until(lambda: engine.health.engine_restarts == 3)
        assert engine.health.status == "ready"


async def test_unrelated_failures_blame_no_request() -> None:
    """The second one comes while a request is being resumed, which isn't the suspect of the first."""
    requests = [request("p" * k, n=2, max_tokens=30, ignore_eos=True) for k in (9, 4, 6)]
    expected = await undisturbed(*requests)
    failing_at(backend := FakeBackend(), 20, 21)
    async with engine_on(backend) as engine:
        tasks = [asyncio.create_task(collect(engine, each)) for each in requests]
        for each, events, one in zip(requests, await asyncio.gather(*tasks), expected, strict=True):
            check_same(events, one, each)
        assert engine.health.engine_restarts == 2


async def test_failures_without_progress_are_the_end() -> None:
    requests = [request("p" * k, n=2, max_tokens=150, ignore_eos=True) for k in range(1, 4)]
    goes_on = failing_at(backend := FakeBackend(n_cells=1000), *range(30, 100), error=MemoryError())
    goes_on.clear()
    async with engine_on(backend) as engine:
        streams = [await engine.submit(each) for each in requests]
        goes_on.set()
        for each, stream in zip(requests, streams, strict=True):
            events = await stream.collect()
            check_order(events, each)
            (error,) = [event.error for event in events if isinstance(event, ErrorEvent)]
            assert isinstance(error, EngineDeadError)
        assert "MemoryError" in (await engine.died()).message
        assert (engine.health.status, engine.health.engine_restarts) == ("dead", 5)
        with pytest.raises(EngineDeadError):
            await engine.submit(request())


async def test_an_engine_that_cannot_be_restarted_is_dead() -> None:
    class Refusing(FakeBackend):
        def reset(self) -> None:
            raise BackendError("no memory for a context")

    is_taken = threading.Event()

    def fail() -> None:
        if backend.decodes == 3:
            assert is_taken.wait(10)
            raise BugError

    backend = Refusing(on_decode=fail)
    async with engine_on(backend) as engine:
        stream = await engine.submit(each := request(ignore_eos=True))
        is_taken.set()
        check_order([event async for batch in stream for event in batch], each)
        assert "can't be restarted: no memory for a context" in (await engine.died()).message


async def test_a_request_that_a_dying_engine_has_just_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    to_thread, is_decoding, has_it, is_known = asyncio.to_thread, threading.Event(), threading.Event(), asyncio.Event()

    async def slowly(*args: Any) -> Any:
        await to_thread(*args)
        has_it.set()
        await is_known.wait()

    def fail() -> None:
        is_decoding.set()
        assert has_it.wait(10)
        raise BugError

    async with engine_on(FakeBackend(on_decode=fail), max_failures=1) as engine:
        running = await engine.submit(request())
        await to_thread(is_decoding.wait, 10)
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "to_thread", slowly)  # the event loop doesn't know yet that the engine has it
            asking = asyncio.create_task(engine.submit(request()))
            await engine.died()
        is_known.set()
        with pytest.raises(EngineDeadError):
            await asking
        check_order(await running.collect(), running.request)
        assert engine.health.running == engine.health.waiting == 0


async def test_new_requests_wait_and_aborted_ones_end_during_a_restart() -> None:
    gate = Gate(backend := FakeBackend(n_cells=2000))
    gone, late = (request(n=2, max_tokens=12, ignore_eos=True) for _ in range(2))
    running = request(n=2, max_tokens=400, ignore_eos=True)  # it may run some steps before it hears of the abort
    (expected,) = await undisturbed(late)
    async with engine_on(backend) as engine:
        streams = [await engine.submit(each) for each in (running, gone)]
        gate.step(3)
        made = backend.reset

        def reset() -> None:
            made()
            pause.wait(10)

        pause = threading.Event()
        backend.reset = reset  # type: ignore[method-assign]
        backend.script = lambda _params, _tokens: 1 // 0
        gate.open()
        await until(lambda: engine.health.status == "restarting")
        backend.script = babble
        asking = asyncio.create_task(collect(engine, late))
        await asyncio.sleep(0)
        assert engine.abort(gone.id)
        assert engine.abort(running.id, 1)
        pause.set()
        check_same(await asking, expected, late)
        ends = [stops(await stream.collect()) for stream in streams]
        assert [stop.finish_reason for stop in ends[1].values()] == ["abort"] * 2
        assert [ends[0][k].finish_reason for k in range(2)] == ["length", "abort"]


async def test_new_requests_do_not_wait_for_those_that_are_paused() -> None:
    gate = Gate(backend := FakeBackend(n_cells=2000))
    async with engine_on(backend) as engine:
        urgent = await engine.submit(request(max_tokens=1000, ignore_eos=True))
        paused = await engine.submit(dataclasses.replace(request("paused", max_tokens=9, ignore_eos=True), priority=1))
        left = await engine.submit(request("left", max_tokens=9, ignore_eos=True), linger=60)
        left.close()
        await until(lambda: gate.holds)
        backend.script = lambda _params, _tokens: 1 // 0
        gate.step()
        await until(lambda: engine.health.engine_restarts == 1)
        backend.script = babble
        asking = asyncio.create_task(collect(engine, new := request(max_tokens=1)))
        while not asking.done():
            gate.step()
            await until(lambda: gate.holds or asking.done())
        check_order(asking.result(), new)
        assert len(urgent.event_log) < 30
        gate.open()
        back = engine.read(left.event_log)
        for stream in (urgent, paused, back):
            check_order(await stream.collect(), stream.request)


async def test_it_stops_while_requests_resume() -> None:
    asked, gate = threading.Event(), threading.Event()

    def throw() -> None:
        assert asked.wait(10)
        if backend.decodes == 4:
            raise BugError
        assert backend.decodes < 4 or gate.wait(10)

    backend = FakeBackend(on_decode=throw)
    async with engine_on(backend) as engine:
        streams = [await engine.submit(request(n=2, max_tokens=60, ignore_eos=True)) for _ in range(4)]
        asked.set()
        await until(lambda: engine.health.engine_restarts == 1 and backend.decodes == 5)
        stopping = asyncio.create_task(engine.stop())
        await until(lambda: engine.health.status == "stopping")
        gate.set()
        await stopping
    for stream in streams:
        events = [event async for batch in stream for event in batch]
        assert {event.finish_reason for event in events if isinstance(event, StopEvent)} == {"abort"}


async def test_events_have_the_same_ids_as_without_a_failure() -> None:
    each = request(n=2, max_tokens=9, ignore_eos=True)
    failing_at(failing := FakeBackend(), 3)
    told = []
    for backend in (FakeBackend(), failing):
        async with engine_on(backend) as engine:
            stream = await engine.submit(each)
            events: list[tuple[int, Event]] = []
            while not stream.at_end:
                events += await stream.numbered()
            told.append([(number, type(event)) for number, event in events])
    assert told[0] == told[1]


async def test_the_successor_has_the_counts_and_the_scales_of_its_predecessor() -> None:
    failing_at(backend := FakeBackend(adapters=(Adapter("one", "one.gguf", "1"),)), 12)
    async with engine_on(backend) as engine:
        engine.adapters.set_scales(((0, 0.5),))
        await collect(engine, request(max_tokens=8, ignore_eos=True))
        await collect(engine, request(max_tokens=8, ignore_eos=True))
        assert engine.health.engine_restarts == 1
        assert [adapter.scale for adapter in engine.adapters.listed] == [0.5]
        assert engine.health.stats
        assert engine.health.stats.tokens_generated >= 16


@pytest.mark.parametrize("place", ["in the middle of a swap-out", "swapped out", "in the middle of a swap-in"])
@pytest.mark.parametrize("use", ["preemption", "change of the layout"])
async def test_an_engine_that_is_lost_while_sequences_are_swapped(
    use: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [request("p" * 30, n=4, max_tokens=40, ignore_eos=True), request("q" * 20, max_tokens=50)]
    expected = await undisturbed(*requests)
    backend = FakeBackend(n_cells=400 if use == "change of the layout" else 140)
    if use == "change of the layout":
        unified, streams = backend.layout, Layout(False, 128, 8)
        backend.chooser = lambda backend, _loads: streams if backend.decodes > 10 else unified
    names = {"in the middle of a swap-out": "_save", "swapped out": "preempt", "in the middle of a swap-in": "_swap_in"}
    name = "lay_out" if (use, place) == ("change of the layout", "swapped out") else names[place]
    whole = getattr(Cells, name)

    def lose_once(*args: Any, **kwargs: Any) -> None:
        whole(*args, **kwargs)
        monkeypatch.undo()
        raise BugError

    monkeypatch.setattr(Cells, name, lose_once)
    gate = Gate(backend)  # both run at the same time: else one may end when there is nothing to swap
    async with engine_on(backend, make=lambda made: Engine(made, cache_bytes=10**6)) as engine:
        readers = [await engine.submit(each) for each in requests]
        gate.open()
        for each, reader, one in zip(requests, readers, expected, strict=True):
            check_same(await reader.collect(), one, each)
        assert engine.health.engine_restarts == 1
        await until(lambda: engine.health.stats is not None and engine.health.stats.cells == 0)


async def test_a_new_request_waits_again_if_the_next_engine_fails_at_once() -> None:
    given: list[str] = []
    is_failed = True

    async def add(each: CompletionRequest) -> None:
        if is_failed:
            raise EngineRestartError("it has failed")
        given.append(each.id)

    registry = RequestRegistry(lambda *_: None)
    recovery = Recovery(registry, add, registry.put)
    recovery.interrupt(BugError(), None)
    registry.add(EventLog(each := request(n=1)), 0)
    taking = asyncio.create_task(recovery.take(each))
    await asyncio.sleep(0)
    recovery.resume()
    await asyncio.sleep(0)  # the waiting task is woken, and hasn't run yet
    recovery.interrupt(BugError(), None)
    await asyncio.sleep(0)
    is_failed = False
    recovery.resume()
    await taking
    assert given == [each.id]
