"""Requests on replicas that die, hang and come back: what is read is what one engine says."""

import asyncio
import dataclasses
import random
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
from driver import check_order, request, run, seeds, stops, texts
from fake_backend import FakeBackend, Gate, says
from replicas_here import BEAT_SECONDS, FakeVocabulary, Gated, ReplicasHere, cluster, collect, slow
from waiting import Clock, until

from srb.cluster import cluster_engine as front
from srb.cluster import replica
from srb.cluster.cluster_engine import ClusterEngine
from srb.cluster.placement import blocks_of, pack_blocks, unpack_blocks
from srb.cluster.replica import SILENCE_SECONDS
from srb.engine.backend import Backend
from srb.engine.engine import Engine
from srb.engine.events import DoneEvent, ErrorEvent, Event, ProgressEvent, StopEvent
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.engine.score_table import Table
from srb.errors import BackendError, InvalidRequestError, ModelLoadError, NotSupportedError, UnavailableError
from srb.llm import LLM
from srb.serving.async_engine import AsyncEngine
from srb.serving.event_log import EventLog


def alone(each: CompletionRequest) -> dict[int, str]:
    return texts(run(Engine(FakeBackend()), each))


async def test_more_alternatives_than_a_replica_has_room_for_are_spread() -> None:
    async with cluster(slow) as (engine, replicas):
        events = await collect(engine, each := request(n=16, max_tokens=8))
        assert sorted(name for name, _ in replicas.ran) == ["a", "b"]
        assert [part.count for _, part in replicas.ran] == [8, 8]
    check_order(events, each)
    assert texts(events) == alone(each)


async def test_a_table_runs_on_all_replicas_and_outlives_them() -> None:
    table = Table.of([f"context {k} " for k in range(30)], [" one", " another", "?"])
    expected = {(row.context, row.continuation): row for row in LLM(Engine(FakeBackend())).score_table(table)}
    async with cluster(slow) as (engine, replicas):
        rows = []
        async for row in engine.score_table(table):
            rows.append(row)
            if len(rows) == 20:
                await replicas.kill("a")
                await replicas.add("c")
        assert {name for name, _ in replicas.ran} >= {"a", "b"}
    assert {(row.context, row.continuation): row for row in rows} == expected


@pytest.mark.parametrize("seed", seeds(8, first=1))
async def test_alternatives_outlive_their_replicas(seed: int) -> None:
    rng = random.Random(seed)
    async with cluster(slow, names="abc") as (engine, replicas):
        requests = [
            request(["p" * k, "q"][: rng.randint(1, 2)], n=rng.randint(1, 9), max_tokens=30, ignore_eos=True)
            for k in range(1, 7)
        ]
        reading = [asyncio.create_task(collect(engine, each)) for each in requests]
        for name in "ab":  # too few to make a request the cause
            await asyncio.sleep(rng.random() * 0.1)
            await replicas.kill(name)
            await replicas.add(name.upper())
        for each, events in zip(requests, await asyncio.gather(*reading), strict=True):
            check_order(events, each)
            assert not [event for event in events if isinstance(event, ErrorEvent)]
            assert texts(events) == alone(each)
        await until(lambda: not any(replicas.engines[name].requests for name in "ABc"))


async def test_a_replica_that_hangs_is_left() -> None:
    clock = Clock()
    async with cluster(gated := Gated(3)) as (engine, replicas):
        reading = asyncio.create_task(collect(engine, each := request(n=4, max_tokens=40, ignore_eos=True)))
        await until(lambda: bool(replicas.ran) and engine.health.running == 1)
        first = replicas.ran[0][0]
        replicas.cut.add(first)
        gated.open()
        await clock.until(reading.done)
        check_order(events := await reading, each)
        assert texts(events) == alone(each)
        assert [name for name, _ in replicas.ran][1] != first
        await clock.until(lambda: {each.status for each in engine.health.replicas if each.name == first} == {"lost"})
        replicas.cut.clear()
        await until(lambda: {each.status for each in engine.health.replicas} == {"ready"})
        assert texts(await collect(engine, other := request(n=2))) == alone(other)


async def test_with_no_replica_left_requests_wait_for_one() -> None:
    clock = Clock()
    async with cluster(gated := Gated(3), names="a") as (engine, replicas):
        reading = asyncio.create_task(collect(engine, each := request(max_tokens=50, ignore_eos=True)))
        await until(lambda: engine.health.running == 1)
        gated.open()
        await replicas.kill("a")
        late = asyncio.create_task(collect(engine, other := request("q")))
        await clock.forward(front.FORGET_SECONDS + 10, by=2)
        assert not reading.done()
        assert engine.tokenize("ab") == (97, 98)
        await replicas.add("b")
        assert texts(await reading) == alone(each)
        assert texts(await late) == alone(other)


class DiesOfARequest(Engine):
    has_got_one = False

    def add_request(self, request: CompletionRequest) -> None:
        super().add_request(request)
        self.has_got_one = True

    def step(self) -> list[Event]:
        if self.has_got_one:
            raise ValueError("a bug")
        return super().step()


async def test_a_request_that_kills_its_replicas_is_ended() -> None:
    async with cluster(
        lambda: slow(poison="x"), "abcdef", lambda _name, backend: DiesOfARequest(backend), {"max_failures": 1}
    ) as (engine, replicas):
        events = await collect(engine, each := request("x", n=2))
    check_order(events, each, started=False)
    assert {type(event.error) for event in events if isinstance(event, ErrorEvent)} == {BackendError}
    assert len(replicas.ran) == 3


async def test_a_prompt_that_kills_its_replicas_is_ended_however_far_it_is_evaluated() -> None:
    """The replicas say how far they are, which is lost with them."""
    read = threading.Semaphore(0)

    def make() -> FakeBackend:
        backend = FakeBackend(n_cells=1000)

        def die() -> None:
            if backend.decodes == 3:
                # What the two decodes before have brought was read, and isn't lost on its way.
                assert read.acquire(timeout=60)
                assert read.acquire(timeout=60)
                raise ValueError("a bug")

        backend.on_decode = die
        return backend

    each = dataclasses.replace(request("x" * 400, n=2), return_progress=True)
    events = []
    async with cluster(make, names="abcdefgh", engine_options={"max_failures": 1}) as (engine, replicas):
        try:
            async with asyncio.timeout(10):
                async for event in engine.generate(each):
                    events.append(event)
                    if isinstance(event, ProgressEvent):
                        read.release()
        finally:
            read.release(100)
        assert len(replicas.ran) == 3
    check_order(events, each)
    assert {type(event.error) for event in events if isinstance(event, ErrorEvent)} == {BackendError}


async def test_a_request_that_kills_its_replicas_before_they_have_taken_it_is_ended() -> None:
    over, loop = threading.Event(), asyncio.get_running_loop()

    class Deadly(Engine):
        def __init__(self, name: str, backend: Backend) -> None:
            super().__init__(backend)
            self.name = name

        def add_request(self, request: CompletionRequest) -> None:
            loop.call_soon_threadsafe(replicas.dead[self.name].set)
            over.wait(60)
            raise UnavailableError("it is dead")

    async with cluster(slow, names="abcdef", make_engine=Deadly) as (engine, replicas):
        try:
            async with asyncio.timeout(5):
                events = await collect(engine, one := request(n=2))
        finally:
            over.set()
        assert len(replicas.ran) == 3
    check_order(events, one, started=False)
    assert {type(event.error) for event in events if isinstance(event, ErrorEvent)} == {BackendError}


async def test_a_replica_that_cant_use_its_model_leaves_its_requests_to_another_one() -> None:
    backends: list[FakeBackend] = []

    def make() -> FakeBackend:
        backends.append(FakeBackend())
        return backends[-1]

    def fail() -> None:
        raise ModelLoadError("no memory")

    async with cluster(make, names="abcde") as (engine, replicas):
        chosen = engine.placement.choose([blocks_of(request().token_ids[0])])
        good = next(backend for backend, name in zip(backends, "abcde", strict=True) if name != chosen)
        for each in backends:
            each.on_prepare = each.on_prepare if each is good else fail
        assert texts(await collect(engine, one := request(n=2))) == alone(one)
        tried = [name for name, _ in replicas.ran]
        assert 1 < len(tried) == len(set(tried))
        good.on_prepare = fail
        async with asyncio.timeout(30):
            events = await collect(engine, one := request(n=2))
    check_order(events, one, started=False)
    (error,) = [event.error for event in events if isinstance(event, ErrorEvent)]
    assert isinstance(error, UnavailableError)
    assert "the model can't be used now: no memory" in error.message


async def test_a_replica_may_take_its_time_to_take_a_request() -> None:
    clock, takes = Clock(), threading.Event()

    class Slow(Engine):
        def add_request(self, request: CompletionRequest) -> None:
            assert takes.wait(60)
            super().add_request(request)

    async with cluster(slow, names="a", make_engine=lambda _name, backend: Slow(backend)) as (engine, replicas):
        reading = asyncio.create_task(collect(engine, each := request(n=2)))
        await until(lambda: bool(replicas.ran))
        await clock.forward(3 * SILENCE_SECONDS)
        takes.set()
        assert texts(await reading) == alone(each)
        assert len(replicas.ran) == 1
        takes.clear()
        cancelled = await engine.submit(request())
        await until(lambda: len(replicas.ran) == 2)
        engine.abort(cancelled.request.id)
        await clock.forward(1)
        takes.set()
        assert {end.stop_reason for end in stops(await cancelled.collect()).values()} == {"cancelled"}


async def test_an_alternative_and_a_request_are_ended() -> None:
    async with cluster(gated := Gated(0)) as (engine, _):
        stream = await engine.submit(each := request(n=3, max_tokens=100, ignore_eos=True))
        reading = asyncio.create_task(stream.collect())
        assert engine.abort(each.id, 1)
        await asyncio.sleep(0.1)
        gated.step(5)
        await until(lambda: stream.event_log.unfinished == {0, 2})
        assert engine.abort(each.id)
        gated.open()
        events = await reading
        check_order(events, each)
        assert {end.finish_reason for end in stops(events).values()} == {"abort"}
        assert not engine.abort(each.id)


async def test_a_request_that_waits_for_a_replica_can_be_ended() -> None:
    async with cluster(slow, names="a") as (engine, replicas):
        await replicas.kill("a")
        stream = await engine.submit(each := request(n=2))
        await asyncio.sleep(0.05)
        engine.abort(each.id)
        check_order(await stream.collect(), each, started=False)


async def test_an_abort_is_not_forgotten_when_the_replica_is_lost() -> None:
    clock = Clock()
    async with cluster(gated := Gated(3), names="ab") as (engine, replicas):
        stream = await engine.submit(each := request(n=2, max_tokens=40, ignore_eos=True))
        await until(lambda: engine.health.running == 1)
        replicas.cut.add(replicas.ran[0][0])
        engine.abort(each.id, 0)
        gated.open()
        reading = asyncio.create_task(stream.collect())
        await clock.until(reading.done)
        ends = stops(events := await reading)
        assert (ends[0].finish_reason, ends[1].finish_reason) == ("abort", "length")
        assert texts(events)[1] == alone(each)[1]


async def test_requests_of_a_replica_that_shuts_down_resume_elsewhere_unless_they_were_aborted() -> None:
    async with cluster(gated := Gated(3), names="ab") as (engine, replicas):
        stream = await engine.submit(each := request(n=2, max_tokens=40, ignore_eos=True))
        await until(lambda: engine.health.running == 1)
        engine.abort(each.id, 0)
        events: list[Event] = []
        while not any(isinstance(event, StopEvent) for event in events):
            gated.step(1)
            events += await anext(stream)
        gated.open()
        await replicas.there.pop(replicas.ran[0][0]).close()
        events += await stream.collect()
        ends = stops(events)
        assert (ends[0].finish_reason, ends[1].finish_reason) == ("abort", "length")
        assert texts(events)[1] == alone(each)[1]
        assert len(replicas.ran) == 2


async def test_a_request_ends_even_if_its_replica_cannot_be_reached() -> None:
    async with cluster(gated := Gated(3), names="ab") as (engine, replicas):
        stream = await engine.submit(each := request(n=2, max_tokens=240, ignore_eos=True))
        await until(lambda: engine.health.running == 1)
        replicas.cut.add(replicas.ran[0][0])
        engine.abort(each.id)
        gated.open()
        events = await stream.collect()
        check_order(events, each)
        assert {end.stop_reason for end in stops(events).values()} == {"cancelled"}
        assert len(replicas.ran) == 1


async def test_closing_the_reader_ends_what_runs_there() -> None:
    async with cluster(slow, names="a") as (engine, replicas):
        async with await engine.submit(request(n=2, max_tokens=200, ignore_eos=True)) as stream:
            await anext(stream)
        await until(lambda: not replicas.engines["a"].requests and not engine.requests)


async def test_what_can_never_run_is_refused_before_it_is_sent() -> None:
    async with cluster(slow) as (engine, replicas):
        with pytest.raises(InvalidRequestError, match="grammar"):
            await engine.submit(CompletionRequest(((1,),), (SamplingParams(grammar="bad"),)))
        with pytest.raises(InvalidRequestError, match="256 cells"):
            await engine.submit(request("p" * 300))
        with pytest.raises(InvalidRequestError, match="ids go from"):
            await engine.submit(CompletionRequest(((999,),), (SamplingParams(),)))
        with pytest.raises(InvalidRequestError, match="logits_processor is a function, which can't be sent"):
            await engine.submit(request(logits_processor=lambda tokens, logits: None))
        with pytest.raises(NotSupportedError):
            await engine.ask(0, lambda slots: slots)
        assert not replicas.ran
        assert not engine.requests
        assert engine.tokenize("ab") == (97, 98)
        assert engine.model.n_cells == 256
        assert engine.model.identity == "fake"


@pytest.mark.parametrize("fields", [{"echo": True, "logprobs": 0}, {"prompt_logprobs": 0}])
async def test_prompts_that_were_being_scored_end_with_an_error_and_others_resume(fields: dict[str, Any]) -> None:
    async with cluster(gated := Gated(3, n_outputs=2), names="abc") as (engine, replicas):
        scored = CompletionRequest((tuple(b"p" * 100),), request(max_tokens=4).branches, **fields)
        events: list[Event] = []

        async def read() -> None:
            async for event in engine.generate(scored):
                note(event)

        note = events.append
        reading = asyncio.create_task(read())
        other = asyncio.create_task(collect(engine, each := request("q", max_tokens=60, ignore_eos=True)))
        await until(lambda: len(replicas.ran) == 2 and len(events) > 1)
        gated.open()
        await asyncio.gather(*(replicas.kill(name) for name, _ in list(replicas.ran)))
        await reading
        assert isinstance(events[-1], DoneEvent)
        assert [event.error.param for event in events if isinstance(event, ErrorEvent)] == [next(iter(fields))]
        assert texts(await other) == alone(each)


async def test_a_replica_with_another_model_is_not_used_and_trouble_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    replicas = ReplicasHere(slow, "a", model="another one")
    replicas.problem = "a replica can't start: no such file"
    engine = ClusterEngine(replicas, FakeVocabulary, beat_seconds=BEAT_SECONDS)
    engine.start()
    await until(lambda: "has another model file" in caplog.text and "no such file" in caplog.text)
    await clock.forward(5)
    assert caplog.text.count("no such file") == caplog.text.count("has another model file") == 1
    with pytest.raises(UnavailableError, match="loading"):
        await engine.submit(request())
    await engine.stop()


async def test_where_no_replica_can_start_the_reason_is_raised() -> None:
    engine = ClusterEngine(ReplicasHere(slow, ""), FakeVocabulary, beat_seconds=BEAT_SECONDS)
    engine.start()
    with pytest.raises(ModelLoadError, match="no memory"):
        await engine.ready()
    await engine.stop()


async def test_what_replicas_hold_is_added_up() -> None:
    async with cluster(slow) as (engine, _):
        await collect(engine, each := request(n=16, max_tokens=8, ignore_eos=True))
        await until(lambda: (stats := engine.health.stats) is not None and stats.tokens_generated == 8 * each.count)
        assert (stats := engine.health.stats)
        assert (stats.max_cells, stats.max_sequences, stats.prompt_tokens) == (512, 16, 2)
        assert (stats.layout, stats.n_preempted, stats.preemptions) == ("unified", 0, 0)


async def test_events_are_recorded_before_they_are_read() -> None:
    recorded: list[Event] = []

    def record(events: list[Event], told: Callable[[], object]) -> None:
        recorded.extend(events)
        told()

    async with cluster(slow, record=record) as (engine, _):
        async for event in engine.generate(request(n=2)):
            assert event in recorded


async def test_the_vocabulary_is_closed_at_the_end() -> None:
    vocabulary = FakeVocabulary()
    async with ClusterEngine(ReplicasHere(slow), lambda: vocabulary, beat_seconds=BEAT_SECONDS):
        pass
    assert vocabulary.closed


async def test_a_front_that_is_gone_leaves_nothing_running() -> None:
    replicas = ReplicasHere(slow, "a", front_seconds=0.1)
    await replicas.start()
    stream = replicas.there["a"].run(request(n=2, max_tokens=240, ignore_eos=True), front="gone")
    *_, last = [each async for each in stream]
    assert isinstance(last, UnavailableError)
    await until(lambda: not replicas.engines["a"].requests)
    await replicas.close()


@pytest.mark.parametrize("detach", [False, True])
async def test_a_front_that_comes_back_after_a_silence_resumes(detach: bool) -> None:
    """Nobody has cancelled anything, so no reader is told so."""
    clock = Clock()
    async with cluster(gated := Gated(3), names="ab") as (engine, replicas):
        each = request(n=2, max_tokens=40, ignore_eos=True)
        async with await engine.submit(each, event_log=EventLog(each, detach=detach)) as stream:
            replicas.is_silent = True
            await clock.until(lambda: len(replicas.ran) > 1, by=2)
            replicas.is_silent = False
            gated.open()
            events = await stream.collect()
        check_order(events, each)
        assert texts(events) == alone(each)


async def test_a_request_goes_to_a_replica_that_has_cached_its_prompt() -> None:
    each = partial(request, "p" * 200, max_tokens=1)
    async with cluster(lambda: FakeBackend(n_cells=1000), names="abcd") as (engine, replicas):
        await collect(engine, each())
        (first, _), *_ = replicas.ran
        for name in set("abcd") - {first}:  # the same within a name is another prompt, and known elsewhere
            engine.placement.report(name, 0, blocks_of(each().token_ids[0], within="ann"))
        await collect(engine, each())
        await collect(engine, dataclasses.replace(each(), shared_within="ann"))
        assert [name == first for name, _ in replicas.ran] == [True, True, False]


async def test_what_replicas_report_decides() -> None:
    """Other fronts send them requests, too."""
    blocks = blocks_of(request("p" * 200).token_ids[0])
    async with cluster(slow) as (engine, replicas):
        knowing = next(name for name in "ab" if name != engine.placement.choose([blocks]))
        for name, each in replicas.there.items():
            known = pack_blocks(blocks) if name == knowing else b""
            replicas.reported[name] = dataclasses.replace(await each.report("front"), load=3, blocks=known)
        await until(lambda: [*map(engine.placement.load, "ab")] == [3, 3])
        assert engine.placement.choose([blocks]) == knowing


async def test_a_request_counts_where_it_runs_until_it_ends_there() -> None:
    async with cluster(gated := Gated(3)) as (engine, replicas):
        reading = [asyncio.create_task(collect(engine, request(n=4, max_tokens=50))) for _ in range(3)]
        await until(lambda: len(replicas.ran) == 3)
        assert sorted(map(engine.placement.load, "ab")) == [4, 8]
        reading.pop().cancel()
        await until(lambda: sum(map(engine.placement.load, "ab")) == 8)
        gated.open()
        await asyncio.gather(*reading)
        await until(lambda: not any(map(engine.placement.load, "ab")))


async def test_the_replica_that_has_lost_a_request_gets_it_last() -> None:
    async with cluster(slow, names="ab") as (engine, replicas):
        for name in "ab":
            replicas.there[name].run = lost_at_once  # type: ignore
        events = asyncio.create_task(collect(engine, request()))
        await until(lambda: len(replicas.ran) > 3)
        assert sorted(name for name, _ in replicas.ran[:2]) == ["a", "b"]
        for name in "ab":
            del replicas.there[name].run
        assert await events


async def lost_at_once(*_: Any, **__: Any) -> AsyncIterator[Any]:
    yield UnavailableError("it isn't there")


async def test_a_call_that_was_meant_for_another_replica_is_refused() -> None:
    replicas = ReplicasHere(slow, "a")
    await replicas.start()
    there = replicas.there["a"]
    assert [type(said) async for said in there.run(request(), front="front", to="b")] == [UnavailableError]
    with pytest.raises(UnavailableError, match="replica b isn't there"):
        await there.abort("cmpl-1", None, "cancelled", to="b")
    await replicas.close()


async def test_a_replica_reports_its_blocks_by_shared_within() -> None:
    def make(backend: Backend) -> Engine:
        return Engine(backend, cache_bytes=100_000)

    engine = AsyncEngine(lambda _progress: FakeBackend(n_cells=1000), make=make)
    there = replica.Replica(engine, "a", "node", "model", beat_seconds=BEAT_SECONDS)
    await there.start()
    tokens = request("p" * 300).token_ids[0]
    for name in ("ann", ""):
        each = dataclasses.replace(request("p" * 300, max_tokens=1), shared_within=name)
        assert [event async for event in engine.generate(each)]
    cached = {*blocks_of(tokens, within="ann"), *blocks_of(tokens)}
    async with asyncio.timeout(10):
        while not {*unpack_blocks((await there.report("front")).blocks)} >= cached:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await there.close()


async def test_shutdown_may_be_a_stop_string() -> None:
    async with cluster(lambda: FakeBackend(script=says(b"on shutdown it"))) as (engine, replicas):
        events = await collect(engine, each := request(stop=("shutdown",), max_tokens=20))
        assert len(replicas.ran) == 1
    check_order(events, each)
    assert texts(events) == {0: "on "}
    assert (stops(events)[0].finish_reason, stops(events)[0].stop_reason) == ("stop", "shutdown")


async def test_a_request_comes_back_to_the_replica_that_still_has_it() -> None:
    """The only replica hangs for a while, so it gets the request again before it has ended it."""
    clock = Clock()
    async with cluster(gated := Gated(3), names="a") as (engine, replicas):
        reading = asyncio.create_task(collect(engine, each := request(n=2, max_tokens=100, ignore_eos=True)))
        await until(lambda: bool(replicas.ran) and engine.health.running == 1)
        replicas.cut.add("a")
        await clock.until(lambda: len(replicas.ran) > 1)
        replicas.cut.clear()
        gated.open()
        events = await reading
    check_order(events, each)
    assert texts(events) == alone(each)


async def test_a_replica_takes_a_request_again_when_it_has_ended_there() -> None:
    gate = Gate(backend := FakeBackend())
    replicas = ReplicasHere(lambda: backend, "a")
    await replicas.start()
    there, each = replicas.there["a"], request(max_tokens=50, ignore_eos=True)
    first = there.run(each, front="front")
    assert await anext(first) == "a"
    assert [type(said) for said in [said async for said in there.run(each, front="front")]] == [UnavailableError]
    event_log = replicas.engines["a"].find(each.id, "front")
    await first.aclose()
    assert [type(said) for said in [said async for said in there.run(each, front="front")]] == [UnavailableError]
    gate.open()
    await until(lambda: event_log.done)
    said = [said async for said in there.run(each, front="front")]
    assert said[0] == "a"
    check_order([event for batch in said[1:] if isinstance(batch, list) for event in batch], each)
    await replicas.close()
