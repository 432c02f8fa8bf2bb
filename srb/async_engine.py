"""The one thread that owns the engine, and the asyncio side of it.

The thread loads the model, steps the engine while there is work, and hands what happened over to the event
loop once per step. All methods here belong to the event loop, but for `AsyncEngine.tokenize`.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, Self

from srb.engine.backend import Backend, Embedder, Tokenizer
from srb.engine.engine import DEFAULT_MAX_TOKENS, Engine, EngineStats
from srb.engine.events import AbortReason, DoneEvent, Event, StartEvent, StopEvent
from srb.engine.request import CompletionRequest
from srb.errors import EngineDeadError, InvalidRequestError, SrbError, UnavailableError
from srb.llama import LlamaBackend
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


class RequestStream:
    """The events of one request, as the engine hands them over: `async for events in stream`.

    Close it, or use it as a context manager: leaving it early cancels the request.
    """

    def __init__(self, request: CompletionRequest, cancel: Callable[[], None]) -> None:
        self.request = request
        self.started = False
        self.living = set(range(request.count))
        self.done = False
        self._cancel = cancel
        self._events: list[Event] = []
        self._arrived = asyncio.Event()

    def __aiter__(self) -> AsyncIterator[list[Event]]:
        return self

    async def __anext__(self) -> list[Event]:
        """All events that have come since the last call, at least one. May be cancelled without losing any."""
        if self.done and not self._events:
            raise StopAsyncIteration
        await self._arrived.wait()
        self._arrived.clear()
        events, self._events = self._events, []
        return events

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Cancels the request if it hasn't ended."""
        if not self.done:
            self._cancel()

    def put(self, events: list[Event]) -> None:
        """Takes what the engine handed over."""
        for event in events:
            if isinstance(event, StartEvent):
                self.started = True
            elif isinstance(event, StopEvent):
                self.living.discard(event.index)
            elif isinstance(event, DoneEvent):
                self.done = True
        self._events += events
        self._arrived.set()


class AsyncEngine:
    """An engine in a thread of its own. Use it as a context manager, or call `start`, `ready` and `stop`.

    load: makes the backend, in the thread; it gets a callback for its progress (0 to 1) that says whether to go on.
    """

    def __init__(
        self,
        load: Callable[[Callable[[float], bool]], Backend],
        *,
        default_max_tokens: int = DEFAULT_MAX_TOKENS,
        prefill_chunk: int = 0,
    ) -> None:
        self._load = load
        self._default_max_tokens = default_max_tokens
        self._prefill_chunk = prefill_chunk
        self._status: Status = "loading"
        self._progress = 0.0
        self._streams: dict[str, RequestStream] = {}
        self._engine: Engine | None = None
        self._stats: EngineStats | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._main, name="srb-engine", daemon=True)

    @classmethod
    def from_settings(cls, settings: Settings) -> "AsyncEngine":
        """An engine on llama.cpp. It raises `ModelLoadError` when it is `ready`, or rather isn't."""
        return cls(
            partial(LlamaBackend, settings),
            default_max_tokens=settings.max_tokens,
            prefill_chunk=settings.prefill_chunk,
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

    async def stop(self, grace: float = 0) -> None:
        """Ends the engine: waiting requests at once, running ones when `grace` seconds have passed."""
        if self._status in ("loading", "ready"):
            self._status = "stopping"
        for request_id, stream in list(self._streams.items()):
            if not stream.started:
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
        running = sum(stream.started for stream in self._streams.values())
        return Health(self._status, self._progress, running, len(self._streams) - running, self._stats)

    def tokenize(self, text: str, *, is_prompt: bool = True) -> tuple[int, ...]:
        """The tokens of a text; see `Engine.tokenize`. May be called from any thread: long texts take seconds."""
        return self._ready_engine().tokenize(text, is_prompt=is_prompt)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's vocabulary; it may be used from any thread. Raises `UnavailableError` where there is none yet."""
        return self._ready_engine().tokenizer

    @property
    def chat_template(self) -> str | None:
        """The chat template in the model file; None if it has none. Raises `UnavailableError` before it is loaded."""
        return self._ready_engine().chat_template

    @property
    def embedder(self) -> Embedder | None:
        """What makes embeddings, where these are wanted. Raises `UnavailableError` before the model is loaded."""
        return self._ready_engine().embedder

    @property
    def streams(self) -> tuple[RequestStream, ...]:
        """The requests that are waiting or running, in the order of their arrival."""
        return tuple(self._streams.values())

    async def submit(self, request: CompletionRequest) -> RequestStream:
        """Queues a request and returns its events.

        Raises `InvalidRequestError` if it can never run and `UnavailableError` if the engine takes none.
        """
        engine = self._ready_engine()
        if request.id in self._streams:
            raise InvalidRequestError(f"the request id {request.id} is in use", param="id")
        stream = RequestStream(request, lambda: self._drop(request.id))
        self._streams[request.id] = stream
        self._idle.clear()
        adding = asyncio.ensure_future(asyncio.to_thread(engine.add_request, request))
        try:
            await asyncio.shield(adding)
        except asyncio.CancelledError:
            adding.add_done_callback(lambda _: stream.close())
            raise
        except BaseException:
            self._forget(request.id)
            raise
        self._wake.set()
        return stream

    async def generate(self, request: CompletionRequest) -> AsyncIterator[Event]:
        """Runs a request: its events, one by one. Leaving the loop early cancels the request.

        Raises `InvalidRequestError` if it can never run and `UnavailableError` if the engine takes none.
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
        assert self._engine is not None
        self._engine.abort(request_id, index, reason)
        self._wake.set()
        return True

    def check_ready(self) -> None:
        """Raises `UnavailableError` if the engine takes no requests now."""
        self._ready_engine()

    def _ready_engine(self) -> Engine:
        if self._status == "dead":
            raise EngineDeadError("the engine has failed; restart the server (its log says why)")
        if self._status == "stopping":
            raise UnavailableError("the server is shutting down")
        if self._engine is None:
            raise UnavailableError(f"the model is loading ({self._progress:.0%}); try again soon")
        return self._engine

    def _drop(self, request_id: str) -> None:
        """Cancels a request whose reader is gone."""
        self.abort(request_id)
        self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        self._streams.pop(request_id, None)
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

    def _on_death(self, events: list[Event], stats: EngineStats) -> None:
        self._status = "dead"
        self._on_step(events, stats)

    # The thread

    def _main(self) -> None:
        call = self._loop.call_soon_threadsafe

        def progress(fraction: float) -> bool:
            call(self._on_progress, fraction)
            return not self._closing

        try:
            backend = self._load(progress)
        except Exception as error:
            call(self._on_load_failed, error)
            return
        try:
            engine = Engine(backend, default_max_tokens=self._default_max_tokens, prefill_chunk=self._prefill_chunk)
            call(self._on_loaded, engine, engine.stats())
            while engine.has_work or not self._closing:
                if engine.has_work:
                    call(self._on_step, engine.step(), engine.stats())
                else:
                    self._wake.wait()
                    self._wake.clear()
        except Exception as error:
            logger.exception("the engine has failed; running requests end with an error, new ones are refused")
            reason = str(error) if isinstance(error, SrbError) else f"{type(error).__name__}: {error}"
            call(
                self._on_death,
                engine.fail(EngineDeadError(f"the engine has failed: {reason}")),
                engine.stats(),
            )
        finally:
            backend.close()
