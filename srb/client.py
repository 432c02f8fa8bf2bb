"""What a server needs of an engine, wherever that is: in this process (`srb.async_engine`), or on other machines
(`srb.cluster`).

All that is the same for both is here: the requests' journals, who reads them, and how they end. It belongs to the event
loop, but for what is said to be for any thread.
"""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Self

from srb.engine.adapters import Adapters
from srb.engine.backend import ChatTemplate, Embedder, ModelInfo, Tokenizer
from srb.engine.engine import Answer
from srb.engine.events import AbortReason, Event
from srb.engine.media import Media, Part, no_media
from srb.engine.request import CompletionRequest
from srb.engine.slots import Slots
from srb.engine.stats import EngineStats
from srb.engine.texts import has_texts, with_tokens
from srb.errors import EngineDeadError, QueueFullError, UnavailableError
from srb.for_programs import AsyncForPrograms
from srb.health import Health, ReplicaHealth, Status
from srb.journal import Journal
from srb.request_stream import RequestStream
from srb.roster import Roster
from srb.settings import Settings

Record = Callable[[list[Event], Callable[[], object]], object]
"""Gets what was said in a step, and a function to call when readers may see it."""


def client_options(settings: Settings) -> dict[str, Any]:
    """What the settings say of queues and of how long requests are kept, as `EngineClient` takes it."""
    return {
        "max_queue": settings.max_queue,
        "queue_timeout": settings.queue_timeout,
        "request_timeout": settings.request_timeout,
        "keep_seconds": settings.keep_finished,
        "keep_bytes": settings.keep_bytes,
    }


class EngineClient(AsyncForPrograms):
    """Takes requests, and has their journals. Use it as a context manager, or call `start`, `ready` and `stop`.

    max_queue: how many requests may wait.
    queue_timeout, request_timeout: seconds after which a request ends that hasn't started, or hasn't ended; 0: off.
    keep_seconds, keep_bytes: how long requests are kept that have finished, and how much memory they may take.
    lasts: whether somebody can go on with detached requests after a restart, so that these are left in the middle.
    """

    def __init__(
        self,
        *,
        max_queue: int = 128,
        queue_timeout: float = 0,
        request_timeout: float = 0,
        keep_seconds: float = 0,
        keep_bytes: int = 0,
        lasts: bool = False,
    ) -> None:
        self._max_queue = max_queue
        self._lasts = lasts
        self._roster = Roster(
            self._end,
            queue_timeout=queue_timeout,
            request_timeout=request_timeout,
            keep_seconds=keep_seconds,
            keep_bytes=keep_bytes,
        )
        self._status: Status = "loading"
        self._progress = 0.0
        self._failure: EngineDeadError | None = None
        self._failed = asyncio.Event()

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
        # Nobody may wait for ready(), and asyncio complains of an exception that nobody has looked at.
        self._loaded.add_done_callback(lambda loaded: loaded.cancelled() or loaded.exception())
        self._begin()

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
        if self._lasts:
            self._roster.suspend()
        self._roster.shut_down(waiting=True)
        try:
            async with asyncio.timeout(grace):
                await self._roster.empty()
        except TimeoutError:
            self._roster.shut_down(waiting=False)
            await self._roster.empty()
        await self._close()
        self._loaded.cancel()

    @property
    def health(self) -> Health:
        """How the engine is now."""
        requests = self.requests
        running = sum(journal.started for journal in requests)
        waiting = len(requests) - running
        return Health(self._status, self._progress, running, waiting, self._stats, self._replicas, self._is_sleeping)

    url: str | None = None
    """The address of the server that has this client, if others can reach it there."""

    others: tuple[str, ...] = ()
    """The addresses of other servers in front of the same engines; they have requests of their own."""

    @property
    def requests(self) -> list[Journal]:
        """The requests that wait or run, in the order of their arrival, without those that are being ended because
        nobody reads them.
        """
        return self._roster.journals

    def detokenize(self, tokens: Iterable[int]) -> str:
        """The text of a prompt's tokens, control tokens by their names. May be called from any thread."""
        return b"".join(map(self.tokenizer.special_piece, tokens)).decode(errors="replace")

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
        self.check_ready()
        if is_new:
            self.check_queue()
        if journal is None:
            if has_texts(request):  # long ones take a while
                request = await asyncio.to_thread(with_tokens, request, self.tokenize)
            journal = Journal(request)
        journal.arrived = self._loop.time()
        stream = self._roster.add(journal, linger)
        adding = asyncio.ensure_future(self._take(request))
        adding.add_done_callback(partial(self._on_taken, request.id))
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

    def check_ready(self) -> None:
        """Raises `UnavailableError` if the engine takes no requests now."""
        if self._status == "dead":
            raise EngineDeadError("the engine has failed; restart the server (its log says why)")
        if self._status == "stopping":
            raise UnavailableError("the server is shutting down")
        if self._status == "loading":
            raise UnavailableError(f"the model is loading ({self._progress:.0%}); try again soon")

    def check_queue(self) -> None:
        """Raises `QueueFullError` if as many requests wait as may."""
        if (waiting := self.health.waiting) >= self._max_queue:
            raise QueueFullError(f"{waiting} requests are waiting, and no more may (--max-queue); try again later")

    # What there is to know about the model. `UnavailableError` is raised before it is loaded.

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """The model's vocabulary; it may be used from any thread."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """What the probabilities of a token depend on, beside the text before it; see `Backend.identity`."""

    @property
    @abstractmethod
    def chat_template(self) -> ChatTemplate | None:
        """The model's chat template, if it has one. May be used from any thread."""

    @property
    @abstractmethod
    def model_info(self) -> ModelInfo:
        """What the model's file says of it. To read that may take some tenths of a second."""

    @property
    @abstractmethod
    def embedder(self) -> Embedder | None:
        """What makes embeddings, where these are wanted."""

    @property
    @abstractmethod
    def n_cells(self) -> int:
        """How many cells one prompt and its alternatives can have."""

    @abstractmethod
    def tokenize(self, text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]:
        """The tokens of a text; see `Intake.tokenize`. May be called from any thread: long texts take seconds."""

    @property
    def media_kinds(self) -> Collection[str]:
        """What the model takes beside text: image, audio."""
        return ()

    def tokenize_parts(self, parts: Sequence[Part]) -> tuple[tuple[int, ...], tuple[Media, ...]]:
        """The tokens and the `media` of a prompt; see `Engine.tokenize_parts`. May be called from any thread."""
        raise no_media()

    @abstractmethod
    def check(self, request: CompletionRequest) -> None:
        """Raises `InvalidRequestError` if a request can never run; see `Intake.check`."""

    @property
    @abstractmethod
    def adapters(self) -> Adapters:
        """What was loaded with the model. Raises `NotSupportedError` where several engines run."""

    @abstractmethod
    async def ask(self, slot: int, question: Callable[[Slots], Answer]) -> Answer:
        """What a function says of a slot, where its engine runs. Raises what it raises, and `UnavailableError`."""

    # What an engine in its own place does in its own way.

    _stats: EngineStats | None = None
    _replicas: tuple[ReplicaHealth, ...] = ()
    _is_sleeping = False

    @abstractmethod
    def _begin(self) -> None:
        """Begins to load the model; `_on_loaded` or `_on_load_failed` is called then."""

    @abstractmethod
    async def _take(self, request: CompletionRequest) -> None:
        """Hands a request to the engine. From then on its events come. Raises `InvalidRequestError`."""

    @abstractmethod
    def _end(self, request_id: str, index: int | None, reason: AbortReason) -> None:
        """Has the engine end a request that it has taken, or an alternative of it."""

    @abstractmethod
    async def _close(self) -> None:
        """Ends the engine, which has no requests."""

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

    def _on_taken(self, request_id: str, adding: asyncio.Future[None]) -> None:
        """The engine has taken a request, or refused it."""
        if adding.cancelled() or adding.exception():
            self._roster.refused(request_id)
        else:
            self._roster.taken(request_id)
