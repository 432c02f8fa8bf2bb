"""Real servers on the default model."""

from collections.abc import Callable, Iterator

import pytest
from real_server import Server, start, starting


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One server for all tests that leave it as it was. Who leaves it has cancelled at once.

    Who doesn't say how much gets little, since few tokens show as much as many.
    """
    server = start("--linger", "0", "--max-tokens", "48")
    yield server
    code = server.stop()
    server.close()
    assert code == 0


@pytest.fixture
def start_server() -> Iterator[Callable[..., Server]]:
    """Starts servers for a test that wants options of its own, or ends them."""
    with starting() as make:
        yield make
