"""`HistoryService` stores requests, resumes them after a restart, and notifies subscribers of stories."""

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Concatenate, ParamSpec, TypeVar

from aiohttp import web

from srb.engine.events import DoneEvent, Event, StopEvent, StreamEvent
from srb.errors import HistoryError, NotSupportedError, SrbError, UnavailableError
from srb.history.database import UnusableError
from srb.history.history import History
from srb.history.queries import Unfinished, interrupt_for_good, interrupt_unreadable
from srb.history.recorder import Submitted
from srb.server.access import owner_of
from srb.serving.engine_client import EngineClient, Publish, Record
from srb.serving.event_log import EventLog

logger = logging.getLogger("srb")

MAX_LOSSES = 3
"""A request doesn't resume after this many crashes in a row without a further token: it may be the cause."""

REOPEN_SECONDS = 3.0
"""The time between two attempts to open a history that can't be opened now."""


class HistoryService:
    """The requests and stories of a server, if it has a history. It belongs to the event loop.

    `store` is None if none was asked for, or the error why it can't be opened. `reopen` then opens it later, if the
    reason may pass, such as a full disk.

    Attributes:
        feeds: The subscribers of stories.
        is_resuming: Whether requests of an earlier server can't be read yet (`resume_all`).
    """

    def __init__(
        self, store: History | HistoryError | None = None, reopen: Callable[[], History] | None = None
    ) -> None:
        self._store = store
        self._reopen = reopen
        self._opening: asyncio.Task[None] | None = None
        self.feeds = StoryFeeds()
        self.is_resuming = False
        self._loop: asyncio.AbstractEventLoop | None = None  # None until the first request is stored
        if isinstance(store, History):
            store.on_recovery = self._on_recovery

    @property
    def store(self) -> History:
        """The history. Raises `NotSupportedError` if none was asked for, and `HistoryError` if it can't be opened."""
        if self._store is None:
            raise NotSupportedError("this server stores no history and no stories; start it with --history FILE")
        if isinstance(self._store, HistoryError):
            raise HistoryError(self._store.message)
        return self._store

    @property
    def is_on(self) -> bool:
        """Whether requests are stored."""
        return isinstance(self._store, History)

    @property
    def status(self) -> str | None:
        """`ok`, or why the history can't be written now; None if no history was asked for."""
        problem = self._store.writer.problem if isinstance(self._store, History) else self._store
        return problem.message if problem else "ok" if self._store else None

    @property
    def n_pending_writes(self) -> int:
        """How many changes are pending until the history can be written again."""
        return self._store.writer.n_pending if isinstance(self._store, History) else 0

    def check_resumed(self) -> None:
        """Raises `UnavailableError` if requests of an earlier server haven't resumed yet."""
        if self.is_resuming:
            raise UnavailableError("requests of an earlier server haven't resumed yet; try again soon")

    @property
    def record(self) -> Record | None:
        """The function that an `EngineClient` must call with events before readers get them.

        None if no history was asked for. If the history can't be opened yet, the function is there already.
        """
        return None if self._store is None else self._record

    def _record(self, events: list[Event], publish: Publish) -> None:
        if isinstance(self._store, History):
            self._store.take(events, partial(publish, partial(self.feeds.notify_events, events)))
        else:
            publish()

    def _on_recovery(self) -> None:
        if self._loop:
            self._loop.call_soon_threadsafe(self.feeds.notify_all)

    async def begin(self, submitted: Submitted) -> list[int]:
        """Stores a request before the engine gets it. Returns the ids of its alternatives' nodes."""
        self._loop = asyncio.get_running_loop()
        return await asyncio.wrap_future(self.store.begin(submitted))

    def forget(self, request_id: str) -> None:
        """Removes a request that the engine refused."""
        self.feeds.remove_writer(request_id)
        if self.is_on:
            self.store.forget(request_id)

    async def resume_all(self, engine: EngineClient, model: str, *, enabled: bool) -> None:
        """Resumes the detached requests that the server's last end interrupted; later if the history opens later.

        Those that were made with another model stay interrupted, or all, if this isn't enabled: users may continue
        them.
        """
        resume = partial(self._resume_all, engine, model, enabled=enabled)
        if isinstance(self._store, History):
            await resume()
        elif self._reopen and not isinstance(self._store, UnusableError):
            self._opening = asyncio.create_task(self._open_later(self._reopen, resume))

    async def _open_later(self, reopen: Callable[[], History], resume: Callable[[], Awaitable[None]]) -> None:
        while not self.is_on:
            await asyncio.sleep(REOPEN_SECONDS)
            try:
                self._store = await asyncio.to_thread(reopen)
                self._store.on_recovery = self._on_recovery
            except SrbError as error:
                if error.message != self.status:
                    logger.error("%s", error.message)
                self._store = error if isinstance(error, HistoryError) else HistoryError(error.message)
                if isinstance(error, UnusableError):
                    return
        logger.info("requests, their texts and stories are stored now in %s", self.store.path.absolute())
        await resume()

    async def close(self) -> None:
        """Writes pending changes, and closes the history."""
        if self._opening:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if isinstance(self._store, History):
            await asyncio.to_thread(self._store.close)

    async def _resume_all(self, engine: EngineClient, model: str, *, enabled: bool) -> None:
        self._loop = asyncio.get_running_loop()
        with suppress(HistoryError):  # if the file can't be written now, the next start does it
            await asyncio.wrap_future(self.store.write(interrupt_unreadable))
        while self.store.interrupted:
            each = self.store.interrupted.pop(0)
            try:
                await self._resume_or_end(engine, each, model, enabled=enabled)
            except Exception:  # the server must start, whatever the file has
                request_id = each.submitted.request.id
                logger.exception("request %s is interrupted; its data in the history may be damaged", request_id)
                self.store.write(interrupt_for_good, each.number, request_id)

    async def _resume_or_end(self, engine: EngineClient, each: Unfinished, model: str, *, enabled: bool) -> None:
        submitted = each.submitted
        if not submitted.detach:
            self.store.end(each)  # its reader's connection ended with the server
        elif not enabled or submitted.model != model:
            self.store.interrupt(each)
            logger.warning("request %s stays interrupted; it was made with %s", submitted.request.id, submitted.model)
        elif each.losses >= MAX_LOSSES:
            self.store.interrupt(each)
            logger.error(
                "request %s stays interrupted: %d servers in a row crashed while they ran it, without a further "
                "token; it may be the cause",
                submitted.request.id,
                each.losses,
            )
        else:
            await self._resume(engine, each)

    async def _resume(self, engine: EngineClient, each: Unfinished) -> None:
        submitted, request_id = each.submitted, each.submitted.request.id
        try:
            event_log = EventLog(submitted.request, owner=submitted.owner, detach=True, created=submitted.created)
            event_log.put(each.events)
            self.store.resume(each)
            if submitted.story is not None:
                self.feeds.add_writer(request_id, submitted.story)
            (await engine.submit(submitted.request, event_log=event_log, is_new=False)).close()
        except SrbError as error:
            self.feeds.remove_writer(request_id)
            if isinstance(error, UnavailableError):  # the engine stopped or failed; the file still has the request
                logger.warning("request %s resumes at the next start: %s", request_id, error.message)
                return
            logger.error("request %s can't resume: %s", request_id, error.message)
            self.store.end(each)
        else:
            logger.info("request %s resumes", request_id)


class Subscriber:
    """A client that follows a story.

    Attributes:
        updated: Is set when the story has changed, or a text in it has grown.
        changed: Whether the story itself has changed.
    """

    def __init__(self) -> None:
        self.updated = asyncio.Event()
        self.changed = True


class RunningNodes:
    """The nodes that a running request writes, for one subscriber. nodes: their ids, by alternative."""

    def __init__(self, event_log: EventLog, nodes: dict[int, int]) -> None:
        self.event_log = event_log
        self._nodes = nodes
        self._after = len(event_log)

    @property
    def at_end(self) -> bool:
        """Whether all texts are complete and read."""
        return self.event_log.done and self._after == len(self.event_log)

    def read(self) -> dict[int, str]:
        """The text since the last call, by node."""
        texts: dict[int, str] = {}
        for event in self.event_log.events[self._after :]:
            if isinstance(event, StreamEvent) and event.index in self._nodes:
                node = self._nodes[event.index]
                texts[node] = texts.get(node, "") + event.text
        self._after = len(self.event_log)
        return texts


class StoryFeeds:
    """The subscribers of stories, and the requests that write to them. It belongs to the event loop."""

    def __init__(self) -> None:
        self._subscribers: dict[str, set[Subscriber]] = {}
        self._stories: dict[str, str] = {}
        self.closed = False

    @contextmanager
    def subscribe(self, story: str) -> Iterator[Subscriber]:
        """A subscriber, which is notified while the block runs."""
        subscriber = Subscriber()
        subscribers = self._subscribers.setdefault(story, set())
        subscribers.add(subscriber)
        try:
            yield subscriber
        finally:
            subscribers.discard(subscriber)
            if not subscribers:
                self._subscribers.pop(story, None)

    def notify(self, story: str, *, changed: bool = True) -> None:
        """Notifies the subscribers of a story. changed: whether the story itself has changed."""
        for subscriber in self._subscribers.get(story, ()):
            subscriber.changed |= changed
            subscriber.updated.set()

    def add_writer(self, request_id: str, story: str) -> None:
        """Registers a request that writes to a story, until `notify_events` gets its last event."""
        self._stories[request_id] = story
        self.notify(story)

    def remove_writer(self, request_id: str) -> None:
        """Unregisters a request that the engine refused."""
        self._stories.pop(request_id, None)

    def writers(self, story: str) -> list[str]:
        """The ids of the requests that write to a story."""
        return [request_id for request_id, each in self._stories.items() if each == story]

    def notify_events(self, events: Iterable[Event]) -> None:
        """Notifies the subscribers of the stories of these events. Readers must already see the events."""
        if not self._stories:
            return
        for event in events:
            if story := self._stories.get(event.request_id):
                self.notify(story, changed=isinstance(event, StopEvent))
                if isinstance(event, DoneEvent):
                    del self._stories[event.request_id]

    def notify_all(self) -> None:
        """Notifies all subscribers."""
        for story in self._subscribers:
            self.notify(story)

    def close(self) -> None:
        """Ends all subscriptions."""
        self.closed = True
        self.notify_all()


HISTORY = web.AppKey("history", HistoryService)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


async def read_file(
    request: web.Request,
    function: Callable[Concatenate[sqlite3.Connection, str | None, Arguments], Result],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result:
    """Calls a function that reads the history, with the owner of this request, in a thread."""
    store, owner = request.app[HISTORY].store, owner_of(request)
    return await asyncio.to_thread(lambda: store.read(function, owner, *args, **kwargs))


async def write_file(
    request: web.Request,
    function: Callable[Concatenate[sqlite3.Connection, str | None, Arguments], Result],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result:
    """Calls a function that writes to the history, and notifies the story's subscribers.

    Both happen even if the client disconnects.
    """
    writing = asyncio.wrap_future(request.app[HISTORY].store.write(function, owner_of(request), *args, **kwargs))
    writing.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may wait for it any more
    if story := request.match_info.get("story"):
        writing.add_done_callback(lambda _: request.app[HISTORY].feeds.notify(story))
    return await asyncio.shield(writing)
