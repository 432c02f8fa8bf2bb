import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from srb.server.run import serve
from srb.serving.async_engine import AsyncEngine

Prepare = Callable[[Callable[..., AsyncEngine]], asyncio.Future[None]]


@pytest.fixture
def serve_engine(monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """Lets `serve` start the engine that a function makes of the arguments of `from_settings`.

    Returns the future that stops the server.
    """

    def prepare(make_engine: Callable[..., AsyncEngine]) -> asyncio.Future[None]:
        stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        fakes: list[tuple[Any, str, Any]] = [
            (serve, "find_model", lambda _: Path("fake.gguf")),
            (serve, "stop_signal", lambda: nullcontext(stop)),
            (AsyncEngine, "from_settings", make_engine),
        ]
        for owner, name, fake in fakes:
            monkeypatch.setattr(owner, name, fake)
        return stop

    return prepare
