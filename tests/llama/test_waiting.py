"""Threads that spin are put to sleep where other programs want the cores."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import until

from srb.llama import LlamaBackend
from srb.llama.waiting import Crowd, Waiting

THREADS = 4


class Clocks:
    """Decodes that take a while, in which each thread computes or spins, but for those without a core."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n_threads: int = THREADS) -> None:
        self.now = self.cpu = 0.0
        self.sleeps = False
        crowd = Crowd(None)
        monkeypatch.setattr(crowd, "gather", lambda: setattr(self, "sleeps", True))
        monkeypatch.setattr(crowd, "leave", lambda: setattr(self, "sleeps", False))
        self.waiting = Waiting(n_threads, n_threads, crowd, lambda: self.now, lambda: self.cpu)

    def decode(self, seconds: float, n: int = 1, *, lost: float = 0) -> None:
        """n decodes, while others have the use of `lost` of the cores."""
        for _ in range(n):
            with self.waiting.watched(8):
                self.now += seconds
                self.cpu += seconds * (0.5 * THREADS if self.sleeps else THREADS - lost)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(monkeypatch)


def test_undisturbed_threads_spin(clocks: Clocks) -> None:
    clocks.decode(0.05, 1_000, lost=0.1)
    assert not clocks.sleeps


def test_they_sleep_beside_another_program_and_spin_again_when_it_has_gone(clocks: Clocks) -> None:
    clocks.decode(0.05, 20)
    clocks.decode(0.2, 2, lost=0.7)
    assert clocks.sleeps
    clocks.decode(0.05, 20)
    assert clocks.sleeps, "what they take asleep says nothing"
    clocks.decode(0.1, 100)
    assert not clocks.sleeps


def test_looking_again_takes_little_of_the_time(clocks: Clocks) -> None:
    spinning = asleep = 0.0
    while clocks.now < 1_000:
        before, seconds = clocks.sleeps, 0.1 if clocks.sleeps else 3
        clocks.decode(seconds, lost=0.7)
        if clocks.sleeps and before:
            asleep += seconds
        else:
            spinning += seconds
    assert spinning < 0.06 * asleep


def test_one_thread_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks = Clocks(monkeypatch, n_threads=1)
    clocks.decode(1, 10, lost=THREADS)
    assert not clocks.sleeps


def os_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


async def test_a_crowd_is_more_threads_than_cpus_and_goes(load: Callable[..., LlamaBackend]) -> None:
    crowd = Crowd.of_libgomp()
    assert crowd, "the tests run with the OpenMP that build.sh compiles with, and leave its waiting alone"
    load()
    before = os_threads()
    for _ in range(3):
        crowd.gather()
        crowd.gather()
        await until(lambda: os_threads() > before + (os.cpu_count() or 1))
        crowd.leave()
        crowd.leave()
        await until(lambda: os_threads() <= before)


def test_who_says_how_threads_wait_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert Crowd.of_libgomp() is None
