"""Spinning threads are put to sleep while other programs want the cores."""

import os
import threading
from collections.abc import Callable
from hashlib import pbkdf2_hmac
from pathlib import Path

import pytest
from waiting import until

from srb.llama.backend import LlamaBackend
from srb.llama.native.threads import IdleTeam, ThreadWaiting, cpu_wait_seconds

tells_delays = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="this kernel doesn't tell who waits for a CPU"
)


class FakeTeam(IdleTeam):
    """A team without threads."""

    def __init__(self) -> None:
        super().__init__(None)
        self.runs = False

    def start(self) -> None:
        self.runs = True

    def stop(self) -> None:
        self.runs = False


class Machine:
    """Decodes that take a while, in which some of the threads have to wait for a CPU."""

    def __init__(self) -> None:
        self.now, self.delayed = 0.0, 7.0
        self.error: Exception | None = None
        self.team = FakeTeam()
        self.waiting = ThreadWaiting(self.team, lambda: self.now, self._all_delayed)

    @property
    def sleeps(self) -> bool:
        """Whether waiting threads sleep."""
        return self.team.runs

    def _all_delayed(self) -> float:
        if self.error:
            raise self.error
        return self.delayed

    def decode(self, seconds: float, n: int = 1, *, delayed: float = 0) -> None:
        """n decodes, in which that many threads are delayed."""
        for _ in range(n):
            with self.waiting.watched():
                self.now += seconds
                self.delayed += seconds * delayed


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_threads_sleep_until_it_is_known_that_nobody_wants_their_cores(machine: Machine) -> None:
    assert machine.sleeps
    machine.decode(0.1)
    assert machine.sleeps, "it's too early to tell"
    machine.decode(0.1)
    assert not machine.sleeps


def test_undisturbed_threads_spin(machine: Machine) -> None:
    machine.decode(0.05, 1_000, delayed=0.1)
    assert not machine.sleeps


def test_they_sleep_while_another_program_runs_and_spin_again_after_it(machine: Machine) -> None:
    machine.decode(0.05, 20)
    machine.decode(0.3, delayed=0.7)
    assert machine.sleeps
    machine.decode(0.01, 10)
    assert machine.sleeps, "it's too early to tell"
    machine.decode(3, 5, delayed=0.7)
    assert machine.sleeps
    machine.decode(0.3)
    assert not machine.sleeps


@pytest.mark.parametrize("error", [OSError(24, "too many open files"), RuntimeError("can't start new thread")])
def test_at_the_machines_limits_threads_go_on_as_they_are(machine: Machine, error: Exception) -> None:
    machine.decode(0.3)
    assert not machine.sleeps
    machine.error = error
    machine.decode(0.3, 5, delayed=0.9)
    assert not machine.sleeps
    machine.error = None
    machine.decode(0.3, 2)
    assert not machine.sleeps
    machine.decode(0.3, delayed=0.9)
    assert machine.sleeps


def test_a_decode_that_fails_is_watched_as_well(machine: Machine) -> None:
    def fail() -> None:
        with machine.waiting.watched():
            machine.now, machine.delayed = 1, 8
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert machine.sleeps


@tells_delays
def test_more_threads_than_cpus_are_delayed() -> None:
    before = cpu_wait_seconds()
    assert before < 3_600
    delayed: list[float] = []

    def work() -> None:
        pbkdf2_hmac("sha256", b"", b"", 100_000)  # without the interpreter's lock
        delayed.append(cpu_wait_seconds() - before)

    threads = [threading.Thread(target=work) for _ in range(4 * (os.cpu_count() or 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(delayed) > 0.01


def os_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@tells_delays
async def test_a_team_is_more_threads_than_cpus_and_goes(
    load: Callable[..., LlamaBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    team = IdleTeam.of_libgomp()
    assert team, "the tests run with the OpenMP that build.sh compiles with, and leave its waiting alone"
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")  # so that the backend has none of its own
    load()
    before = os_threads()
    for _ in range(3):
        team.start()
        team.start()
        await until(lambda: os_threads() > before + (os.cpu_count() or 1))
        team.stop()
        team.stop()
        await until(lambda: os_threads() <= before)


def test_who_says_how_threads_wait_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert IdleTeam.of_libgomp() is None
