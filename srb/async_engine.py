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
from srb.engine.engine import Answer, Engine
from srb.engine.events import AbortReason, Event
from srb.engine.request import DEFAULT_MAX_TOKENS, CompletionRequest
from srb.engine.slots import Slots
from srb.engine.stats import EngineStats, Measure
from srb.errors import EngineDeadError, QueueFullError, SrbError, UnavailableError
from srb.journal import Journal
from srb.llama import LlamaBackend
from srb.request_stream import RequestStream
from srb.roster import Roster
from srb.settings import Settings

logger = logging.getLogger("srb")

Record = Callable[[list[Event], Callable[[], object]], object]

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
    keep_seconds, keep_bytes: how long requests are kept that have finished, and how much memory they may take.
    record: gets what a step has said, in the thread, and calls the function that it gets when readers may see it. It is
        for who can go on with detached requests after a restart, so at the end these are left in the middle.
    """

    def __init__(
        self,
        load: Callable[[Callable[[float], bool]], Backend],
        *,
        make: Callable[[Backend], Engine] = Engine,
        max_queue: int = 128,
        queue_timeout: float = 0,
        request_timeout: float = 0,
        keep_seconds: float = 0,
        keep_bytes: int = 0,
        record: Record | None = None,
    ) -> None:
        self._load = load
        self._make = make
        self._record = record
        self._max_queue = max_queue
        self._roster = Roster(
            self._end,
            queue_timeout=queue_timeout,
            request_timeout=request_timeout,
            keep_seconds=keep_seconds,
            keep_bytes=keep_bytes,
        )
        self._status: Status = "loading"
        self._progress = 0.0
        self._engine: Engine | None = None
        self._stats: EngineStats | None = None
        self._failure: EngineDeadError | None = None
        self._failed = asyncio.Event()
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._main, name="srb-engine", daemon=True)

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        observe: Callable[[Measure, float], object] = lambda _measure, _seconds: None,
        record: Record | None = None,
    ) -> "AsyncEngine":
        """An engine on llama.cpp. It raises `ModelLoadError` when it is `ready`, or rather isn't.

        observe: gets the engine's measurements, in its thread. record: see `AsyncEngine`.
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
            keep_seconds=settings.keep_finished,
            keep_bytes=settings.keep_bytes,
            record=record,
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
        if self._record:
            self._roster.suspend()
        self._roster.shut_down(waiting=True)
        try:
            async with asyncio.timeout(grace):
                await self._roster.empty()
        except TimeoutError:
            self._roster.shut_down(waiting=False)
            await self._roster.empty()
        self._closing = True
        self._wake.set()
        await asyncio.to_thread(self._thread.join)
        self._loaded.cancel()

    @property
    def health(self) -> Health:
        """How the engine is now."""
        requests = self.requests
        running = sum(journal.started for journal in requests)
        return Health(self._status, self._progress, running, len(requests) - running, self._stats)

    @property
    def requests(self) -> list[Journal]:
        """The requests that wait or run, in the order of their arrival, without those that are being ended because
        nobody reads them.
        """
        return self._roster.journals

    def tokenize(self, text: str, *, is_prompt: bool = True) -> tuple[int, ...]:
        """The tokens of a text; see `Engine.tokenize`. May be called from any thread: long texts take seconds."""
        return self._ready_engine().tokenize(text, is_prompt=is_prompt)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's vocabulary; it may be used from any thread. Raises `UnavailableError` where there is none yet."""
        return self._ready_engine().tokenizer

    @property
    def identity(self) -> str:
        """What the probabilities of a token depend on, beside the text before it; see `Backend.identity`."""
        return self._ready_engine().identity

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

    def check(self, request: CompletionRequest) -> None:
        """Raises `InvalidRequestError` if a request can never run; see `Engine.check`."""
        self._ready_engine().check(request)

    async def submit(
        self, request: CompletionRequest, *, journal: Journal | None = None, linger: float = 0, is_new: bool = True
    ) -> RequestStream:
        """Queues a request and returns a reader of its events.

        journal: where they go. It is of this request, and has what was said of it if it was interrupted. linger: for
        how many seconds the request goes on without readers, unless it is to do so anyway (`Journal.detach`). is_new:
        whether it may be refused because too many wait; one that was interrupted had its place already.

        Raises `InvalidRequestError` if it can never run, `QueueFullError` if too many wait, and `UnavailableError` if
        the engine takes none.
        """
        engine = self._ready_engine()
        if is_new:
            self.check_queue()
        if journal is None:
            journal = Journal(request)
        journal.arrived = self._loop.time()
        stream = self._roster.add(journal, linger)
        adding = asyncio.ensure_future(asyncio.to_thread(engine.add_request, request))
        adding.add_done_callback(partial(self._on_added, request.id))
        try:
            await asyncio.shield(adding)
        except asyncio.CancelledError:
            stream.close()
            raise
        return stream

    def find(self, request_id: str, owner: str | None = None) -> Journal:
        """The journal of a request that waits or runs, or has finished and is kept.

        Raises `NotFoundError` if there is none that has this owner, `GoneError` if it is no longer kept.
        """
        return self._roster.find(request_id, owner)

    def read(self, journal: Journal, after: int = 0) -> RequestStream:
        """One more reader of a request, which begins behind the event with the id `after`.

        Raises `InvalidRequestError` if there is no such event.
        """
        return self._roster.read(journal, after)

    def forget(self, request_id: str) -> bool:
        """Forgets a request that has finished. Returns False if it isn't kept."""
        return self._roster.forget(request_id)

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
        return self._roster.abort(request_id, index, reason)

    async def ask(self, slot: int, question: Callable[[Slots], Answer]) -> Answer:
        """What a function says of a slot, in the engine's thread. Raises what it raises, and `UnavailableError`."""
        answer = self._ready_engine().ask(slot, question)
        self._wake.set()
        return await asyncio.wrap_future(answer)

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

    def _on_added(self, request_id: str, adding: asyncio.Future[None]) -> None:
        """The engine has taken a request, or refused it."""
        if adding.cancelled() or adding.exception():
            self._roster.refused(request_id)
        else:
            self._wake.set()
            self._roster.taken(request_id)

    def _end(self, request_id: str, index: int | None, reason: AbortReason) -> None:
        assert self._engine is not None
        self._engine.abort(request_id, index, reason)
        self._wake.set()

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
        self._roster.put(events)

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

        def hand_over(events: list[Event], take: Callable[[list[Event], EngineStats], None]) -> None:
            told = partial(call, take, events, engine.stats())
            if self._record and events:
                self._record(events, told)
            else:
                told()

        try:
            call(self._on_loaded, engine, stats)
            while engine.has_work or not self._closing:
                if engine.has_work:
                    hand_over(engine.step(), self._on_step)
                else:
                    self._wake.wait()
                    self._wake.clear()
        except Exception as error:
            logger.exception("the engine has failed; running requests end with an error, new ones are refused")
            reason = str(error) if isinstance(error, SrbError) else f"{type(error).__name__}: {error}"
            dead = EngineDeadError(f"the engine has failed: {reason}")
            hand_over(engine.fail(dead), partial(self._on_death, dead))
        finally:
            engine.close()
            backend.close()
