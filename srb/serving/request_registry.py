"""`RequestRegistry`: the journals of the requests that wait, that run, or that have finished and are kept for a while.

A native stream goes on for a while when its reader leaves; streams in other formats end at once. The clients of other
formats don't know the address to come back to, and for most of them closing the connection is the only way to stop.
`detach` makes any request live on. A request whose readers have gone is kept until the engine has ended it, so that it
has its log line and its id isn't used twice. It no longer counts as waiting or running.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from srb.engine.events import AbortReason, DoneEvent, Event, by_request
from srb.errors import GoneError, NotFoundError, UnavailableError, in_use
from srb.serving.event_log import EventLog, RequestStream, done_line

logger = logging.getLogger("srb")

MAX_GONE = 10_000
"""How many ids are remembered of requests that are no longer kept, to tell their clients so."""


@dataclass(eq=False)
class _Living:
    """A request that waits or runs.

    early_aborts: what to abort as soon as it is known that the engine has taken the request, because the engine ignores
        ids that it doesn't know; None from then on.
    given_up: nobody will read it any more, and the engine was told to end it.
    suspended: it goes on after a restart, so its readers are not told that it ends now.
    """

    journal: EventLog
    linger: float
    readers: set[RequestStream] = field(default_factory=set)
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    lingering: asyncio.TimerHandle | None = None
    early_aborts: list[tuple[int | None, AbortReason]] | None = field(default_factory=list)
    given_up: bool = False
    suspended: bool = False


@dataclass(frozen=True)
class _Kept:
    """A request that has finished. size: how many bytes its journal takes."""

    journal: EventLog
    size: int
    timer: asyncio.TimerHandle


class RequestRegistry:
    """The requests of an engine. It belongs to the event loop: only this thread may use it.

    end: tells the engine to abort a request, or one alternative of it.
    ended: is called with the journal of each request that has ended. idle: when no request waits or runs any more.
    queue_timeout: a request is ended if it hasn't started after so many seconds; 0: never.
    request_timeout: a request is ended if it hasn't finished after so many seconds; 0: never.
    keep_seconds, keep_bytes: how long finished requests are kept, and how much memory they may take together.
    """

    def __init__(
        self,
        end: Callable[[str, int | None, AbortReason], object],
        *,
        ended: Callable[[EventLog], object] = lambda _journal: None,
        idle: Callable[[], object] = lambda: None,
        queue_timeout: float = 0,
        request_timeout: float = 0,
        keep_seconds: float = 0,
        keep_bytes: int = 0,
    ) -> None:
        self._end = end
        self._ended = ended
        self._idle = idle
        self._queue_timeout = queue_timeout
        self._request_timeout = request_timeout
        self._keep_seconds = keep_seconds
        self._keep_bytes = keep_bytes
        self._living: dict[str, _Living] = {}
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # those that finished first come first
        self._kept_bytes = 0
        self._gone: OrderedDict[str, str | None] = OrderedDict()  # their owners, by their ids
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def journals(self) -> list[EventLog]:
        """The journals of the requests that wait or run, in the order of arrival, without those that were given up."""
        return [each.journal for each in self._living.values() if not each.given_up]

    @property
    def is_empty(self) -> bool:
        """Whether no request waits or runs, not even one that was given up."""
        return not self._living

    async def empty(self) -> None:
        """Returns when no request waits or runs."""
        await self._empty.wait()

    def add(self, journal: EventLog, linger: float) -> RequestStream:
        """Adds a request that the engine is about to take, and returns its first reader.

        Raises `InvalidRequestError` if its id is in use.
        """
        request_id = journal.request.id
        if request_id in self._living or request_id in self._kept:
            raise in_use(request_id)
        self._living[request_id] = _Living(journal, linger)
        self._empty.clear()
        return self.read(journal)

    def taken(self, request_id: str) -> None:
        """Says that the engine has taken a request. What was aborted in the meantime is aborted now."""
        living = self._living.get(request_id)
        if living is None:  # it has ended already
            return
        early, living.early_aborts = living.early_aborts or [], None
        for index, reason in early:
            self.abort(request_id, index, reason)
        self._set_timers(living)

    def refused(self, request_id: str) -> None:
        """Says that the engine has refused a request."""
        self._remove(self._living[request_id])

    def read(self, journal: EventLog, after: int = 0) -> RequestStream:
        """One more reader, which begins behind the event with the id `after`.

        Raises `InvalidRequestError` if there is no such event.
        """
        living = self._living.get(journal.request.id)
        if living is None:
            return RequestStream(journal, lambda _stream: None, after=after)
        stream = RequestStream(journal, partial(self._left, living), after=after)
        living.readers.add(stream)
        if living.lingering:
            living.lingering.cancel()
        return stream

    def find(self, request_id: str, owner: str | None = None) -> EventLog:
        """The journal of a request.

        Raises `NotFoundError` if this owner has no such request, `GoneError` if it is no longer kept.
        """
        found = self._living.get(request_id) or self._kept.get(request_id)
        if found and found.journal.owner == owner:
            return found.journal
        if request_id in self._gone and self._gone[request_id] == owner:
            raise GoneError(
                f"request {request_id} has finished, and is no longer kept: --keep-finished says for how long that is "
                "done, at most in 256 MiB of memory; send the request again"
            )
        raise NotFoundError(f"there is no request {request_id:.100}", param="id")

    def abort(self, request_id: str, index: int | None = None, reason: AbortReason = "cancelled") -> bool:
        """Ends a request, or its alternative `index`. Returns False if it isn't waiting or running."""
        living = self._living.get(request_id)
        if living is None or (index is not None and index not in living.journal.living):
            return False
        living.journal.aborted |= index is None
        if living.early_aborts is not None:
            living.early_aborts.append((index, reason))
        if living.early_aborts is None or living.journal.started:  # it may run before this thread knows of it
            self._end(request_id, index, reason)
        return True

    def shut_down(self, *, waiting: bool) -> None:
        """Ends the requests that wait; if `waiting` is False, also those that run."""
        for request_id, living in list(self._living.items()):
            if not waiting:
                self.abort(request_id, reason="shutdown")
            elif not living.journal.started:
                living.journal.refusal = UnavailableError("the server is shutting down")
                self.abort(request_id, reason="shutdown")

    def suspend(self) -> None:
        """Ends the detached requests so that they can go on after a restart. Their readers see no last event."""
        for request_id, living in list(self._living.items()):
            if living.journal.detach and living.journal.lasts:
                living.suspended = True
                self.abort(request_id, reason="shutdown")
                for reader in living.readers:
                    reader.cut_off()

    def put(self, events: list[Event]) -> None:
        """Puts the events of a step into the journals, and wakes the readers."""
        for request_id, batch in by_request(events).items():
            living = self._living.get(request_id)
            if living and living.suspended:
                if isinstance(batch[-1], DoneEvent):
                    self._remove(living)
            elif living:
                if not living.journal.done:  # else this is called again, after a fault in what follows
                    living.journal.put(batch)
                for reader in living.readers:
                    reader.wake()
                if living.journal.done:
                    logger.info("%s", done_line(living.journal))
                    self._ended(living.journal)
                    self._remove(living)
                    self._keep(living.journal)

    def lose(self, request_id: str) -> None:
        """Ends a request whose events can't be taken. Its readers see no last event."""
        if living := self._living.get(request_id):
            self.abort(request_id)
            self._remove(living)
            for reader in living.readers:
                reader.cut_off()

    def forget(self, request_id: str) -> bool:
        """Forgets a request that has finished. Returns False if it isn't kept."""
        kept = self._kept.pop(request_id, None)
        if kept is None:
            return False
        kept.timer.cancel()
        self._kept_bytes -= kept.size
        return True

    def _set_timers(self, living: _Living) -> None:
        arrived = living.journal.arrived
        for seconds, option in (
            (self._queue_timeout, "--queue-timeout"),
            (self._request_timeout, "--request-timeout"),
        ):
            if seconds:
                only_waiting = option == "--queue-timeout"
                error = UnavailableError(
                    f"the request has waited for {seconds:g} s, the limit that {option} sets; try again later"
                )
                at = arrived + seconds
                timer = asyncio.get_running_loop().call_at(at, self._expire, living.journal, error, only_waiting)
                living.timers.append(timer)

    def _expire(self, journal: EventLog, error: UnavailableError, only_waiting: bool) -> None:
        if not (journal.started and only_waiting):
            journal.refusal = error
            self.abort(journal.request.id, reason="timeout")

    def _left(self, living: _Living, stream: RequestStream) -> None:
        """Is called when a reader has left. After the last one, the request waits `linger` seconds for a new reader."""
        living.readers.discard(stream)
        if living.readers or living.journal.detach or living.journal.done:
            return
        if living.linger:
            living.lingering = asyncio.get_running_loop().call_later(living.linger, self._give_up, living)
        else:
            self._give_up(living)

    def _give_up(self, living: _Living) -> None:
        living.given_up = True
        self.abort(living.journal.request.id)

    def _remove(self, living: _Living) -> None:
        del self._living[living.journal.request.id]
        for timer in (*living.timers, living.lingering):
            if timer:
                timer.cancel()
        if not self._living:
            self._empty.set()
            self._idle()

    def _keep(self, journal: EventLog) -> None:
        """Keeps the journal of a request that has finished. The requests that finished first make room for it."""
        request_id, size = journal.request.id, journal.size
        timer = asyncio.get_running_loop().call_later(self._keep_seconds, self._let_go, request_id)
        self._kept[request_id] = _Kept(journal, size, timer)
        self._kept_bytes += size
        while self._kept_bytes > self._keep_bytes:
            self._let_go(next(iter(self._kept)))

    def _let_go(self, request_id: str) -> None:
        self._gone[request_id] = self._kept[request_id].journal.owner
        if len(self._gone) > MAX_GONE:
            self._gone.popitem(last=False)
        self.forget(request_id)
