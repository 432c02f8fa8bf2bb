"""What `srb tune` could only guess is measured while the server is idle, and given up at once when a request comes."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from srb.cli import main
from srb.llama.tune import background_load as others
from srb.llama.tune.idle import IdleTuning, measure_again
from srb.llama.tune.probe import Attention, Shape, Timings, Weights
from srb.llama.tune.search import DisturbedError
from srb.llama.tune.tuned import read_tuned, tries_path
from srb.options.settings import Settings

pytestmark = pytest.mark.llama


def take(
    self: Weights, attention: Attention, _tokens: object, shape: Shape, *, deep: bool, threads: int = 0
) -> Timings:
    """Times that don't depend on what else the machine does: larger weights take longer."""
    rows = {n: 1e-7 * n * self.n_bytes for n in shape.rows}
    return Timings(
        shape, attention.flash_attn == "off", 0.1, 0.2, rows, {n: 2 * each for n, each in rows.items()} if deep else {}
    )


@pytest.fixture
def guess(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of a model for which there is a guess."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(others, "busy_elsewhere", lambda: 0.0)
    monkeypatch.setattr(Weights, "measure", take)
    assert main(["tune", "--model", str(tiny_model), "--budget", "0.001"]) == 0
    settings = Settings(model=tiny_model)
    known = read_tuned(tiny_model, settings)
    assert known is not None
    assert known.is_guess
    return settings


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_request_kills_all_that_measures(guess: Settings, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = (
        "import os, subprocess, sys, time; sys.stdin.read(); child = subprocess.Popen(['sleep', '60']);"
        f"open({str(pids) + '.part'!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}');"
        f"os.rename({str(pids) + '.part'!r}, {str(pids)!r}); time.sleep(60)"
    )
    tuning = IdleTuning(guess, patience=0.0, command=(sys.executable, "-S", "-c", program))
    for _ in range(2):
        tuning.begin()
        wait_for(pids.exists)
        began = time.monotonic()
        tuning.end()
        assert time.monotonic() - began < 1
        first, second = map(int, pids.read_text().split())
        wait_for(lambda: not _lives(first) and not _lives(second))  # noqa: B023
        pids.unlink()


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_what_is_sure_is_not_measured_again(guess: Settings, tmp_path: Path, tiny_model: Path) -> None:
    assert main(["tune", "--model", str(tiny_model), "--budget", "60"]) == 0
    began = tmp_path / "began"
    tuning = IdleTuning(guess, patience=0.0, command=("touch", str(began)))
    tuning.begin()
    wait_for(lambda: tuning._n_left == 0)
    assert not began.exists()


def test_the_next_process_goes_on_with_what_is_known(
    guess: Settings, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def stop_after_some(self: Weights, attention: Attention, *args: object, **options: object) -> Timings:
        if len(seen) == 6:  # a trial, and five candidates
            raise KeyboardInterrupt
        seen.append((self.n_bytes, attention))
        return measure(self, attention, *args, **options)

    measure: Callable[..., Timings] = take
    monkeypatch.setattr(Weights, "measure", stop_after_some)
    with pytest.raises(KeyboardInterrupt):
        measure_again(guess)
    assert tries_path(tiny_model, guess).exists()
    known = read_tuned(tiny_model, guess)
    assert known is not None
    assert known.is_guess
    first = seen[1:]
    assert len(set(first)) == 5
    seen[:] = [None] * 7
    measure_again(guess)
    assert seen[8] not in first
    assert not tries_path(tiny_model, guess).exists()
    known = read_tuned(tiny_model, guess)
    assert known is not None
    assert known.weights != "file"
    assert not known.is_guess


def test_a_busy_machine_is_left_alone(guess: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "busy_elsewhere", time.monotonic)
    with pytest.raises(DisturbedError):
        measure_again(guess)


def test_it_ends_with_its_server(guess: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter([1000, 1000])
    monkeypatch.setattr(os, "getppid", lambda: next(parents, 1))
    with pytest.raises(SystemExit):
        measure_again(guess)
