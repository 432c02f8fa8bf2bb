"""The server with the page, on a scripted backend, in a thread of the tests."""

import asyncio
import heapq
import threading
import time
import zlib
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web
from fake_backend import Context, FakeBackend, Script, scores
from real_server import Asked

from srb.engine.backend import Logprobs
from srb.engine.engine import Engine
from srb.engine.sampling_params import SamplingParams
from srb.history.history import History
from srb.llama.model.chat_template import ChatTemplate
from srb.server.access import Hosts
from srb.server.app import SERVER_OPTIONS, create_app
from srb.server.run.history import HistoryService
from srb.serving.async_engine import AsyncEngine
from srb.wire.limits import Limits

TEMPLATE = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>")

WORDS = (
    b"the a of and in was it her his never nobody lamp light lighthouse keeper sea night door rule window letter "
    b"stairs gulls boat burned waited knew opened slept went said rain. home. again. still! there! alone. once. him."
).split()


def words(params: SamplingParams, tokens: tuple[int, ...]) -> int:
    """Spells words, by the seed and by all that was before; at temperature 0 by the latter alone."""
    before, _, resumed_tokens = bytes(tokens).rpartition(b" ")
    word = WORDS[zlib.crc32(before, params.seed if params.temperature else 0) % len(WORDS)]
    if before.endswith((b".", b"!")):
        word = word.capitalize()
    return word[len(resumed_tokens)] if word.startswith(resumed_tokens) and word != resumed_tokens else ord(" ")


CACHES = partial(Engine, cache_bytes=2**24)
"""Keeps what was evaluated, as a server does."""


class Speller(FakeBackend):
    """Finds only letters likely, so that all of them can be read, and hesitates only where a syllable begins."""

    def logprobs(self, logits: Context, token: int, top: int) -> Logprobs:
        ranked = scores(logits)
        likeliest = heapq.nlargest(top, b" .abcdefghijklmnopqrstuvwxyz", key=ranked.__getitem__)
        return ranked[token], [(each, ranked[each]) for each in likeliest]

    def entropy(self, logits: Context) -> float:
        return 3.0 if logits[-1] in b" :aeiou" else 0.5


class Scripted(Asked):
    """Starts a server, which keeps stories if it has a file for them; options go to `create_app`."""

    def __init__(self, history: Path | None = None, script: Script = words, **options: Any) -> None:
        self.going = threading.Event()
        """While it isn't set, the engine stands in the middle of a decode."""
        self.going.set()
        self._left = -1
        self._pace = 0.0
        self.backend = Speller(n_cells=8192, script=script, chat_template=TEMPLATE, on_decode=self._wait)
        self.keeps_stories = history is not None
        self._file, self._options = history, options
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._ready.wait(30)

    def hold_after(self, decodes: int) -> None:
        """Lets so many decodes pass, each of which writes a token of all alternatives; it stands in the next."""
        self._left = decodes
        self.going.set()

    def go(self, pace: float = 0.0) -> None:
        """Lets all decodes pass. pace: how many seconds each takes at least, so that a page can keep up with them."""
        self._pace = pace
        self.hold_after(-1)

    def _wait(self) -> None:
        if self._left == 0:
            self.going.clear()
        self._left = max(-1, self._left - 1)
        assert self.going.wait(120)
        time.sleep(self._pace)

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        history = History(self._file) if self._file else None
        history_service = HistoryService(history)
        engine = AsyncEngine(
            lambda _progress: self.backend,
            make=CACHES,
            record=history_service.record,
            keep_seconds=60,
            keep_bytes=2**24,
        )
        engine.start()
        await engine.ready()
        limits = Limits("fake", n=2, max_n=32, linger=60)
        app = create_app(engine, limits, allowed_hosts=Hosts(), history_service=history_service, **self._options)
        self._runner = web.AppRunner(app, shutdown_timeout=1, **SERVER_OPTIONS)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self._ready.set()
        await self._end.wait()
        await self._runner.cleanup()
        await engine.stop()
        if history:
            history.close()

    def vanish(self) -> None:
        """Cuts every connection and hears no other, as when the machine loses its power."""

        async def cut() -> None:
            for site in [*self._runner.sites]:
                await site.stop()
            assert self._runner.server
            for each in self._runner.server.connections:
                if each.transport:
                    each.transport.abort()

        asyncio.run_coroutine_threadsafe(cut(), self._loop).result(30)

    def come_back(self) -> None:
        """Listens again after `vanish`."""
        site = web.TCPSite(self._runner, "127.0.0.1", int(self.url.rpartition(":")[2]))
        asyncio.run_coroutine_threadsafe(site.start(), self._loop).result(30)

    def close(self) -> None:
        """Stops it."""
        self.go()
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)
        assert not self._thread.is_alive()
