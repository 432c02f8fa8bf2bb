"""What srb finds out about a machine without `/proc` and `/sys`, as on macOS."""

import os
import sys
from pathlib import Path

import pytest

from srb.llama.model import weights
from srb.llama.native import params
from srb.llama.native.macos import sysctl
from srb.llama.native.threads import IdleTeam
from srb.llama.tune import result

FACTS = {"hw.perflevel0.physicalcpu": "6", "hw.physicalcpu": "8", "machdep.cpu.brand_string": "Apple M3 Pro"}


@pytest.fixture
def facts(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Pretend that this is a Mac, whose `sysctl` has these values."""
    values = dict(FACTS)
    monkeypatch.setattr(sys, "platform", "darwin")
    for module in (params, result):
        monkeypatch.setattr(module, "sysctl", values.get)
    return values


@pytest.fixture
def no_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no file below `/proc` and `/sys` exist."""
    read_text, exists = Path.read_text, os.path.exists

    def is_hidden(path: object) -> bool:
        return str(path).startswith(("/proc/", "/sys/"))

    def read(path: Path, *args: str) -> str:
        if is_hidden(path):
            raise FileNotFoundError(path)
        return read_text(path, *args)

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(os.path, "exists", lambda path: not is_hidden(path) and exists(path))


def test_only_the_fast_cores_of_an_apple_chip_count(facts: dict[str, str]) -> None:
    assert params.physical_cores() == 6
    del facts["hw.perflevel0.physicalcpu"]  # an Intel processor
    assert params.physical_cores() == 8


def test_the_processor_of_a_mac_has_a_name(facts: dict[str, str]) -> None:
    assert result.processor() == "Apple M3 Pro"


def test_a_value_that_sysctl_does_not_have(tmp_path: Path) -> None:
    assert sysctl("srb.nothing") is None  # nor has a machine without sysctl


@pytest.mark.usefixtures("no_proc")
def test_without_proc_everything_has_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    assert params.physical_cores() >= 1
    assert result.processor()
    assert 1 << 26 < weights.available_memory() < sys.maxsize
    assert IdleTeam.of_libgomp() is None
