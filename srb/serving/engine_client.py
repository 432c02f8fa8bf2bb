"""`EngineClient`: an engine as a server uses it: `submit` a request, and read its events.

The engine is in a thread of this process (`srb.serving.async_engine`) or on other machines (`srb.cluster`). What both
have in common is here: requests, their readers, and how they end. A client belongs to the event loop. Other threads may
only call the methods that say so.

The way of an event: `Engine.step` or a replica -> `put` -> the thread of the history, if there is one, which writes it
-> `_call`, into the event loop -> `_deliver` -> `_on_events` -> `RequestRegistry.put` -> `EventLog.put`, which wakes
the readers. The events of prefetched alternatives leave it at `_on_events`, for the `Prefetcher`.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import abc, deque
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, Self, overload

from srb.engine import offline
from srb.engine.events import AbortReason, ErrorEvent, Event, NodeEvent, by_request
from srb.engine.kv_cache.state_cache import StateCache
from srb.engine.kv_cache.state_store import write_text
from srb.engine.lora import Adapters
from srb.engine.mailbox import Answer
from srb.engine.model import ModelInfo, Tokenize
from srb.engine.model_facts import ModelFacts
from srb.engine.offline import Texts
from srb.engine.outputs import CompletionOutput, CompletionOutputs
from srb.engine.request import CompletionRequest, Explore
from srb.engine.resume import ending, resume
from srb.engine.sampling_params import SamplingParams
from srb.engine.score_table import Score, ScoredRow, Table
from srb.engine.stats import EngineStats
from srb.engine.validation.fields import Text
from srb.errors import EngineDeadError, QueueFullError, UnavailableError
from srb.options.settings import Settings
from srb.serving.event_log import EventLog, RequestStream
from srb.serving.health import Health, ReplicaHealth, Status
from srb.serving.prefetch import Prefetcher
from srb.serving.request_registry import RequestRegistry
from srb.serving.score_tables import TableRun

logger = logging.getLogger("srb")

MAX_TRIES = 5
"""The number of attempts to deliver an event that raises an exception."""

_KEEP_BYTES = 256 << 20
"""The memory for the event logs of finished requests, in bytes."""

Publish = abc.Callable[..., object]
"""Gives events to their readers, and then calls the functions that it gets, in the event loop."""

Record = abc.Callable[[list[Event], Publish], object]
"""Gets the events of a step, and a function that it must call when readers may see them."""


def retry(function: abc.Callable[[], object]) -> None:
    """Calls a function up to MAX_TRIES times, until it raises no exception. Raises the last one."""
    for _ in range(MAX_TRIES - 1):
        try:
            function()
            return
        except Exception:
            logger.exception("a fault in srb; trying again")
    function()


def client_options(settings: Settings) -> dict[str, Any]:
    """Returns the settings of the request registry, as arguments for an `EngineClient`."""
    return {
        "max_queue": settings.max_queue,
        "queue_timeout": settings.queue_timeout,
        "request_timeout": settings.request_timeout,
        "keep_seconds": settings.keep_finished,
        "keep_bytes": _KEEP_BYTES,
    }


class EngineClient(ABC):
    """Takes requests, and has their event logs. Use it as a context manager, or call `start`, `ready` and `stop`.

    Args:
        max_queue: the number of requests that may wait.
        record: gets events, and a function that it calls when readers may see them; it may be called from any thread.
            With it, detached requests resume after a restart, so `stop` doesn't end them.
        registry_options: `RequestRegistry`.

    Attributes:
        max_queue: the number of requests that may wait; it may be changed at any time.
        prefetcher: generates further alternatives when nothing else runs. Ask it for them before you submit a request.
        urls: the addresses of the server that has this client.
        others: the addresses of other servers in front of the same engines. Each has requests of its own.
    """

    urls: abc.Sequence[str] = ()
    others: tuple[str, ...] = ()

    # Subclasses set these.
    _model: ModelFacts | None = None
    _stats: EngineStats | None = None
    _replicas: tuple[ReplicaHealth, ...] = ()
    _is_sleeping = False
    _n_restarts = 0

    def __init__(self, *, max_queue: int = 128, record: Record | None = None, **registry_options: Any) -> None:
        self.max_queue = max_queue
        self._record = record
        self.prefetcher = Prefetcher(self._take, self._end, self._setting)
        self._registry = RequestRegistry(
            self._end,
            prioritize=self._prioritize,
            ended=self._on_ended,
            **registry_options,
        )
        self._status: Status = "loading"
        self._progress = 0.0
        self._failure: EngineDeadError | None = None
        self._failed = asyncio.Event()
        self._undelivered: deque[abc.Callable[[], object]] = deque()  # calls of other threads, for the event loop

    async def __aenter__(self) -> Self:
        self.start()
        await self.ready()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    def start(self) -> None:
        """Starts to load the model. Needs a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._loaded: asyncio.Future[None] = self._loop.create_future()
        # asyncio logs an exception that nobody reads, and perhaps nobody calls ready().
        self._loaded.add_done_callback(lambda loaded: loaded.cancelled() or loaded.exception())
        self._load_model()

    async def ready(self) -> None:
        """Waits until the model is loaded. Raises the error if it can't be loaded."""
        await asyncio.shield(self._loaded)

    async def died(self) -> EngineDeadError:
        """Waits until the engine has failed for good. Returns the reason; every request has its last events."""
        await self._failed.wait()
        assert self._failure is not None
        return self._failure

    async def stop(self, grace: float = 0) -> None:
        """Stops the engine. Waiting requests end at once, running ones after `grace` seconds."""
        if self._status != "dead":
            self._status = "stopping"
        if self._record:
            self._registry.suspend()
        self._registry.shut_down(waiting=True)
        try:
            async with asyncio.timeout(grace):
                await self._registry.empty()
        except TimeoutError:
            self._registry.shut_down(waiting=False)
            await self._registry.empty()
        self.prefetcher.close()
        await self._close()
        self._loaded.cancel()

    @property
    def health(self) -> Health:
        """The present state of the engine."""
        requests = self.requests
        running = sum(event_log.started for event_log in requests)
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

    @property
    def model(self) -> ModelFacts:
        """What is known of the model. Raises `UnavailableError` before it is loaded."""
        self.check_ready()
        assert self._model is not None
        return self._model

    @property
    def model_info(self) -> ModelInfo:
        """What the model's file says about the model. Raises `UnavailableError` before it is loaded."""
        return self.model.info

    @property
    def tokenize(self) -> Tokenize:
        """Turns a text into token ids, from any thread: long texts take seconds."""
        return self.model.tokenize

    @property
    def fingerprint(self) -> str:
        """A hash of everything that an answer depends on. Empty before the model is loaded, and with replicas."""
        return self._model.fingerprint if self._model else ""

    @property
    @abstractmethod
    def adapters(self) -> Adapters:
        """The adapters that were loaded with the model. Raises `NotSupportedError` with replicas."""

    @abstractmethod
    def check(self, request: CompletionRequest) -> None:
        """Refuses a request that can never run. Raises `InvalidRequestError`, and `UnavailableError`."""

    @property
    def requests(self) -> list[EventLog]:
        """The requests that wait or run, in order of arrival, without those that end because they have no readers."""
        return self._registry.event_logs

    def detokenize(self, tokens: abc.Iterable[int]) -> str:
        """Returns the text of a prompt's tokens, with the names of control tokens. May be called from any thread."""
        return b"".join(map(self.model.tokenizer.special_piece, tokens)).decode(errors="replace")

    async def submit(
        self,
        request: CompletionRequest,
        *,
        event_log: EventLog | None = None,
        linger: float = 0,
        is_new: bool = True,
        prefetched: abc.Sequence[Event] = (),
    ) -> RequestStream:
        """Queues a request.

        Args:
            event_log: gets the events. It has those of an interrupted request already, which resumes after them.
            linger: how long the request continues without readers, in seconds. With `EventLog.detach` it always does.
            is_new: whether the request may be refused because too many wait. An interrupted one is in the queue
                already.
            prefetched: events of the request that its readers get at once (`Prefetcher.take`).

        Raises:
            InvalidRequestError: The request can never run.
            QueueFullError: Too many requests wait.
            UnavailableError: The engine takes no requests now.
        """
        self.check_ready()
        if is_new:
            self.check_queue()
        if event_log is None:
            if offline.has_texts(request):  # in a thread, because long texts take a while
                request = await asyncio.to_thread(offline.with_tokens, request, self.tokenize)
                self.check_ready()  # again: the engine may have ended meanwhile, and would never answer
            request, prefetched = self.prefetcher.take(request)
            event_log = EventLog(request)
        event_log.arrived = self._loop.time()
        stream = self._registry.add(event_log, linger)
        beginning = asyncio.create_task(self._begin(event_log, prefetched))
        try:
            await asyncio.shield(beginning)
        except asyncio.CancelledError:
            # A refusal that nobody waits for any more.
            beginning.add_done_callback(lambda task: task.cancelled() or task.exception())
            stream.close()
            raise
        return stream

    async def _begin(self, event_log: EventLog, prefetched: abc.Sequence[Event]) -> None:
        """Gives the engine what is left of a request."""
        request = event_log.request
        try:
            rest = resume(request, [*event_log.events, *prefetched])
            if prefetched:
                self.put([*prefetched])
            if rest:
                await self._take(rest)
            elif not prefetched:  # it was interrupted before its last event
                self.put(ending(request, event_log.events, "stop"))
        except BaseException:
            self._registry.refused(request.id)
            raise
        self._registry.taken(request.id)

    def put(self, events: list[Event], *then: abc.Callable[[], object]) -> None:
        """Records events, gives them to the readers of their requests, and calls functions in the event loop.

        It may be called from any thread. All of this is in the order of the calls.
        """
        batches = (partial(self._on_events, batch) for batch in by_request(events).values())
        publish = partial(self._call, *batches, *then)
        if self._record:  # prefetched alternatives are recorded for the request that takes them
            self._record([event for event in events if not self.prefetcher.is_own(event.request_id)], publish)
        else:
            publish()

    def find(self, request_id: str, owner: str | None = None) -> EventLog:
        """Finds the event log of a request.

        Raises:
            NotFoundError: This owner has no such request.
            GoneError: It has finished, and its events were dropped.
        """
        return self._registry.find(request_id, owner)

    def read(self, event_log: EventLog, after: int = 0) -> RequestStream:
        """Adds a reader of a request.

        Args:
            after: the id of the last event that the reader has. 0: it reads all.

        Raises:
            InvalidRequestError: There is no such event.
        """
        return self._registry.read(event_log, after)

    def forget(self, request_id: str) -> bool:
        """Drops the events of a finished request. Returns False if there are none."""
        return self._registry.forget(request_id)

    async def generate(self, request: CompletionRequest) -> abc.AsyncIterator[Event]:
        """Runs a request, and yields its events. Leaving the loop cancels the request.

        Raises:
            SrbError: `submit`.
        """
        async with await self.submit(request) as stream:
            async for events in stream:
                for event in events:
                    yield event

    async def explore(self, prompt: Text, explore: Explore | None = None) -> abc.AsyncIterator[NodeEvent]:
        """Yields the nodes of the tree of probable continuations of a prompt, the most probable first.

        Leaving the loop ends the request. Raises what `submit` raises, and `SrbError` for a fault.
        """
        async for event in self.generate(CompletionRequest.exploring(prompt, explore or Explore())):
            if isinstance(event, NodeEvent):
                yield event
            elif isinstance(event, ErrorEvent):
                raise event.error

    async def generate_texts(
        self, prompt: Text, n: int = 1, params: SamplingParams | None = None
    ) -> CompletionOutputs[CompletionOutput]:
        """Generates n texts that continue a prompt. Raises what `submit` raises, and `SrbError` for a fault."""
        texts = offline.TextsRequest(prompt, n, params)
        async for event in self.generate(texts.request):
            texts.take(event)
        return texts.result()

    @overload
    async def score(self, prompt: Text, candidates: abc.Sequence[Text]) -> list[Score]: ...
    @overload
    async def score(
        self, prompt: Texts, candidates: abc.Sequence[Text] | abc.Sequence[abc.Sequence[Text]]
    ) -> list[list[Score]]: ...

    async def score(self, prompt: Any, candidates: Any) -> Any:
        """Computes the log-probability of each candidate given the prompt, like `LLM.score`.

        Raises what `submit` raises, and `SrbError` for a fault.
        """
        table = offline.table_of(prompt, candidates)
        async with aclosing(self.score_table(table)) as rows:
            return offline.scores_of(table, prompt, [row async for row in rows])

    async def score_table(self, table: Table) -> abc.AsyncGenerator[ScoredRow]:
        """Yields the rows of a table, grouped by context, as soon as they are scored, like `LLM.score_table`.

        Leaving the loop ends the rest. Raises what `submit` raises.
        """
        async with TableRun(self, table) as run:
            async for rows in run.rows():
                for row in rows:
                    yield row
            if run.failure:
                raise run.failure

    async def embed(self, texts: abc.Sequence[Text]) -> list[list[float]]:
        """Embeds texts: makes a vector of the length 1 for each."""
        return await asyncio.to_thread(offline.embed, self.model.embedder, texts, self.tokenize)

    async def save(self, path: str | Path, prompt: Text) -> int:
        """Writes the evaluated state of a text to a file, like `LLM.save`. Returns the number of its tokens.

        Raises what `submit` raises, `SrbError` for a fault, and `OSError`.
        """
        saving = await asyncio.to_thread(offline.SaveRequest, prompt, self.tokenize)
        async for event in self.generate(saving.request):
            saving.take(event)
        saved = await self.ask(offline.SLOT, saving.find)
        await asyncio.to_thread(write_text, Path(path), self.model.identity, saved)
        return saved[-1].end

    async def load(self, path: str | Path) -> tuple[int, ...]:
        """Caches a state that `save` has written, like `LLM.load`. Returns its tokens."""
        saved = await asyncio.to_thread(offline.read_saved, path, self.model.identity)
        return tuple(await self.ask(offline.SLOT, lambda states: states.put(saved)))

    def abort(self, request_id: str, index: int | None = None, reason: AbortReason = "cancelled") -> bool:
        """Ends a request, or only its alternative `index`. Returns False if it isn't waiting or running."""
        return self._registry.abort(request_id, index, reason)

    def check_ready(self) -> None:
        """Raises `UnavailableError` if the engine takes no requests now."""
        if self._status == "dead":
            raise EngineDeadError("the engine has failed; restart the server (its log says why)")
        if self._status == "stopping":
            raise UnavailableError("the server is shutting down")
        if self._status == "loading":
            raise UnavailableError(f"the model is loading ({self._progress:.0%}); try again soon")

    def check_queue(self, waiting: int | None = None) -> None:
        """Raises `QueueFullError` if no more requests may wait.

        Args:
            waiting: the number of requests that wait. None: those of this client.
        """
        waiting = self.health.waiting if waiting is None else waiting
        if waiting >= self.max_queue:
            raise QueueFullError(f"{waiting} requests are waiting, and no more may (--max-queue); try again later")

    @abstractmethod
    async def ask(self, slot: int, question: abc.Callable[[StateCache], Answer]) -> Answer:
        """Calls a function with the cached states in the engine's thread, and returns its result (`Engine.ask`).

        Raises what the function raises, `UnavailableError`, and `NotSupportedError` with replicas.
        """

    @abstractmethod
    def _load_model(self) -> None:
        """Starts to load the model. At the end it calls `_on_loaded` or `_on_load_failed`."""

    @abstractmethod
    async def _take(self, request: CompletionRequest) -> None:
        """Gives a request to the engine. Raises `InvalidRequestError`."""

    @abstractmethod
    def _end(self, request_id: str, index: int | None, reason: AbortReason) -> None:
        """Ends a request that the engine has taken, or one alternative of it."""

    @abstractmethod
    def _prioritize(self, request_id: str, priority: int) -> None:
        """Gives a request that the engine has taken another priority."""

    @abstractmethod
    async def _close(self) -> None:
        """Ends the engine. It has no requests any more."""

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

    def _setting(self) -> abc.Hashable:
        """Returns what texts depend on besides their requests, and can change."""
        return None

    def _call(self, *functions: abc.Callable[[], object]) -> None:
        """Calls functions in the event loop, in the order in which they were given. May be called from any thread."""
        self._undelivered += functions
        retry(partial(self._loop.call_soon_threadsafe, self._deliver))

    def _deliver(self) -> None:
        while self._undelivered:
            try:
                retry(self._undelivered[0])
            except Exception:
                logger.exception("a fault in srb: events of the engine can't be delivered")
            self._undelivered.popleft()

    def _on_events(self, events: list[Event]) -> None:
        """Gives the events of one request in a step to its readers."""
        request_id = events[0].request_id
        if self.prefetcher.is_own(request_id):
            self.prefetcher.put(events)
            return
        try:
            retry(partial(self._registry.put, events))
        except Exception:
            logger.exception("a fault in srb: events of request %s are lost, so it ends", request_id)
            self._registry.lose(request_id)

    def _on_ended(self, event_log: EventLog) -> None:
        self.prefetcher.note(event_log)
