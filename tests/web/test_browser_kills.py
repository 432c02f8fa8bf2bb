"""bench/checks/browser_kills.py: the browser is killed while somebody types."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from scripted import Scripted
from web.conftest import CHROMIUM

pytestmark = pytest.mark.web

CHECK = Path(__file__).parents[2] / "bench" / "checks" / "browser_kills.py"


@pytest.mark.skipif(not CHROMIUM, reason="Chromium isn't installed: apt install chromium-headless-shell")
def test_a_killed_browser_loses_at_most_the_last_second(server: Scripted) -> None:
    """The script kills it fifty times; here it is twice."""
    command = [sys.executable, str(CHECK), "--url", server.url, "--rounds", "2", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ})
    assert done.returncode == 0, done.stderr
    assert "2 kills" in done.stdout
