"""Alternatives that an idle engine prefetches, on the fake backend."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from driver import check_order, request, run, stops, texts, tokens_of
from fake_backend import FakeBackend, Gate, babble
from waiting import until

from srb.engine.engine import Engine
from srb.engine.events import DoneEvent, Event, StartEvent, StopEvent
from srb.engine.lora import Adapter
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import MAX_SEED, SamplingParams
from srb.errors import InvalidRequestError, QueueFullError
from srb.serving.async_engine import AsyncEngine
from srb.serving.event_log import EventLog
from srb.serving.prefetch import MOST_REQUESTS, Prefetcher


def swipe(n: int = 1, *, ahead: int = 2, any_seed: bool = True, prompt: str = "p", **params: Any) -> CompletionRequest:
    """A request of a reader who asks again. The first one has the seed 0."""
    return replace(request(prompt, n, **{"max_tokens": 12} | params), ahead=ahead, any_seed=any_seed)


def engine_on(backend: FakeBackend, **options: Any) -> AsyncEngine:
    return AsyncEngine(lambda _progress: backend, **options)


async def collect(engine: AsyncEngine, each: CompletionRequest, owner: str | None = None) -> list[Event]:
    """The events of a request, as the server asks for them."""
    each, said = engine.prefetcher.take(each, owner)
    async with await engine.submit(each, event_log=EventLog(each, owner=owner), prefetched=said) as stream:
        events = await stream.collect()
    check_order(events, each)
    return events


async def prefetched(engine: AsyncEngine, backend: FakeBackend) -> None:
    """Waits until everything is prefetched, and the engine is idle."""
    ahead = engine.prefetcher
    await until(lambda: not ahead.is_running and backend.cells == 0)


def start_of(events: list[Event]) -> StartEvent:
    start = events[0]
    assert isinstance(start, StartEvent)
    return start


def seed_of(events: list[Event]) -> int:
    return start_of(events).seeds[0]


def text_of(seed: int, **params: Any) -> str:
    """The text of a seed that is asked for directly."""
    return text(alone(seed, **params))


def alone(seed: int, **params: Any) -> list[Event]:
    return run(Engine(FakeBackend(script=babble)), request(seed=seed, **{"max_tokens": 12} | params))


def text(events: Sequence[Event]) -> str:
    """The text of the first alternative, which may have ended with its first token."""
    return texts([*events]).get(0, "")


async def test_a_program_gets_them_too() -> None:
    async with engine_on(backend := FakeBackend(script=babble)) as engine:
        for seed in range(3):
            events = [event async for event in engine.generate(swipe())]
            assert (seed_of(events), text(events)) == (seed, text_of(seed))
            await prefetched(engine, backend)
        assert engine.prefetcher.n_taken == 2


async def test_after_one_was_taken_the_next_are_prefetched() -> None:
    async with engine_on(backend := FakeBackend(script=babble)) as engine:
        for seed in range(6):
            events = await collect(engine, swipe(seed=99))
            if seed == 0:
                first = seed_of(events)
                assert first == 99
            assert text(events) == text_of(first + seed)
            await prefetched(engine, backend)
        assert engine.prefetcher.n_taken == 5
        assert engine.health.stats
        ahead = [len(tokens_of(alone(99 + k), 0)) for k in range(1, 8)]
        assert engine.prefetcher.n_tokens == sum(ahead)


async def test_without_the_field_nothing_is_prefetched() -> None:
    async with engine_on(backend := FakeBackend(script=babble)) as engine:
        await collect(engine, swipe(ahead=0))
        await collect(engine, swipe(ahead=0, prompt="q"))
        n = backend.decodes
        await prefetched(engine, backend)
        assert (await engine.ask(-1, lambda _slots: backend.decodes)) == n
        assert engine.prefetcher.n_tokens == 0


@pytest.mark.parametrize(
    "other",
    [
        swipe(temperature=0.1),
        swipe(prompt="q"),
        swipe(max_tokens=13),
        swipe(seed=7, any_seed=False),
        replace(swipe(), logprobs=1),
        replace(swipe(), shared_within="another"),
        CompletionRequest(((112,),), (SamplingParams(max_tokens=12, seed=1), SamplingParams(max_tokens=9, seed=2))),
    ],
    ids=["temperature", "prompt", "max_tokens", "seed", "logprobs", "within", "branches"],
)
async def test_another_request_gets_none(other: CompletionRequest) -> None:
    async with engine_on(backend := FakeBackend(script=babble)) as engine:
        await collect(engine, swipe())
        await prefetched(engine, backend)
        assert engine.prefetcher.take(other) == (other, [])
        assert engine.prefetcher.take(swipe(seed=1, any_seed=False))[1]


async def test_no_request_gets_alternatives_of_another_key() -> None:
    async with engine_on(backend := FakeBackend(script=babble)) as engine:
        await collect(engine, swipe(), "one")
        await prefetched(engine, backend)
        assert not engine.prefetcher.take(swipe(), "other")[1]
        assert not engine.prefetcher.take(swipe())[1]
        assert engine.prefetcher.take(swipe(), "one")[1]


async def test_several_alternatives_are_taken_and_the_rest_is_sampled() -> None:
    async with engine_on(backend := FakeBackend(script=babble)) as engine:
        await collect(engine, swipe(2))
        await prefetched(engine, backend)
        events = await collect(engine, swipe(5))
        assert [texts(events).get(k, "") for k in range(5)] == [text_of(2 + k) for k in range(5)]
        await prefetched(engine, backend)
        assert text(await collect(engine, swipe())) == text_of(7)


async def test_an_unfinished_alternative_resumes_when_it_is_taken() -> None:
    gate = Gate(backend := FakeBackend(script=babble))
    async with engine_on(backend) as engine:
        task = asyncio.create_task(collect(engine, swipe(ignore_eos=True)))
        await until(lambda: gate.holds)
        ahead = engine.prefetcher
        while not ahead.n_tokens:
            gate.step()
            await until(lambda: gate.holds)
        await task
        assert ahead.is_running
        each, said = engine.prefetcher.take(swipe(ignore_eos=True))
        assert len(text(said)) >= 1
        assert not isinstance(said[-1], DoneEvent)
        stream = await engine.submit(each, event_log=EventLog(each), prefetched=said)
        assert [*await anext(stream)] == [*said]  # while the engine still stands
        gate.open()
        events = [*said, *await stream.collect()]
        check_order(events, each)
        assert text(events) == text_of(1, ignore_eos=True)
        assert stops(events)[0].length == 12
        await prefetched(engine, backend)
        assert text(await collect(engine, swipe(ignore_eos=True))) == text_of(2, ignore_eos=True)


async def until_it_runs(engine: AsyncEngine, gate: Gate) -> Prefetcher:
    """Lets the backend continue until something was prefetched."""
    await until(lambda: gate.holds)
    while not engine.prefetcher.n_tokens:
        gate.step()
        await until(lambda: gate.holds)
    return engine.prefetcher


async def test_a_request_that_comes_meanwhile_runs_with_the_next_step() -> None:
    gate = Gate(backend := FakeBackend(script=babble, n_cells=64))
    async with engine_on(backend) as engine:
        first = asyncio.create_task(collect(engine, swipe(ahead=3, ignore_eos=True)))
        ahead = await until_it_runs(engine, gate)
        await first
        assert engine.health.stats
        assert engine.health.stats.cells > 0
        n = backend.decodes
        other = await engine.submit(request("other", n=4, max_tokens=12, ignore_eos=True))
        n_tokens = ahead.n_tokens
        assert (engine.health.running, engine.health.waiting) == (0, 1)
        gate.step()
        await anext(other)
        await until(lambda: gate.holds)
        assert backend.decodes == n + 1  # in the next one after the one that ran when it came
        assert engine.health.running == 1
        gate.step(8)
        await until(lambda: gate.holds)
        assert ahead.n_tokens <= n_tokens + 3, "it pauses"
        gate.open()
        await other.collect()
        await prefetched(engine, backend)
        assert text(await collect(engine, swipe(ahead=3, ignore_eos=True))) == text_of(1, ignore_eos=True)


async def test_it_resumes_after_a_refused_request() -> None:
    gate = Gate(backend := FakeBackend(script=babble))
    async with engine_on(backend) as engine:
        first = asyncio.create_task(collect(engine, swipe()))
        ahead = await until_it_runs(engine, gate)
        await first
        with pytest.raises(InvalidRequestError):
            await engine.submit(request(max_tokens=10_000))
        engine.max_queue = 0
        with pytest.raises(QueueFullError):
            await engine.submit(request())
        gate.open()
        await until(lambda: ahead.n_tokens == sum(len(tokens_of(alone(k), 0)) for k in (1, 2)))


async def test_it_is_nowhere_to_be_seen() -> None:
    recorded: list[Event] = []

    def record(events: list[Event], told: Callable[[], object]) -> None:
        recorded.extend(events)
        told()

    gate = Gate(backend := FakeBackend(script=babble))
    async with engine_on(backend, record=record) as engine:
        first = asyncio.create_task(collect(engine, each := swipe(ignore_eos=True)))
        await until_it_runs(engine, gate)
        await first
        assert not engine.requests
        assert (engine.health.running, engine.health.waiting) == (0, 0)
        gate.open()
        await prefetched(engine, backend)
        assert {event.request_id for event in recorded} == {each.id}
        again = swipe(ignore_eos=True)
        events = await collect(engine, again)
        assert [event for event in recorded if event.request_id == again.id] == events


async def test_an_end_of_the_server_waits_for_nothing() -> None:
    gate = Gate(backend := FakeBackend(script=babble))
    async with engine_on(backend) as engine:
        first = asyncio.create_task(collect(engine, swipe(ignore_eos=True, max_tokens=100)))
        ahead = engine.prefetcher
        while not ahead.is_running:
            await until(lambda: gate.holds or ahead.is_running)
            gate.step()
            await asyncio.sleep(0)
        await first
        await until(lambda: gate.holds)
        gate.open()
    assert ahead.n_tokens < 190


@pytest.mark.parametrize("index", [None, 0])
async def test_a_request_that_was_ended_early_has_no_next_one_but_its_alternatives_have(index: int | None) -> None:
    """The page ends each alternative at the end of a sentence."""
    gate = Gate(backend := FakeBackend(script=babble))
    async with engine_on(backend) as engine:
        first = asyncio.create_task(collect(engine, each := swipe(ignore_eos=True)))
        gate.step()
        await until(lambda: gate.holds and engine.health.running == 1)  # else it would be told of the end too late
        engine.abort(each.id, index)
        gate.open()
        assert stops(await first)[0].finish_reason == "abort"
        await prefetched(engine, backend)
        found = engine.prefetcher.take(swipe(ignore_eos=True))[1]
        assert text(found) == ("" if index is None else text_of(1, ignore_eos=True))


async def test_other_scales_of_adapters_give_other_texts() -> None:
    backend = FakeBackend(script=babble, adapters=(Adapter("a", "a.gguf", "a"),))
    async with engine_on(backend) as engine:
        await collect(engine, swipe())
        await prefetched(engine, backend)
        engine.adapters.set_scales((("a", 0.5),))
        assert not engine.prefetcher.take(swipe())[1]
        engine.adapters.set_scales(())
        engine.adapters.set_scales((("a", 1.0),))
        assert engine.prefetcher.take(swipe())[1]


async def test_the_oldest_make_room() -> None:
    async with engine_on(backend := FakeBackend(script=babble)) as engine:
        for k in range(MOST_REQUESTS + 1):
            await collect(engine, swipe(prompt=chr(97 + k), ahead=1, max_tokens=2))
            await prefetched(engine, backend)
        given = [
            bool(engine.prefetcher.take(swipe(prompt=chr(97 + k), max_tokens=2))[1]) for k in range(MOST_REQUESTS + 1)
        ]
        assert given == [False] + [True] * MOST_REQUESTS


async def test_the_number_of_prefetched_tokens_is_limited() -> None:
    async with engine_on(backend := FakeBackend(script=babble)) as engine:
        engine.prefetcher.max_tokens = 12
        for prompt, n in ("a", 5), ("b", 1), ("c", 1):
            await collect(engine, swipe(prompt=prompt, ahead=n, max_tokens=4, ignore_eos=True))
            await prefetched(engine, backend)
        given = [engine.prefetcher.take(swipe(5, prompt=each, max_tokens=4, ignore_eos=True))[1] for each in "abc"]
        assert [len({event.index for event in said if isinstance(event, StopEvent)}) for said in given] == [0, 1, 1]
        await collect(engine, swipe(prompt="d", ahead=5, max_tokens=4, ignore_eos=True))
        await prefetched(engine, backend)
        _, said = engine.prefetcher.take(swipe(5, prompt="d", max_tokens=4, ignore_eos=True))
        assert len({event.index for event in said if isinstance(event, StopEvent)}) == 3


async def test_what_an_engine_was_prefetching_when_it_failed_is_forgotten() -> None:
    gate = Gate(backend := FakeBackend(script=babble))
    async with engine_on(backend) as engine:
        first = asyncio.create_task(collect(engine, swipe(ignore_eos=True)))
        await until_it_runs(engine, gate)
        await first
        backend.script = lambda _params, _tokens: 1 // 0
        gate.open()
        await until(lambda: engine.health.engine_restarts == 1)
        backend.script = babble
        assert not engine.prefetcher.is_running
        assert not engine.prefetcher.take(swipe(ignore_eos=True))[1]
        assert text(await collect(engine, swipe(ignore_eos=True))) == text_of(0, ignore_eos=True)
        await prefetched(engine, backend)
        assert text(engine.prefetcher.take(swipe(ignore_eos=True))[1]) == text_of(1, ignore_eos=True)


async def test_alternatives_that_are_taken_while_the_engine_fails_come_once() -> None:
    told: list[Callable[[], object]] = []
    lock, is_written = threading.Lock(), True

    def record(_events: list[Event], done: Callable[[], object]) -> None:
        with lock:
            told.append(done)
            while is_written and told:
                told.pop(0)()

    def fail() -> None:
        backend.on_decode = lambda: None
        raise ZeroDivisionError

    async with engine_on(backend := FakeBackend(script=babble), record=record) as engine:
        await collect(engine, swipe(ignore_eos=True))
        await prefetched(engine, backend)
        is_written, backend.on_decode = False, fail
        other = await engine.submit(request("other"))
        await until(lambda: len(told) == 2)  # its start, and the failure
        taking = asyncio.create_task(collect(engine, each := swipe(3, ignore_eos=True)))
        await until(lambda: len(told) == 3)  # what was prefetched for it
        for _ in range(2):
            told.pop(0)()
        await until(lambda: len(told) == 2)  # the restart comes after it
        is_written = True
        record([], lambda: None)
        events = await taking
        check_order(events, each)
        assert [texts(events)[k] for k in range(3)] == [text_of(1 + k, ignore_eos=True) for k in range(3)]
        check_order(await other.collect(), other.request)


async def test_seeds_wrap_after_the_last_one() -> None:
    async with engine_on(backend := FakeBackend(script=babble)) as engine:
        await collect(engine, swipe(2, seed=MAX_SEED - 1))
        await prefetched(engine, backend)
        assert text(await collect(engine, swipe(seed=5))) == text_of(0)


@pytest.mark.parametrize("ahead", [1, 3])
async def test_a_prefetched_text_may_fill_the_context(ahead: int) -> None:
    """Prefetched alternatives share the cells, so they may end earlier than a text that has all cells."""
    params: dict[str, Any] = {"max_tokens": -1, "ignore_eos": True}
    async with engine_on(backend := FakeBackend(script=babble, n_cells=64)) as engine:
        await collect(engine, swipe(ahead=ahead, **params))
        await prefetched(engine, backend)
        for seed in range(1, 1 + ahead):
            events = await collect(engine, swipe(ahead=0, **params))
            whole = run(Engine(FakeBackend(script=babble, n_cells=64)), request(seed=seed, **params))
            assert (text(events), stops(events)[0].length) == (text(whole), stops(whole)[0].length)
            assert replace(start_of(events), request_id="", cached_tokens=0) == replace(
                start_of(whole), request_id="", cached_tokens=0
            )
            await prefetched(engine, backend)
