"""The one thread that owns the engine, and the asyncio side of it.

The thread loads the model, steps the engine while there is work, and hands what happened over to the event
loop once per step. All methods here belong to the event loop, but for `AsyncEngine.tokenize`.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal, Self

from srb.disk_cache import DiskCache
from srb.download import fetch_model
from srb.engine.backend import Backend, ChatTemplate, Embedder, Tokenizer
from srb.engine.engine import Engine
from srb.engine.events import AbortReason, Event
from srb.engine.request import DEFAULT_MAX_TOKENS, CompletionRequest
from srb.engine.stats import EngineStats, Measure
from srb.errors import EngineDeadError, InvalidRequestError, QueueFullError, SrbError, UnavailableError
from srb.llama import LlamaBackend
from srb.request_log import done_line
from srb.request_stream import RequestStream
from srb.settings import Settings

logger = logging.getLogger("srb")

Status = Literal["loading", "ready", "stopping", "dead"]


@dataclass(frozen=True, slots=True)
class Health:
    """How the engine is.

    progress: the loaded fraction of the model, 0 to 1.
    running, waiting: requests. stats: None before the model is loaded.
    """

    status: Status
    progress: float
    running: int
    waiting: int
    stats: EngineStats | None


class AsyncEngine:
    """An engine in a thread of its own. Use it as a context manager, or call `start`, `ready` and `stop`.

    load: makes the backend, in the thread; it gets a callback for its progress (0 to 1) that says whether to go on.
    make: makes the engine, there too.
    max_queue: how many requests may wait.
    queue_timeout, request_timeout: seconds after which a request ends that hasn't started, or hasn't ended; 0: off.
    """

    def __init__(
        self,
        load: Callable[[Callable[[float], bool]], Backend],
        *,
        make: Callable[[Backend], Engine] = Engine,
        max_queue: int = 128,
        queue_timeout: float = 0,
        request_timeout: float = 0,
    ) -> None:
        self._load = load
        self._make = make
        self._max_queue = max_queue
        self._queue_timeout = queue_timeout
        self._request_timeout = request_timeout
        self._status: Status = "loading"
        self._progress = 0.0
        self._streams: dict[str, RequestStream] = {}
        self._engine: Engine | None = None
        self._stats: EngineStats | None = None
        self._failure: EngineDeadError | None = None
        self._failed = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._main, name="srb-engine", daemon=True)

    @classmethod
    def from_settings(
        cls, settings: Settings, observe: Callable[[Measure, float], object] = lambda _measure, _seconds: None
    ) -> "AsyncEngine":
        """An engine on llama.cpp. It raises `ModelLoadError` when it is `ready`, or rather isn't.

        observe: gets the engine's measurements, in its thread.
        """

        def make(backend: Backend) -> Engine:
            store = None
            if settings.cache_disk:
                store = DiskCache(settings.cache_disk, backend.identity, settings.cache_disk_size << 20)
            return Engine(
                backend,
                default_max_tokens=DEFAULT_MAX_TOKENS if settings.max_tokens is None else settings.max_tokens,
                prefill_chunk=settings.prefill_chunk,
                cache_bytes=settings.cache_ram << 20,
                store=store,
                observe=observe,
            )

        return cls(
            lambda progress: LlamaBackend(fetch_model(settings), progress),
            make=make,
            max_queue=settings.max_queue,
            queue_timeout=settings.queue_timeout,
            request_timeout=settings.request_timeout,
        )

    async def __aenter__(self) -> Self:
        self.start()
        await self.ready()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    def start(self) -> None:
        """Starts the thread, which loads the model. Needs a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[None] = self._loop.create_future()
        # Nobody may wait for ready(), and asyncio complains of an exception that nobody has looked at.
        self._loaded.add_done_callback(lambda loaded: loaded.cancelled() or loaded.exception())
        self._thread.start()

    async def ready(self) -> None:
        """Returns when the model is loaded. Raises what loading it raised."""
        await asyncio.shield(self._loaded)

    async def died(self) -> EngineDeadError:
        """Returns when the engine has failed, with the reason; every request has its last events by then."""
        await self._failed.wait()
        assert self._failure is not None
        return self._failure

    async def stop(self, grace: float = 0) -> None:
        """Ends the engine: waiting requests at once, running ones when `grace` seconds have passed."""
        if self._status in ("loading", "ready"):
            self._status = "stopping"
        for request_id, stream in list(self._streams.items()):
            if not stream.started:
                stream.refusal = UnavailableError("the server is shutting down")
                self.abort(request_id, reason="shutdown")
        try:
            async with asyncio.timeout(grace):
                await self._idle.wait()
        except TimeoutError:
            for request_id in list(self._streams):
                self.abort(request_id, reason="shutdown")
            await self._idle.wait()
        self._closing = True
        self._wake.set()
        await asyncio.to_thread(self._thread.join)
        self._loaded.cancel()

    @property
    def health(self) -> Health:
        """How the engine is now."""
        requests = self.requests
        running = sum(stream.started for stream in requests)
        return Health(self._status, self._progress, running, len(requests) - running, self._stats)

    @property
    def requests(self) -> list[RequestStream]:
        """The requests that wait or run, in the order of their arrival, without those whose reader is gone."""
        return [stream for stream in self._streams.values() if not stream.closed]

    def tokenize(self, text: str, *, is_prompt: bool = True) -> tuple[int, ...]:
        """The tokens of a text; see `Engine.tokenize`. May be called from any thread: long texts take seconds."""
        return self._ready_engine().tokenize(text, is_prompt=is_prompt)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's vocabulary; it may be used from any thread. Raises `UnavailableError` where there is none yet."""
        return self._ready_engine().tokenizer

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's chat template, if it has one. May be used from any thread."""
        return self._ready_engine().chat_template

    @property
    def embedder(self) -> Embedder | None:
        """What makes embeddings, where these are wanted. Raises `UnavailableError` before the model is loaded."""
        return self._ready_engine().embedder

    def detokenize(self, tokens: Iterable[int]) -> str:
        """The text of a prompt's tokens, control tokens by their names. May be called from any thread."""
        assert self._engine is not None
        return b"".join(map(self._engine.tokenizer.special_piece, tokens)).decode(errors="replace")

    async def submit(self, request: CompletionRequest) -> RequestStream:
        """Queues a request and returns its events.

        Raises `InvalidRequestError` if it can never run, `QueueFullError` if too many wait, and `UnavailableError` if
        the engine takes none.
        """
        engine = self._ready_engine()
        self.check_queue()
        if request.id in self._streams:
            raise InvalidRequestError(f"the request id {request.id} is in use", param="id")
        stream = RequestStream(request, lambda: self.abort(request.id), arrived=self._loop.time())
        self._streams[request.id] = stream
        self._idle.clear()
        stream.early_aborts = []
        adding = asyncio.ensure_future(asyncio.to_thread(engine.add_request, request))
        adding.add_done_callback(partial(self._on_added, stream))
        try:
            await asyncio.shield(adding)
        except asyncio.CancelledError:
            stream.close()
            raise
        self._set_timers(stream)
        return stream

    async def generate(self, request: CompletionRequest) -> AsyncIterator[Event]:
        """Runs a request: its events, one by one. Leaving the loop early cancels the request.

        Raises what `submit` raises.
        """
        async with await self.submit(request) as stream:
            async for events in stream:
                for event in events:
                    yield event

    def abort(self, request_id: str, index: int | None = None, reason: AbortReason = "cancelled") -> bool:
        """Ends a request, or the alternative `index` of it. Returns False if it isn't waiting or running."""
        stream = self._streams.get(request_id)
        if stream is None or (index is not None and index not in stream.living):
            return False
        if stream.early_aborts is not None:
            stream.early_aborts.append((index, reason))
            return True
        assert self._engine is not None
        self._engine.abort(request_id, index, reason)
        self._wake.set()
        return True

    def check_ready(self) -> None:
        """Raises `UnavailableError` if the engine takes no requests now."""
        self._ready_engine()

    def check_queue(self) -> None:
        """Raises `QueueFullError` if as many requests wait as may."""
        if (waiting := self.health.waiting) >= self._max_queue:
            raise QueueFullError(f"{waiting} requests are waiting, and no more may (--max-queue); try again later")

    def _ready_engine(self) -> Engine:
        if self._status == "dead":
            raise EngineDeadError("the engine has failed; restart the server (its log says why)")
        if self._status == "stopping":
            raise UnavailableError("the server is shutting down")
        if self._engine is None:
            raise UnavailableError(f"the model is loading ({self._progress:.0%}); try again soon")
        return self._engine

    def _on_added(self, stream: RequestStream, adding: asyncio.Future[None]) -> None:
        """The engine has taken a request, or refused it; what was aborted in the meantime is aborted now."""
        early, stream.early_aborts = stream.early_aborts or [], None
        if adding.cancelled() or adding.exception():
            self._forget(stream.request.id)
            return
        self._wake.set()
        for index, reason in early:
            self.abort(stream.request.id, index, reason)

    def _set_timers(self, stream: RequestStream) -> None:
        if stream.done:
            return
        for seconds, option in (
            (self._queue_timeout, "--queue-timeout"),
            (self._request_timeout, "--request-timeout"),
        ):
            if seconds:
                only_waiting = option == "--queue-timeout"
                error = UnavailableError(
                    f"the request has waited for {seconds:g} s, the limit that {option} sets; try again later"
                )
                stream.timers.append(
                    self._loop.call_at(stream.arrived + seconds, self._expire, stream, error, only_waiting)
                )

    def _expire(self, stream: RequestStream, error: UnavailableError, only_waiting: bool) -> None:
        if not (stream.started and only_waiting):
            stream.refusal = error
            self.abort(stream.request.id, reason="timeout")

    def _forget(self, request_id: str) -> None:
        if stream := self._streams.pop(request_id, None):
            for timer in stream.timers:
                timer.cancel()
        if not self._streams:
            self._idle.set()

    # Called in the event loop by the thread

    def _on_loaded(self, engine: Engine, stats: EngineStats) -> None:
        self._engine, self._stats, self._progress = engine, stats, 1.0
        if self._status == "loading":
            self._status = "ready"
        if not self._loaded.done():
            self._loaded.set_result(None)

    def _on_load_failed(self, error: BaseException) -> None:
        self._status = "dead"
        if not self._loaded.done():
            self._loaded.set_exception(error)

    def _on_progress(self, fraction: float) -> None:
        self._progress = fraction

    def _on_step(self, events: list[Event], stats: EngineStats) -> None:
        self._stats = stats
        by_request: dict[str, list[Event]] = {}
        for event in events:
            by_request.setdefault(event.request_id, []).append(event)
        for request_id, batch in by_request.items():
            if stream := self._streams.get(request_id):
                stream.put(batch)
                if stream.done:
                    self._forget(request_id)
                    logger.info("%s", done_line(stream))

    def _on_death(self, error: EngineDeadError, events: list[Event], stats: EngineStats) -> None:
        self._status = "dead"
        self._failure = error
        self._on_step(events, stats)
        self._failed.set()

    # The thread

    def _main(self) -> None:
        call = self._loop.call_soon_threadsafe

        def progress(fraction: float) -> bool:
            call(self._on_progress, fraction)
            return not self._closing

        backend = None
        try:
            backend = self._load(progress)
            engine = self._make(backend)
            stats = engine.stats()
        except Exception as error:
            call(self._on_load_failed, error)
            if backend:
                backend.close()
            return
        try:
            call(self._on_loaded, engine, stats)
            while engine.has_work or not self._closing:
                if engine.has_work:
                    call(self._on_step, engine.step(), engine.stats())
                else:
                    self._wake.wait()
                    self._wake.clear()
        except Exception as error:
            logger.exception("the engine has failed; running requests end with an error, new ones are refused")
            reason = str(error) if isinstance(error, SrbError) else f"{type(error).__name__}: {error}"
            dead = EngineDeadError(f"the engine has failed: {reason}")
            call(self._on_death, dead, engine.fail(dead), engine.stats())
        finally:
            engine.close()
            backend.close()
