"""The engine's thread and the asyncio side of it, on the fake backend."""

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest
from driver import check_order, request, stops, texts
from fake_backend import FakeBackend, FakeCompiled, Gate, babble, says
from waiting import Clock, until

from srb.engine.engine import Engine
from srb.engine.events import Event
from srb.engine.kv_cache.state_cache import StateCache
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import InvalidRequestError, ModelLoadError, QueueFullError, UnavailableError
from srb.serving.async_engine import AsyncEngine
from srb.serving.event_log import EventLog
from srb.serving.request_registry import RequestRegistry


def engine_on(backend: FakeBackend, **options: Any) -> AsyncEngine:
    return AsyncEngine(lambda _progress: backend, **options)


async def collect(engine: AsyncEngine, each: CompletionRequest) -> list[Event]:
    return [event async for event in engine.generate(each)]


async def test_stats_are_up_to_date_even_if_events_are_recorded_late() -> None:
    """What the engine gives back after the last event is known before that event, and isn't overwritten by it."""
    recorded: list[Callable[[], object]] = []
    async with engine_on(FakeBackend(), record=lambda _events, told: recorded.append(told)) as engine:
        ending = asyncio.create_task(collect(engine, request(max_tokens=2)))
        await until(lambda: engine.health.stats is not None and engine.health.stats.tokens_generated == 2)
        await until(lambda: engine.health.stats is not None and engine.health.stats.cells == 0)
        for told in recorded:
            told()
        await ending
        assert engine.health.stats
        assert engine.health.stats.cells == 0


async def test_an_id_is_used_once_at_a_time() -> None:
    gate = Gate(backend := FakeBackend())
    async with engine_on(backend) as engine, await engine.submit(each := request()):
        with pytest.raises(InvalidRequestError, match="in use"):
            await engine.submit(each)
        gate.open()


@pytest.mark.parametrize("lora", [(), ((7, 1.0),)], ids=["a request", "one that is refused"])
async def test_a_reader_that_is_cancelled_while_it_submits_leaves_nothing(lora: Any) -> None:
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, problem: problems.append(problem))
    async with engine_on(backend := FakeBackend()) as engine:
        task = asyncio.create_task(engine.submit(request(n=4, ignore_eos=True, lora=lora)))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: (engine.health.running, engine.health.waiting) == (0, 0))
        stats = engine.health.stats
        assert stats is not None
        await until(lambda: backend.cells == 0 and backend.open_samplers == 0)
    gc.collect()
    assert problems == []


async def test_an_event_loop_that_ends_while_a_request_is_submitted_reports_no_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, problem: problems.append(problem))
    async with engine_on(FakeBackend()) as engine:
        monkeypatch.setattr(engine, "_take", lambda _request: asyncio.Event().wait())
        before = asyncio.all_tasks()
        submitting = asyncio.create_task(engine.submit(request()))
        for _ in range(2):
            await asyncio.sleep(0)
        for task in asyncio.all_tasks() - before:
            task.cancel()
        await asyncio.wait({submitting})
        await asyncio.sleep(0)
    assert problems == []


async def test_abort_says_whether_there_was_anything_to_abort() -> None:
    gate = Gate(backend := FakeBackend())
    async with engine_on(backend) as engine:
        each = request(n=2, max_tokens=20, ignore_eos=True)
        task = asyncio.create_task(collect(engine, each))
        await until(lambda: engine.health.running == 1)
        assert not engine.abort("cmpl-nobody")
        assert not engine.abort(each.id, 2)
        assert engine.abort(each.id, 1)
        gate.open()
        events = await task
        assert not engine.abort(each.id)
    assert [stops(events)[k].finish_reason for k in range(2)] == ["length", "abort"]


async def test_an_abort_reaches_the_engine_at_once_and_again_when_it_has_taken_the_request() -> None:
    ended: list[tuple[Any, ...]] = []
    registry = RequestRegistry(lambda *abort: ended.append(abort))
    registry.add(EventLog(each := request(n=2)), 0)
    assert registry.abort(each.id, 0)
    assert registry.abort(each.id, 1)
    both = [(each.id, 0, "cancelled"), (each.id, 1, "cancelled")]
    assert ended == both  # the engine may know it already, or not yet
    registry.taken(each.id)
    assert ended == both * 2


class SlowToAdd(FakeBackend):
    """Takes a request only when `taken` is set."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.asked, self.taken = threading.Event(), threading.Event()

    def compile(
        self, branches: tuple[SamplingParams, ...], special_tokens: bool = False, post_sampling_probs: bool = False
    ) -> FakeCompiled:
        self.asked.set()
        assert self.taken.wait(10)
        return super().compile(branches, special_tokens, post_sampling_probs)


async def test_a_request_that_is_aborted_while_the_engine_takes_it_never_runs() -> None:
    async with engine_on(backend := SlowToAdd()) as engine:
        each = request(n=2, max_tokens=20, ignore_eos=True)
        task = asyncio.create_task(collect(engine, each))
        await until(backend.asked.is_set)
        assert engine.abort(each.id, 1)
        assert not engine.abort(each.id, 2)
        assert engine.abort(each.id)
        backend.taken.set()
        check_order(events := await task, each, started=False)
        assert {(stop.finish_reason, stop.length) for stop in stops(events).values()} == {("abort", 0)}
    assert backend.decodes == 0


async def test_stopping_while_the_engine_takes_a_request_ends_that_too() -> None:
    engine = engine_on(backend := SlowToAdd())
    engine.start()
    await engine.ready()
    task = asyncio.create_task(collect(engine, each := request(n=2, max_tokens=20, ignore_eos=True)))
    await until(backend.asked.is_set)
    stopping = asyncio.create_task(engine.stop())
    await until(lambda: engine.health.status == "stopping")
    backend.taken.set()
    check_order(events := await task, each, started=False)
    await stopping
    assert {stop.stop_reason for stop in stops(events).values()} == {"shutdown"}
    assert backend.decodes == 0


async def test_an_engine_that_cannot_be_made_says_so_and_frees_the_model() -> None:
    def make(_backend: object) -> Engine:
        raise ZeroDivisionError("no engine")

    engine = engine_on(backend := FakeBackend(), make=make)
    engine.start()
    async with asyncio.timeout(10):
        with pytest.raises(ZeroDivisionError, match="no engine"):
            await engine.ready()
    assert engine.health.status == "dead"
    await engine.stop()
    assert backend.closed


async def test_progress_is_seen_while_the_model_loads_and_stopping_ends_the_loading() -> None:
    went_on = threading.Event()

    def load(progress: Callable[[float], bool]) -> FakeBackend:
        while progress(0.25):
            went_on.set()
        raise ModelLoadError("cancelled")

    before = threading.enumerate()
    engine = AsyncEngine(load)
    engine.start()
    await asyncio.to_thread(went_on.wait)
    assert (engine.health.status, engine.health.progress) == ("loading", 0.25)
    with pytest.raises(UnavailableError, match="25%"):
        engine.check_ready()
    await engine.stop()
    assert not [each for each in threading.enumerate() if each.name == "srb-engine" and each not in before]


async def test_a_request_whose_client_has_gone_pauses_while_others_run() -> None:
    gate = Gate(backend := FakeBackend(n_cells=1000))
    async with engine_on(backend) as engine:
        left = await engine.submit(request(n=3, max_tokens=60, ignore_eos=True), linger=60)
        gate.step(5)
        await until(lambda: gate.holds)
        left.close()
        other = await engine.submit(request(max_tokens=20, ignore_eos=True))
        gate.step()  # the one that ran when it came
        await until(lambda: gate.holds)
        n_events = len(left.event_log)
        gate.step(19)
        await until(lambda: gate.holds)
        assert len(left.event_log) == n_events
        again = engine.read(left.event_log)  # the client comes back, and both run
        gate.open()
        check_order(await other.collect(), other.request)
        check_order(await again.collect(), left.request)


async def test_stopping_gives_running_requests_their_grace_and_waiting_ones_none() -> None:
    gate = Gate(backend := FakeBackend())
    engine = engine_on(backend)
    engine.start()
    await engine.ready()
    running, waiting = request(n=5, max_tokens=5, ignore_eos=True), request(n=5)
    tasks = [asyncio.create_task(collect(engine, running))]
    await until(lambda: gate.holds)
    tasks.append(asyncio.create_task(collect(engine, waiting)))
    await until(lambda: (engine.health.running, engine.health.waiting) == (1, 1))
    stopping = asyncio.create_task(engine.stop(grace=10))
    await until(lambda: engine.health.status == "stopping")
    with pytest.raises(UnavailableError, match="shutting down"):
        await engine.submit(request())
    gate.open()
    first, second = await asyncio.gather(*tasks)
    await stopping
    assert stops(second)[0].stop_reason == "shutdown"
    assert stops(first)[0].finish_reason == "length"


async def test_stopping_without_grace_ends_everything() -> None:
    slow = threading.Event()

    def script(params: object, tokens: tuple[int, ...]) -> int:
        slow.wait(0.001)
        return 65

    engine = engine_on(FakeBackend(n_cells=100_000, script=script))
    engine.start()
    await engine.ready()
    task = asyncio.create_task(collect(engine, each := request(n=2, max_tokens=40_000)))
    await until(lambda: engine.health.running == 1)
    await engine.stop(grace=0.05)
    events = await task
    check_order(events, each)
    assert {stop.stop_reason for stop in stops(events).values()} == {"shutdown"}


async def test_many_streams_come_and_go_and_leave_nothing() -> None:
    async with engine_on(backend := FakeBackend(script=babble)) as engine:

        async def reader(number: int) -> None:
            each = request(n=1 + number % 4, seed=number, max_tokens=12)
            async for _ in engine.generate(each):
                if number % 3 == 0:
                    return

        await asyncio.gather(*(reader(number) for number in range(60)))
        await until(lambda: backend.cells == 0 and backend.open_samplers == 0)
        stats = engine.health.stats
        assert stats is not None
        await until(lambda: engine.health.stats is not None and engine.health.stats.sequences == 0)


async def test_more_requests_than_may_wait_are_refused() -> None:
    gate = Gate(backend := FakeBackend())
    async with engine_on(backend, max_queue=2) as engine:
        streams = [await engine.submit(request(n=6, max_tokens=4))]
        await until(lambda: gate.holds and engine.health.running == 1)
        streams += [await engine.submit(request(n=6, max_tokens=4)) for _ in range(2)]
        for refuse in (engine.check_queue, lambda: engine.submit(request())):
            with pytest.raises(QueueFullError, match=r"2 requests are waiting, and no more may \(--max-queue\)"):
                await (refuse() or asyncio.sleep(0))
        streams[1].close()  # who has left doesn't wait any more, even before the engine has heard of it
        streams.append(await engine.submit(request()))
        gate.open()
        for stream in (streams[0], *streams[2:]):
            check_order(await stream.collect(), stream.request)
        engine.check_queue()


async def test_collecting_a_request_that_never_started_tells_the_limit() -> None:
    clock = Clock()
    for option in ("queue_timeout", "request_timeout"):
        gate = Gate(backend := FakeBackend())
        async with engine_on(backend, **{option: 30}) as engine, await engine.submit(request(n=6)) as first:
            await until(lambda: gate.holds)  # noqa: B023
            stream = await engine.submit(request(n=6))
            await clock.until(lambda: stream.event_log.refusal is not None, by=10)  # noqa: B023
            gate.open()
            with pytest.raises(UnavailableError, match=f"waited for 30 s, .* --{option.replace('_', '-')} sets"):
                await stream.collect()
            first.close()


async def test_a_request_that_runs_too_long_returns_what_it_has() -> None:
    clock, gate = Clock(), Gate(backend := FakeBackend(n_cells=100_000))
    gate.step(3)
    async with engine_on(backend, request_timeout=30) as engine:
        stream = await engine.submit(each := request(n=2, max_tokens=40_000, ignore_eos=True))
        await until(lambda: gate.holds and bool(stream.event_log.started))
        await clock.forward(31, by=10)
        gate.open()
        check_order(events := await stream.collect(), each)
        assert {(stop.finish_reason, stop.stop_reason) for stop in stops(events).values()} == {("abort", "timeout")}
        assert all(stop.length for stop in stops(events).values())


async def test_the_log_has_a_line_for_each_request_and_nothing_of_its_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "srb")
    backend = FakeBackend(n_cells=1_000_000, script=says(b"private", b"a", prompt=6))
    async with engine_on(backend) as engine:
        await collect(engine, request("secret", n=2, max_tokens=4))
        backend.script = babble
        async for _ in engine.generate(left := request("secret", n=3, max_tokens=300_000, ignore_eos=True)):
            break
        await until(lambda: len(caplog.messages) == 2)
        backend.fail_decodes = {backend.decodes + 1, backend.decodes + 2}
        await collect(engine, request("secret"))
    first, second, third = caplog.messages
    assert first.startswith("event=done id=cmpl-")
    assert " count=2 prompt_tokens=6 cached_tokens=0 generated_tokens=6 queued_ms=" in first
    assert first.endswith(" finish=length:1,stop:1")
    assert f"id={left.id} count=3 " in second
    assert second.endswith(" finish=abort:3 abort=cancelled")
    assert third.endswith(' finish=error:1 error="llama_decode failed with code -3"')
    assert "secret" not in caplog.text
    assert "priv" not in caplog.text


async def test_an_idle_engine_sleeps_until_the_next_request() -> None:
    backend = FakeBackend(script=says(b"text"))
    async with engine_on(backend, sleep_after=0.001) as engine:
        for _ in range(2):
            assert texts(await collect(engine, request())) == {0: "text"}
            await until(lambda: engine.health.is_sleeping)
            assert backend.asleep.is_set()
            assert engine.health.status == "ready"


async def test_questions_about_slots_do_not_keep_an_engine_awake_and_do_not_wake_it() -> None:
    async with engine_on(backend := FakeBackend(script=says(b"text")), sleep_after=0.05) as engine:
        await collect(engine, request())

        async def ask() -> None:
            while True:
                await engine.ask(-1, StateCache.texts)

        asking = asyncio.ensure_future(ask())
        await until(lambda: engine.health.is_sleeping)
        assert backend.asleep.is_set()
        for _ in range(5):
            await engine.ask(-1, StateCache.texts)
            assert engine.health.is_sleeping
        asking.cancel()
        assert texts(await collect(engine, request())) == {0: "text"}
        assert not engine.health.is_sleeping


async def test_a_request_whose_text_is_tokenized_while_the_engine_ends_is_refused() -> None:
    async with AsyncEngine(lambda _progress: FakeBackend()) as engine:
        submitting = asyncio.ensure_future(engine.submit(CompletionRequest(("text",), (SamplingParams(),))))
        await asyncio.sleep(0)
    with pytest.raises(UnavailableError, match="shutting down"):
        await submitting
