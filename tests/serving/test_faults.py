"""Random faults of the machine under random requests: see `faults.py`."""

from pathlib import Path

import faults
import pytest
from driver import seeds


@pytest.mark.parametrize("seed", seeds(25, first=1))
async def test_faults_of_the_machine_end_no_server_and_lose_no_text(seed: int, tmp_path: Path) -> None:
    assert await faults.run(seed, tmp_path / "history.db", n_requests=10, every=60)
