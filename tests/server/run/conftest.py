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
        values: dict[str, Any] = {"find_model": lambda _: Path("fake.gguf"), "stop_signal": lambda: nullcontext(stop)}
        for name, value in values.items():
            monkeypatch.setattr(serve, name, value)
        monkeypatch.setattr(AsyncEngine, "from_settings", make_engine)
        return stop

    return prepare
