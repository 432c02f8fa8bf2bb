"""The server with the page, on a scripted backend, in a thread of the tests."""

import asyncio
import threading
import zlib
from array import array
from pathlib import Path
from typing import Any

from aiohttp import web
from fake_backend import FakeBackend

from srb.async_engine import AsyncEngine
from srb.engine.sampling_params import SamplingParams
from srb.history.history import History
from srb.llama.chat_template import ChatTemplate
from srb.server.app import SERVER_OPTIONS, create_app
from srb.server.hosts import Hosts
from srb.server.keeping import Keeper
from srb.wire.limits import Limits

TEMPLATE = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>")


def letters(params: SamplingParams, tokens: tuple[int, ...]) -> int:
    """Draws a letter or a space, by the seed and all that was before."""
    return b"aeinorst  "[zlib.crc32(array("i", tokens), params.seed) % 10]


class Scripted:
    """Starts a server, which keeps stories if it has a file for them; options go to `create_app`."""

    def __init__(self, history: Path | None = None, **options: Any) -> None:
        self.going = threading.Event()
        """While it isn't set, the engine stands in the middle of a decode."""
        self.going.set()
        self.backend = FakeBackend(n_cells=8192, script=letters, chat_template=TEMPLATE, on_decode=self._wait)
        self._file, self._options = history, options
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(30)

    def _wait(self) -> None:
        assert self.going.wait(30)

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        history = History(self._file) if self._file else None
        keeper = Keeper(history)
        engine = AsyncEngine(lambda _progress: self.backend, record=keeper.record)
        engine.start()
        await engine.ready()
        limits = Limits("fake", n=2, max_n=8, linger=1)
        app = create_app(engine, limits, allowed_hosts=Hosts(), keeper=keeper, **self._options)
        runner = web.AppRunner(app, shutdown_timeout=1, **SERVER_OPTIONS)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._ready.set()
        await self._end.wait()
        await runner.cleanup()
        await engine.stop()
        if history:
            history.close()

    def close(self) -> None:
        """Stops it."""
        self.going.set()
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)
        assert not self._thread.is_alive()
