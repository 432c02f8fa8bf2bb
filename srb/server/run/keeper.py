"""`Keeper` writes requests to the history, goes on with them after a restart, and has the watchers of stories."""

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Concatenate, ParamSpec, TypeVar

from aiohttp import web

from srb.engine.events import Event
from srb.engine.resume import resume
from srb.errors import HistoryError, NotSupportedError, SrbError, UnavailableError
from srb.history.database import UnusableError
from srb.history.history import History
from srb.history.recorder import Submitted
from srb.history.unfinished import Unfinished, interrupt, interrupt_unreadable
from srb.server.access import owner_of
from srb.server.run.story_feed import Feeds
from srb.serving.engine_client import EngineClient, Record
from srb.serving.event_log import EventLog

logger = logging.getLogger("srb")

RETRY_SECONDS = 3.0
"""How long a server waits before it tries again to open a history that can't be had yet."""

MOST_LOSSES = 3
"""A request that was running when so many servers in a row were lost doesn't go on: it may be the cause."""


class Keeper:
    """Keeps the requests and the stories of a server, if it has a history. It belongs to the event loop.

    history: the history; None if none was asked for; or the error because of which it can't be had.
    open_again: opens the history later, if it can't be had for a reason that may pass, such as a full disk.
    """

    def __init__(
        self, history: History | HistoryError | None = None, open_again: Callable[[], History] | None = None
    ) -> None:
        self._history = history
        self._open_again = open_again
        self._opening: asyncio.Task[None] | None = None
        self.feeds = Feeds()
        self.is_resuming = False
        """Whether requests of an earlier server can't be read on yet; see `resume_all`."""
        self._loop: asyncio.AbstractEventLoop | None = None  # None until the first request is kept
        if isinstance(history, History):
            history.on_recovery = self._on_recovery

    @property
    def history(self) -> History:
        """The history. Raises `NotSupportedError` if none was asked for, and `HistoryError` if it can't be had."""
        if self._history is None:
            raise NotSupportedError("this server keeps no history and no stories; start it with --history FILE")
        if isinstance(self._history, HistoryError):
            raise HistoryError(self._history.message)
        return self._history

    @property
    def is_on(self) -> bool:
        """Whether requests are kept."""
        return isinstance(self._history, History)

    @property
    def status(self) -> str | None:
        """`ok`, or why the history isn't written now; None if no history was asked for."""
        problem = self._history.problem if isinstance(self._history, History) else self._history
        return problem.message if problem else "ok" if self._history else None

    @property
    def n_owed(self) -> int:
        """How many changes wait until the history can be written again."""
        return self._history.n_owed if isinstance(self._history, History) else 0

    def check_resumed(self) -> None:
        """Raises `UnavailableError` if requests of an earlier server can't be read on yet."""
        if self.is_resuming:
            raise UnavailableError("the requests of an earlier server can't be read on yet; try again soon")

    @property
    def record(self) -> Record | None:
        """The function that an `EngineClient` must give its events to before any reader gets them.

        None if no history was asked for. One that can't be had yet may come later.
        """
        return None if self._history is None else self._record

    def _record(self, events: list[Event], told: Callable[[], object]) -> None:
        history, loop = self._history, self._loop
        if not isinstance(history, History):
            told()
            return

        def written() -> None:
            told()
            if loop:
                loop.call_soon_threadsafe(self.feeds.tell_events, events)

        history.take(events, written)

    def _on_recovery(self) -> None:
        if self._loop:
            self._loop.call_soon_threadsafe(self.feeds.tell_all)

    async def begin(self, submitted: Submitted) -> list[int]:
        """Writes a request that the engine is about to take. Returns the ids of its alternatives' nodes."""
        self._loop = asyncio.get_running_loop()
        return await asyncio.wrap_future(self.history.begin(submitted))

    def forget(self, request_id: str) -> None:
        """Removes a request that the engine has refused."""
        self.feeds.remove_writer(request_id)
        if self.is_on:
            self.history.forget(request_id)

    async def resume_all(self, engine: EngineClient, model: str, *, goes_on: bool) -> None:
        """Goes on with the detached requests that the server's last end interrupted; later if the history opens later.

        model: the loaded model. A request that was made with another one stays interrupted.
        goes_on: if False, all stay interrupted, and somebody may continue them by hand.
        """
        if isinstance(self._history, History):
            await self._resume_all(engine, model, goes_on=goes_on)
        elif self._open_again and not isinstance(self._history, UnusableError):
            self._opening = asyncio.create_task(self._open_later(self._open_again, engine, model, goes_on=goes_on))

    async def _open_later(
        self, open_again: Callable[[], History], engine: EngineClient, model: str, *, goes_on: bool
    ) -> None:
        while not self.is_on:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                self._history = await asyncio.to_thread(open_again)
                self._history.on_recovery = self._on_recovery
            except SrbError as error:
                if error.message != self.status:
                    logger.error("%s", error.message)
                self._history = error if isinstance(error, HistoryError) else HistoryError(error.message)
                if isinstance(error, UnusableError):
                    return
        logger.info("requests, their texts and stories are kept now in %s", self.history.path.absolute())
        await self._resume_all(engine, model, goes_on=goes_on)

    async def close(self) -> None:
        """Writes what waits, and closes the history."""
        if self._opening:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if isinstance(self._history, History):
            await asyncio.to_thread(self._history.close)

    async def _resume_all(self, engine: EngineClient, model: str, *, goes_on: bool) -> None:
        self._loop = asyncio.get_running_loop()
        with suppress(HistoryError):  # if the file can't be written now, the next start does it
            await asyncio.wrap_future(self.history.write(interrupt_unreadable))
        while self.history.interrupted:
            each = self.history.interrupted.pop(0)
            try:
                await self._go_on(engine, each, model, goes_on=goes_on)
            except Exception:  # the server must start, whatever the file has
                request_id = each.submitted.request.id
                logger.exception("request %s is interrupted; what the history has of it may be damaged", request_id)
                self.history.write(interrupt, each.number, request_id)

    async def _go_on(self, engine: EngineClient, each: Unfinished, model: str, *, goes_on: bool) -> None:
        submitted = each.submitted
        if not submitted.detach:
            self.history.end(each)  # its reader's connection ended with the server
        elif not goes_on or submitted.model != model:
            self.history.interrupt(each)
            logger.warning("request %s stays interrupted; it was made with %s", submitted.request.id, submitted.model)
        elif each.losses >= MOST_LOSSES:
            self.history.interrupt(each)
            logger.error(
                "request %s stays interrupted: %d servers in a row were lost while they ran it, without a further "
                "token; it may be the cause",
                submitted.request.id,
                each.losses,
            )
        else:
            await self._resume(engine, each)

    async def _resume(self, engine: EngineClient, each: Unfinished) -> None:
        submitted, request_id = each.submitted, each.submitted.request.id
        try:
            request = resume(submitted.request, each.events)
            if request is None:  # the request is complete, only its last event is missing
                self.history.end(each)
                return
            journal = EventLog(submitted.request, owner=submitted.owner, detach=True, created=submitted.created)
            journal.put(each.events)
            self.history.resume(each)
            if submitted.story is not None:
                self.feeds.add_writer(request_id, submitted.story)
            (await engine.submit(request, journal=journal, is_new=False)).close()
        except UnavailableError as error:  # the engine ends or has failed meanwhile, and the file still has the request
            self.feeds.remove_writer(request_id)
            logger.warning("request %s goes on with the next start: %s", request_id, error.message)
        except SrbError as error:
            logger.error("request %s can't go on: %s", request_id, error.message)
            self.history.end(each)
        else:
            logger.info("request %s goes on", request_id)


# How routes read and write the history: with the owner of their request, and through the app's `Keeper`.

KEEPER = web.AppKey("keeper", Keeper)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


async def read_file(
    request: web.Request,
    function: Callable[Concatenate[sqlite3.Connection, str | None, Arguments], Result],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result:
    """Calls a function that reads the history's file, with the owner of this request. Returns its result."""
    history, owner = request.app[KEEPER].history, owner_of(request)
    return await asyncio.to_thread(lambda: history.read(function, owner, *args, **kwargs))


async def write_file(
    request: web.Request,
    function: Callable[Concatenate[sqlite3.Connection, str | None, Arguments], Result],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result:
    """Calls a function that writes to the history's file, and tells those who watch the story.

    Both happen even if the client leaves meanwhile.
    """
    writing = asyncio.wrap_future(request.app[KEEPER].history.write(function, owner_of(request), *args, **kwargs))
    if story := request.match_info.get("story"):
        writing.add_done_callback(lambda _: request.app[KEEPER].feeds.tell(story))
    return await asyncio.shield(writing)
