"""`EngineClient`: what a server needs of an engine.

The engine is in this process (`srb.serving.async_engine`) or on other machines (`srb.cluster`).

Everything that is the same for both is here: the requests' journals, their readers, and how requests end. An
`EngineClient` belongs to the event loop. Only methods that say so may be called from other threads.
"""

import asyncio
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Self

from srb.engine.asking.request import CompletionRequest
from srb.engine.asking.resume import resume
from srb.engine.engine import Answer
from srb.engine.kept.slots import Slots
from srb.engine.programs.table import ScoredRow, Table
from srb.engine.programs.texts import has_texts, with_tokens
from srb.engine.telling.events import AbortReason, Event
from srb.engine.telling.stats import EngineStats
from srb.errors import EngineDeadError, QueueFullError, UnavailableError
from srb.options.settings import Settings
from srb.serving.ahead import Ahead
from srb.serving.for_programs import AsyncForPrograms
from srb.serving.health import Health, ReplicaHealth, Status
from srb.serving.journal import Journal
from srb.serving.request_stream import RequestStream
from srb.serving.roster import Roster
from srb.serving.tables import Tabulation

logger = logging.getLogger("srb")

MAX_TRIES = 5
"""How often the delivery of an event is tried if it raises an exception."""

_KEEP_BYTES = 256 << 20
"""How much memory finished requests may take that can still be read."""

Record = Callable[[list[Event], Callable[[], object]], object]
"""Gets the events of a step, and a function that it must call when readers may see them."""


def retry(function: Callable[[], object]) -> None:
    """Calls a function up to MAX_TRIES times, until it raises no exception. Raises the last one."""
    for _ in range(MAX_TRIES - 1):
        try:
            function()
            return
        except Exception:
            logger.exception("a fault in srb; trying again")
    function()


def client_options(settings: Settings) -> dict[str, Any]:
    """The settings of queues, and of how long requests are kept, as arguments for an `EngineClient`."""
    return {
        "max_queue": settings.max_queue,
        "queue_timeout": settings.queue_timeout,
        "request_timeout": settings.request_timeout,
        "keep_seconds": settings.keep_finished,
        "keep_bytes": _KEEP_BYTES,
    }


class EngineClient(AsyncForPrograms):
    """Takes requests, and has their journals. Use it as a context manager, or call `start`, `ready` and `stop`.

    max_queue: how many requests may wait. kept: how long they may take and are kept, see `Roster`.
    ahead: what is drawn while nobody waits. Who submits a request asks it first what there is of that.
    record: gets events, and a function that it calls when readers may see these; it may be called from any thread.
        Whoever passes it can go on with detached requests after a restart, so `stop` leaves these in the middle.
    """

    def __init__(self, *, max_queue: int = 128, record: Record | None = None, **kept: Any) -> None:
        self._max_queue = max_queue
        self._record = record
        self.ahead = Ahead(self._take, self._end, self._setting, self._is_idle)
        self._roster = Roster(self._end, ended=self.ahead.note, idle=self.ahead.draw, **kept)
        self._status: Status = "loading"
        self._progress = 0.0
        self._failure: EngineDeadError | None = None
        self._failed = asyncio.Event()
        self._undelivered: deque[Callable[[], object]] = deque()  # what other threads want done in the event loop

    async def __aenter__(self) -> Self:
        self.start()
        await self.ready()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    def start(self) -> None:
        """Begins to load the model. Needs a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[None] = self._loop.create_future()
        # asyncio complains about an exception that nobody looks at, and perhaps nobody calls ready().
        self._loaded.add_done_callback(lambda loaded: loaded.cancelled() or loaded.exception())
        self._begin()

    async def ready(self) -> None:
        """Returns when the model is loaded. Raises what loading it raised."""
        await asyncio.shield(self._loaded)

    async def died(self) -> EngineDeadError:
        """Returns the reason when the engine has failed. By then every request has its last events."""
        await self._failed.wait()
        assert self._failure is not None
        return self._failure

    async def stop(self, grace: float = 0) -> None:
        """Ends the engine. Waiting requests end at once, and running ones when `grace` seconds have passed."""
        if self._status != "dead":
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
        self.ahead.make_way()
        await self._close()
        self._loaded.cancel()

    @property
    def health(self) -> Health:
        """The state of the engine now."""
        requests = self.requests
        running = sum(journal.started for journal in requests)
        waiting = len(requests) - running
        return Health(
            self._status,
            self._progress,
            running,
            waiting,
            self._stats,
            self._replicas,
            self._is_sleeping,
            self._n_restarts,
        )

    urls: Sequence[str] = ()
    """The addresses of the server that has this client."""

    others: tuple[str, ...] = ()
    """The addresses of other servers in front of the same engines. Each has requests of its own."""

    @property
    def requests(self) -> list[Journal]:
        """The requests that wait or run, in the order of their arrival.

        Those that are being ended because nobody reads them are left out.
        """
        return self._roster.journals

    def detokenize(self, tokens: Iterable[int]) -> str:
        """The text of a prompt's tokens, with the names of control tokens. May be called from any thread."""
        return b"".join(map(self.tokenizer.special_piece, tokens)).decode(errors="replace")

    async def submit(
        self,
        request: CompletionRequest,
        *,
        journal: Journal | None = None,
        linger: float = 0,
        is_new: bool = True,
        said: Sequence[Event] = (),
    ) -> RequestStream:
        """Queues a request and returns a reader of its events.

        journal: gets the events. It is a journal of this request. If the request was interrupted, the journal has its
        earlier events already.
        linger: for how many seconds the request goes on without readers. With `Journal.detach` it always goes on.
        is_new: whether the request may be refused because too many wait. An interrupted one had its place already.
        said: events of the request that are there already, and that its readers get at once; see `Ahead.give`.

        Raises `InvalidRequestError` if the request can never run, `QueueFullError` if too many wait, and
        `UnavailableError` if the engine takes no requests now.
        """
        with self.ahead.paused():
            self.check_ready()
            if is_new:
                self.check_queue()
            if journal is None:
                if has_texts(request):  # in a thread, because long texts take a while
                    request = await asyncio.to_thread(with_tokens, request, self.tokenize)
                    self.check_ready()  # again: the engine may have ended meanwhile, and would never answer
                request, said, _ = self.ahead.give(request)
                journal = Journal(request)
            journal.arrived = self._loop.time()
            stream = self._roster.add(journal, linger)
        try:
            if said:
                self.put([*said])
            rest = resume(request, said) if said else request
        except BaseException:
            self._roster.refused(request.id)
            raise
        if rest is None:
            return stream
        adding = asyncio.ensure_future(self._take(rest))
        adding.add_done_callback(partial(self._on_taken, request.id))
        try:
            await asyncio.shield(adding)
        except asyncio.CancelledError:
            stream.close()
            raise
        return stream

    def put(self, events: list[Event]) -> None:
        """Gives the events of requests to their readers, after they were recorded."""
        if self._record:
            self._put_on_record(events, partial(self._call, partial(self._tell, events)))
        else:
            self._tell(events)

    def find(self, request_id: str, owner: str | None = None) -> Journal:
        """The journal of a request that waits or runs, or has finished and is kept.

        Raises `NotFoundError` if this owner has no such request, `GoneError` if it is no longer kept.
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
        """Runs a request, and yields its events one by one. Leaving the loop early cancels the request.

        Raises what `submit` raises.
        """
        async with await self.submit(request) as stream:
            async for events in stream:
                for event in events:
                    yield event

    async def score_table(self, table: Table) -> AsyncGenerator[ScoredRow]:
        """See `AsyncForPrograms.score_table`."""
        async with Tabulation(self, table) as tabulation:
            async for rows in tabulation.rows():
                for row in rows:
                    yield row
            if tabulation.failure:
                raise tabulation.failure

    def abort(self, request_id: str, index: int | None = None, reason: AbortReason = "cancelled") -> bool:
        """Ends a request, or the alternative `index` of it. Returns False if it isn't waiting or running."""
        return self._roster.abort(request_id, index, reason)

    def check_ready(self) -> None:
        """Raises `UnavailableError` if the engine takes no requests now."""
        if self._status == "dead":
            raise EngineDeadError("the engine has failed; restart the server (its log says why)")
        if self._status == "stopping":
            raise UnavailableError("the server is shutting down")
        if self._status == "loading":
            raise UnavailableError(f"the model is loading ({self._progress:.0%}); try again soon")

    def check_queue(self, waiting: int | None = None) -> None:
        """Raises `QueueFullError` if no more requests may wait. waiting: how many do; None: those that this has."""
        waiting = self.health.waiting if waiting is None else waiting
        if waiting >= self._max_queue:
            raise QueueFullError(f"{waiting} requests are waiting, and no more may (--max-queue); try again later")

    @abstractmethod
    async def ask(self, slot: int, question: Callable[[Slots], Answer]) -> Answer:
        """Calls a function with the slots in the engine's thread, and returns its result. See `Engine.ask`.

        Raises what the function raises, `UnavailableError`, and `NotSupportedError` if several engines run.
        """

    # What each subclass does in its own way.

    _stats: EngineStats | None = None
    _replicas: tuple[ReplicaHealth, ...] = ()
    _is_sleeping = False
    _n_restarts = 0

    @abstractmethod
    def _begin(self) -> None:
        """Begins to load the model. At the end of that it calls `_on_loaded` or `_on_load_failed`."""

    @abstractmethod
    async def _take(self, request: CompletionRequest) -> None:
        """Gives a request to the engine, which makes its events from then on. Raises `InvalidRequestError`."""

    @abstractmethod
    def _end(self, request_id: str, index: int | None, reason: AbortReason) -> None:
        """Makes the engine end a request that it has taken, or one alternative of it."""

    @abstractmethod
    async def _close(self) -> None:
        """Ends the engine, which has no requests any more."""

    def _on_loaded(self) -> None:
        self._progress = 1.0
        if self._status == "loading":
            self._status = "ready"
        if not self._loaded.done():
            self._loaded.set_result(None)

    def _on_load_failed(self, error: BaseException) -> None:
        self._status = "dead"
        if not self._loaded.done():
            self._loaded.set_exception(error)

    def _setting(self) -> Hashable:
        """What texts depend on beside their requests, as far as it can be changed."""
        return None

    def _is_idle(self) -> bool:
        """Whether it takes requests, and none waits or runs."""
        return self._status == "ready" and self._roster.is_empty

    def _put_on_record(self, events: list[Event], told: Callable[[], object]) -> None:
        """Records events, but not what it draws ahead, and then calls a function. May be called from any thread."""
        if self._record and (asked := [event for event in events if not self.ahead.is_own(event.request_id)]):
            self._record(asked, told)
        else:
            told()

    def _call(self, *functions: Callable[[], object]) -> None:
        """Calls functions in the event loop, after all that were given to this method before. From any thread."""
        self._undelivered += functions
        retry(partial(self._loop.call_soon_threadsafe, self._deliver))

    def _deliver(self) -> None:
        while self._undelivered:
            try:
                retry(self._undelivered[0])
            except Exception:
                logger.exception("a fault in srb: what the engine tells can't be taken")
            self._undelivered.popleft()

    def _tell(self, events: list[Event]) -> None:
        self._roster.put(events)
        self.ahead.put(events)

    def _on_taken(self, request_id: str, adding: asyncio.Future[None]) -> None:
        """Is called when the engine has taken a request, or refused it."""
        if adding.cancelled() or adding.exception():
            self._roster.refused(request_id)
        else:
            self._roster.taken(request_id)
