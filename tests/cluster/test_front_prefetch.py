"""Alternatives that are prefetched on replicas: they delay no request, of any server."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from driver import check_order, request, run, texts
from fake_backend import FakeBackend, babble
from replicas_here import Gated, ReplicasHere, cluster, collect
from waiting import until

from srb.cluster.cluster_engine import ClusterEngine
from srb.cluster.replica import Report
from srb.engine.engine import Engine
from srb.engine.events import DoneEvent, Event
from srb.engine.request import CompletionRequest


def swipe(n: int = 1, *, ahead: int = 2, prompt: str = "p", **params: Any) -> CompletionRequest:
    """A request of a reader who asks again. The first one has the seed 0."""
    return replace(request(prompt, n, **{"max_tokens": 12, "ignore_eos": True} | params), ahead=ahead, any_seed=True)


def text_of(seed: int) -> str:
    alone = request(seed=seed, max_tokens=12, ignore_eos=True)
    return texts(run(Engine(FakeBackend(script=babble)), alone)).get(0, "")


def prefetched(engine: ClusterEngine, n_tokens: int) -> Callable[[], bool]:
    return lambda: engine.prefetcher.n_tokens == n_tokens and not engine.prefetcher.is_running


def babbling() -> FakeBackend:
    return FakeBackend(script=babble)


async def until_it_runs(gated: Gated, engine: ClusterEngine) -> None:
    """Lets the replicas continue until something was prefetched, and one stops before the next decode."""
    while not engine.prefetcher.n_tokens:
        for gate in gated.gates:
            if gate.holds:
                gate.step()
        await asyncio.sleep(0)
    await until(lambda: any(gate.holds for gate in gated.gates))


async def test_the_next_swipes_are_there() -> None:
    recorded: list[Event] = []

    def record(events: list[Event], told: Callable[[], object]) -> None:
        recorded.extend(events)
        told()

    async with cluster(babbling, record=record) as (engine, replicas):
        await collect(engine, first := swipe())
        await until(prefetched(engine, 24))
        assert {event.request_id for event in recorded} == {first.id}
        assert [each.ahead for _, each in replicas.ran] == [0, 0]  # no replica prefetches by itself
        for seed in (1, 2):
            each, said = engine.prefetcher.take(swipe(seed=99))
            assert isinstance(said[-1], DoneEvent)
            check_order([*said], each)
            assert texts([*said]) == {0: text_of(seed)}
        assert engine.prefetcher.n_taken == 2


async def test_more_than_a_replica_has_room_for() -> None:
    async with cluster(babbling) as (engine, _replicas):
        await collect(engine, swipe(ahead=16))
        await until(lambda: bool(engine.prefetcher.n_tokens) and not engine.prefetcher.is_running)
        events = await collect(engine, each := swipe(16, ahead=0))
        assert engine.prefetcher.n_taken == 16
    check_order(events, each)
    assert texts(events) == {k: text_of(1 + k) for k in range(16)}


async def test_a_request_of_another_server_runs_with_the_next_step() -> None:
    async with cluster(gated := Gated(script=babble), names="a") as (engine, replicas):
        first = asyncio.create_task(collect(engine, swipe(ahead=3)))
        await until_it_runs(gated, engine)
        await first
        (gate,) = gated.gates
        report = await replicas.there["a"].report("front")
        assert (report.load, report.running, report.waiting) == (0, 0, 0)
        assert report.stats.cells > 0
        stream = replicas.there["a"].run(other := request("other", max_tokens=5), front="another")
        said = [await anext(stream)]
        while not (await replicas.there["a"].report("front")).running:
            gate.step()
            said.append(await anext(stream))
        gate.open()
        said += [each async for each in stream]
        events = [event for each in said if isinstance(each, list) for event in each]
        assert texts(events) == texts(run(Engine(FakeBackend(script=babble)), other))
        await until(prefetched(engine, 36))  # its tokens stayed
        assert [texts(await collect(engine, swipe(ahead=0)))[0] for _ in range(3)] == [text_of(k) for k in (1, 2, 3)]


async def two_rounds(replicas: ReplicasHere) -> None:
    """Waits until all replicas were asked for a report twice."""
    reports, rounds = replicas.reports, []

    async def count() -> list[Report]:
        rounds.append(found := await reports())
        return found

    with patch.object(replicas, "reports", count):
        await until(lambda: len(rounds) > 2)


async def test_it_changes_nothing_in_where_others_go() -> None:
    async with cluster(gated := Gated(script=babble)) as (engine, replicas):
        replicas.is_silent = True  # a report of the first one's load that comes late would send what follows elsewhere
        first = asyncio.create_task(collect(engine, swipe(prompt="p" * 200)))
        await until_it_runs(gated, engine)
        await first
        replicas.is_silent = False
        await two_rounds(replicas)
        assert {engine.placement.load(name) for name in "ab"} == {0}
        gated.open()
        await two_rounds(replicas)  # a replica that stands can't list its prompts
        await collect(engine, request("p" * 200, max_tokens=5))
        assert len({name for name, _ in replicas.ran}) == 1  # the one that knows the prompt


async def test_it_outlives_its_replica() -> None:
    async with cluster(gated := Gated(script=babble)) as (engine, replicas):
        first = asyncio.create_task(collect(engine, swipe()))
        await until_it_runs(gated, engine)
        await first
        name, _ = replicas.ran[-1]
        gated.open()
        await replicas.kill(name)
        await until(prefetched(engine, 24))
        assert replicas.ran[-1][0] != name
        assert [texts(await collect(engine, swipe(ahead=0)))[0] for _ in range(2)] == [text_of(1), text_of(2)]
