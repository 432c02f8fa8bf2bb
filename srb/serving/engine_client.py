"""`EngineClient`: what a server needs of an engine.

The engine is in this process (`srb.serving.async_engine`) or on other machines (`srb.cluster`).

Everything that is the same for both is here: the requests' journals, their readers, and how requests end. An
`EngineClient` belongs to the event loop. Only methods that say so may be called from other threads.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Hashable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Self, overload

from srb.engine.events import AbortReason, ErrorEvent, Event, NodeEvent
from srb.engine.kv_cache.slots import Slots, write_slot
from srb.engine.lora import Adapters
from srb.engine.media import Media, PromptPart, no_media
from srb.engine.model import ChatTemplate, Embedder, ModelInfo, Tokenizer
from srb.engine.offline import (
    SLOT,
    Answer,
    Saving,
    Texts,
    Writing,
    embed,
    has_texts,
    read_saved,
    scores_of,
    table_of,
    with_tokens,
)
from srb.engine.request import CompletionRequest, Explore
from srb.engine.resume import resume
from srb.engine.sampling_params import SamplingParams
from srb.engine.score_table import Score, ScoredRow, Table, to_tokens
from srb.engine.stats import EngineStats
from srb.engine.validation.fields import Text
from srb.errors import EngineDeadError, QueueFullError, UnavailableError
from srb.options.settings import Settings
from srb.serving.event_log import EventLog, RequestStream
from srb.serving.health import Health, ReplicaHealth, Status
from srb.serving.prefetch import Prefetcher
from srb.serving.request_registry import RequestRegistry
from srb.serving.score_tables import Tabulation

# `Facts`: what a server must know of the model of its engine, wherever the engine is.


class Facts(ABC):
    """Facts about the model. Before it is loaded, all of these raise `UnavailableError`."""

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """The model's vocabulary; it may be used from any thread."""

    @property
    def fingerprint(self) -> str:
        """See `Backend.fingerprint`. Empty also before the model is loaded, and with replicas."""
        return ""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Names everything that a token's probabilities depend on but the text before it. See `Backend.identity`."""

    @property
    @abstractmethod
    def chat_template(self) -> ChatTemplate | None:
        """The model's chat template, if it has one. May be used from any thread."""

    @property
    @abstractmethod
    def model_info(self) -> ModelInfo:
        """What the model's file says about the model. Reading this may take some tenths of a second."""

    @property
    @abstractmethod
    def embedder(self) -> Embedder | None:
        """Makes embeddings; None if the settings don't ask for them."""

    @property
    @abstractmethod
    def n_cells(self) -> int:
        """The longest context of one request, in KV positions: its prompt and the text of one alternative."""

    @abstractmethod
    def tokenize(self, text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]:
        """The tokens of a text; see `RequestLimits.tokenize`. May be called from any thread: long texts take
        seconds."""

    @property
    def media_kinds(self) -> Collection[str]:
        """The kinds of files that the model takes beside text: image, audio."""
        return ()

    def tokenize_parts(self, parts: Sequence[PromptPart]) -> tuple[tuple[int, ...], tuple[Media, ...]]:
        """The tokens and the `media` of a prompt; see `Engine.tokenize_parts`. May be called from any thread."""
        raise no_media()

    @abstractmethod
    def check(self, request: CompletionRequest) -> None:
        """Raises `InvalidRequestError` if a request can never run; see `RequestLimits.check`."""

    @property
    @abstractmethod
    def adapters(self) -> Adapters:
        """The adapters that were loaded with the model. Raises `NotSupportedError` if several engines run."""


# The methods of an `EngineClient` for programs that want a result and no events; see `srb.engine.offline`.


class AsyncForPrograms(Facts):
    """These methods are the same for every class that has `generate` and knows the model."""

    @abstractmethod
    async def ask(self, slot: int, question: Callable[[Slots], Answer]) -> Answer: ...

    @abstractmethod
    def generate(self, request: CompletionRequest) -> AsyncIterator[Event]: ...

    async def explore(self, prompt: Text, explore: Explore | None = None) -> AsyncIterator[NodeEvent]:
        """The nodes of the tree of likely continuations of a prompt, the likeliest first. Leaving the loop ends the
        request.

        Raises what `submit` raises, and `SrbError` for a fault on the way.
        """
        async for event in self.generate(CompletionRequest.exploring(prompt, explore or Explore())):
            if isinstance(event, NodeEvent):
                yield event
            elif isinstance(event, ErrorEvent):
                raise event.error

    async def generate_texts(self, prompt: Text, n: int = 1, params: SamplingParams | None = None) -> list[str]:
        """n texts that go on with a prompt. Raises what `submit` raises, and `SrbError` for a fault."""
        writing = Writing(prompt, n, params)
        async for event in self.generate(writing.request):
            writing.take(event)
        return writing.result()

    @overload
    async def score(self, prompt: Text, candidates: Sequence[Text]) -> list[Score]: ...
    @overload
    async def score(
        self, prompt: Texts, candidates: Sequence[Text] | Sequence[Sequence[Text]]
    ) -> list[list[Score]]: ...

    async def score(self, prompt: Any, candidates: Any) -> Any:
        """How likely each of these texts is after the prompt, which is evaluated once. See `Engine.score`.

        Raises what `submit` raises, and `SrbError` for a fault.
        """
        table = table_of(prompt, candidates)
        async with aclosing(self.score_table(table)) as rows:
            return scores_of(table, prompt, [row async for row in rows])

    @abstractmethod
    def score_table(self, table: Table) -> AsyncGenerator[ScoredRow]:
        """The rows of a table, those of a context together, as soon as they are known. See `Engine.score_table`.

        Leaving the loop ends what runs of it. Raises what `submit` raises.
        """

    async def embed(self, texts: Sequence[Text]) -> list[list[float]]:
        """The embedding of each text: a vector of the length 1. See `Engine.embed`."""
        return await asyncio.to_thread(embed, self.embedder, texts, self.tokenize)

    async def save(self, path: str | Path, prompt: Text) -> int:
        """Writes the evaluated state of a text to a file; returns how many tokens it has. See `Engine.save`.

        Raises what `submit` raises, `SrbError` for a fault, and `OSError`.
        """
        saving = Saving(await asyncio.to_thread(to_tokens, prompt, self.tokenize, is_prompt=True))
        async for event in self.generate(saving.request):
            saving.take(event)
        saved = await self.ask(SLOT, saving.found)
        await asyncio.to_thread(write_slot, Path(path), self.identity, saved)
        return saved.n_tokens

    async def load(self, path: str | Path) -> tuple[int, ...]:
        """Reads what `save` has written and keeps it as a retained state. Returns its tokens. See `Engine.load`."""
        saved = await asyncio.to_thread(read_saved, path, self.identity)
        return tuple(await self.ask(SLOT, lambda slots: slots.put(saved)))


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

    max_queue: how many requests may wait. kept: how long they may take and are kept, see `RequestRegistry`.
    ahead: what is drawn while nobody waits. Who submits a request asks it first what there is of that.
    record: gets events, and a function that it calls when readers may see these; it may be called from any thread.
        Whoever passes it can go on with detached requests after a restart, so `stop` leaves these in the middle.
    """

    def __init__(self, *, max_queue: int = 128, record: Record | None = None, **kept: Any) -> None:
        self._max_queue = max_queue
        self._record = record
        self.ahead = Prefetcher(self._take, self._end, self._setting, self._is_idle)
        self._roster = RequestRegistry(self._end, ended=self.ahead.note, idle=self.ahead.draw, **kept)
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
    def requests(self) -> list[EventLog]:
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
        journal: EventLog | None = None,
        linger: float = 0,
        is_new: bool = True,
        said: Sequence[Event] = (),
    ) -> RequestStream:
        """Queues a request and returns a reader of its events.

        journal: gets the events. It is a journal of this request. If the request was interrupted, the journal has its
        earlier events already.
        linger: for how many seconds the request goes on without readers. With `EventLog.detach` it always goes on.
        is_new: whether the request may be refused because too many wait. An interrupted one had its place already.
        said: events of the request that are there already, and that its readers get at once; see `Prefetcher.give`.

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
                journal = EventLog(request)
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

    def find(self, request_id: str, owner: str | None = None) -> EventLog:
        """The journal of a request that waits or runs, or has finished and is kept.

        Raises `NotFoundError` if this owner has no such request, `GoneError` if it is no longer kept.
        """
        return self._roster.find(request_id, owner)

    def read(self, journal: EventLog, after: int = 0) -> RequestStream:
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
