"""What is cached of finished requests, and when: never so long that running requests wait for it."""

import dataclasses
from typing import Any

import pytest
from driver import request, run, texts
from fake_backend import FakeBackend

from srb.engine.engine import Engine
from srb.engine.events import DoneEvent, StartEvent, StopEvent
from srb.engine.sequence import Sequence


@dataclasses.dataclass
class SlowToSave(FakeBackend):
    """Each state takes so many `seconds` of its `now`, and each decode 40 ms."""

    now = 0.0
    seconds: float = 0.015

    def decode(self, *args: Any) -> bool:
        self.now += 0.04
        return super().decode(*args)

    def save(self, *args: Any) -> bytearray | None:
        self.now += self.seconds
        return super().save(*args)


def test_caching_takes_a_bounded_time_of_each_step() -> None:
    backend = SlowToSave(n_cells=1000)
    engine = Engine(backend, cache_bytes=100_000, clock=lambda: backend.now)
    engine.add_request(request("r", max_tokens=300, ignore_eos=True))
    engine.add_request(many := request("p" * 40, n=6, max_tokens=100, ignore_eos=True))
    stopped = steps = 0
    while stopped < 6:
        stopped += sum(isinstance(event, StopEvent) for event in engine.step())
    while engine.stats().sequences > 1:
        before, generated = len(backend.saved), engine.stats().tokens_generated
        engine.step()
        assert len(backend.saved) - before <= 2  # the prompt with the first
        assert engine.stats().tokens_generated == generated + 1
        steps += 1
    assert steps > 2
    run(engine)
    before = engine.stats().prompt_tokens_evaluated
    assert texts(run(engine, dataclasses.replace(many, id="again")))
    assert engine.stats().prompt_tokens_evaluated == before
    assert [span for span in backend.saved if span[1] < 200] == [(0, 40), *[(40, 139)] * 6]


def test_an_engine_without_a_cache_gives_cells_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the cells that others get don't depend on the clock, nor do their texts on llama.cpp."""
    backend = SlowToSave(n_cells=1000)
    engine = Engine(backend, clock=lambda: backend.now)

    def pause(_: Sequence) -> int:  # as the system may pause this process anywhere
        backend.now += 10
        return 0

    monkeypatch.setattr(Sequence, "slot", property(pause))
    engine.add_request(request("r", max_tokens=60, ignore_eos=True))
    engine.add_request(request("p" * 40, n=6, max_tokens=10, ignore_eos=True))
    stopped = 0
    while stopped < 6:
        stopped += sum(isinstance(event, StopEvent) for event in engine.step())
    engine.step()
    assert engine.stats().sequences == 1


def test_what_there_is_no_time_to_cache_gives_its_cells_to_waiting_requests() -> None:
    backend = SlowToSave(n_cells=70, seconds=0.5)
    engine = Engine(backend, cache_bytes=100_000, clock=lambda: backend.now)
    engine.add_request(request("r", max_tokens=60, ignore_eos=True))
    engine.add_request(request("p" * 40, n=4, max_tokens=5, ignore_eos=True))
    engine.add_request(waiting := request("q", n=3, max_tokens=2, ignore_eos=True))
    while not any(isinstance(event, StartEvent) and event.request_id == waiting.id for event in engine.step()):
        pass
    assert backend.saved == [(0, 40), (40, 44)]
    assert engine.stats().tokens_generated < 30, "it waited for all to be cached"
    run(engine)
    assert backend.cells == 0


@dataclasses.dataclass
class SlowToCopyCells(SlowToSave):
    """Each token takes so many `seconds` of its `now` where it lies between those of others, as answers do."""

    def save(self, seq_id: int, start: int, end: int, max_bytes: int) -> bytearray | None:
        self.now += self.seconds * (end - start - 1) if start else 0.0
        return super().save(seq_id, start, end, max_bytes)


@pytest.mark.parametrize(("seconds", "n_cached"), [(0.1, 1), (0.0001, 4)])
def test_answers_that_are_computed_sooner_than_copied_are_not_cached(seconds: float, n_cached: int) -> None:
    backend = SlowToCopyCells(n_cells=1000, seconds=seconds)
    engine = Engine(backend, cache_bytes=100_000, clock=lambda: backend.now)
    engine.add_request(request("r", max_tokens=200, ignore_eos=True))
    engine.add_request(request("p" * 40, n=4, max_tokens=10, ignore_eos=True))
    while engine.stats().sequences > 1 or engine.stats().tokens_generated < 20:
        engine.step()
    assert [span[0] for span in backend.saved if span[1] < 60] == [0, *[40] * n_cached]
    run(engine)
    backend.saved.clear()
    run(engine, request("q" * 40, n=4, max_tokens=10, ignore_eos=True))
    assert len(backend.saved) == (5 if n_cached > 1 else 1), "also while nothing else runs"


def test_that_caching_was_slow_once_does_not_count_for_ever() -> None:
    backend = SlowToCopyCells(n_cells=1000, seconds=0.1)
    engine = Engine(backend, cache_bytes=100_000, clock=lambda: backend.now)
    run(engine, request("p" * 40, n=2, max_tokens=10, ignore_eos=True))
    backend.seconds = 0.0001
    backend.saved.clear()
    n_requests = 0
    while len([span for span in backend.saved if span[0]]) < 2:
        n_requests += 1
        assert n_requests < 50
        run(engine, request("q" * 40, n=4, max_tokens=10, ignore_eos=True, seed=n_requests))
    assert n_requests > 5


@pytest.mark.parametrize(("seconds", "n_cached"), [(0.1, 1), (0.0005, 3), (0.0001, 6)])
def test_a_new_request_waits_ten_milliseconds_for_cached_answers_at_most(seconds: float, n_cached: int) -> None:
    backend = SlowToCopyCells(n_cells=1000, seconds=seconds)
    engine = Engine(backend, cache_bytes=100_000, clock=lambda: backend.now)
    engine.add_request(request("p" * 40, n=6, max_tokens=10, ignore_eos=True))
    while not any(isinstance(event, DoneEvent) for event in engine.step()):
        pass
    engine.add_request(request("q" * 40, max_tokens=1))
    engine.step()
    assert [span[0] for span in backend.saved] == [0, *[40] * n_cached]
    run(engine)
    assert backend.cells == 0


def test_siblings_that_wait_for_a_row_begin_at_once() -> None:
    """Half of 64 alternatives end in one step. The others begin in the next one, however long caching these takes."""
    backend = SlowToSave(n_cells=30_000, n_parallel=32)
    engine = Engine(backend, cache_bytes=10**8, clock=lambda: backend.now)
    run(engine, request(["p" * 50, "q" * 50], n=32, max_tokens=20, ignore_eos=True))
    stats = engine.stats()
    assert (stats.steps, stats.rows) == (1 + 19 + 1 + 19, 64 * 19)  # 74 steps if they begin as these are cached


def test_what_is_not_given_back_yet_can_be_begun_with() -> None:
    backend = SlowToSave(n_cells=1000)
    engine = Engine(backend, cache_bytes=100_000, clock=lambda: backend.now)
    engine.add_request(request("z", max_tokens=60, ignore_eos=True))
    engine.add_request(request(["p" * 40, "q" * 40, "r" * 40], n=2, max_tokens=0))
    engine.step()
    engine.step()  # all have finished, and what they hold is given back in several steps
    engine.add_request(request("r" * 40 + "more", max_tokens=3, ignore_eos=True))
    run(engine)
    assert engine.stats().prompt_tokens_evaluated == 1 + 120 + 4
    assert backend.cells == 0


def test_nothing_is_cached_when_the_engine_shuts_down() -> None:
    engine = Engine(backend := FakeBackend(), cache_bytes=100_000)
    engine.add_request(each := request("p" * 40, n=4, max_tokens=50, ignore_eos=True))
    for _ in range(20):
        engine.step()
    engine.abort(each.id, reason="shutdown")
    run(engine)
    assert backend.saved == []
    assert backend.cells == 0


def test_of_a_cancelled_request_only_the_prompt_is_cached_for_the_next_try() -> None:
    engine = Engine(backend := FakeBackend(), cache_bytes=100_000)
    engine.add_request(each := request("p" * 40, n=4, max_tokens=50, ignore_eos=True))
    for _ in range(20):
        engine.step()
    engine.abort(each.id)
    run(engine)
    assert backend.saved == [(0, 40)]
    before = engine.stats().prompt_tokens_evaluated
    run(engine, request("p" * 40, max_tokens=3))
    assert engine.stats().prompt_tokens_evaluated == before


@pytest.mark.parametrize("window", [None, 8])
def test_what_is_too_large_is_not_cached_and_evicts_nothing(window: int | None) -> None:
    engine = Engine(FakeBackend(window=window), cache_bytes=500)
    run(engine, request("small" * 4, max_tokens=1))
    before = engine.stats().retained_bytes
    run(engine, request("p" * 200, n=4, max_tokens=2))
    assert engine.stats().retained_bytes == before > 0
