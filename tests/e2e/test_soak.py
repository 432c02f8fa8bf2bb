"""bench/checks/soak.py: many requests, two thirds of them cancelled."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from real_server import Server
from tiny_model import write_tiny_model

pytestmark = pytest.mark.nightly

SOAK = Path(__file__).parents[2] / "bench" / "checks" / "soak.py"


def test_everybody_gets_what_they_asked_for(start_server: Callable[..., Server], tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    server = start_server("-m", str(model), "--cache-ram", "20", "--ctx-size", "2048", "--linger", "0")
    arguments = [server.url, "--rounds", "2", "--requests", "40", "--seconds", "5"]
    done = subprocess.run([sys.executable, str(SOAK), *arguments], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout.count("length") == 2
