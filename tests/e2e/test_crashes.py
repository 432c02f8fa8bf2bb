"""A server that is killed while stories are written loses nothing that it has acknowledged."""

import subprocess
import sys
from pathlib import Path

from tiny_model import write_tiny_model

ROOT = Path(__file__).parents[2]


def test_a_killed_server_has_lost_nothing(tmp_path: Path) -> None:
    """bench/checks/crashes.py kills one a hundred times; here it is three times."""
    model = write_tiny_model(tmp_path / "tiny.gguf")  # what is lost or not doesn't depend on the model
    command = [
        sys.executable,
        str(ROOT / "bench" / "checks" / "crashes.py"),
        "--rounds",
        "3",
        "--longest",
        "2",
        "-m",
        str(model),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "texts are there" in ended.stdout
