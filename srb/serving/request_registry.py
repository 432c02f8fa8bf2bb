"""`RequestRegistry`: the event logs of the requests that wait, run, or have finished a while ago.

A native stream continues for a while when its reader leaves (`linger`); streams in other formats end at once. The
clients of other formats don't know the address to come back to, and most can only stop a request by closing the
connection. With `detach`, any request continues. A request without readers stays here until the engine has ended it, so
that it has its log line and its id isn't used twice. It no longer counts as waiting or running.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from srb.engine.events import AbortReason, DoneEvent, Event
from srb.engine.request import LOWEST_PRIORITY
from srb.errors import GoneError, NotFoundError, UnavailableError, in_use
from srb.serving.event_log import EventLog, RequestStream, done_line

logger = logging.getLogger("srb")

MAX_GONE = 10_000
"""The number of ids of dropped requests that are remembered, so that their clients get another error."""


@dataclass(eq=False)
class _Active:
    """A request that waits or runs.

    Attributes:
        given_up: whether it is being aborted because it has no readers.
        suspended: whether it resumes after a restart. Its readers don't get its end.
    """

    event_log: EventLog
    linger: float
    readers: set[RequestStream] = field(default_factory=set)
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    lingering: asyncio.TimerHandle | None = None
    given_up: bool = False
    suspended: bool = False


@dataclass(frozen=True)
class _Finished:
    """A request that has finished. size: the memory of its event log, in bytes."""

    event_log: EventLog
    size: int
    timer: asyncio.TimerHandle


class RequestRegistry:
    """The requests of an engine. It belongs to the event loop: only this thread may use it.

    Args:
        end: aborts a request in the engine, or one alternative of it.
        prioritize: gives a request in the engine another priority.
        ended: called with the event log of each request that has ended.
        queue_timeout: the longest wait for the start of a request, in seconds. 0: no limit.
        request_timeout: the longest time from the arrival of a request to its end, in seconds. 0: no limit.
        keep_seconds: how long finished requests can be read.
        keep_bytes: the memory for all finished requests.
    """

    def __init__(
        self,
        end: Callable[[str, int | None, AbortReason], object],
        *,
        prioritize: Callable[[str, int], object] = lambda _request_id, _priority: None,
        ended: Callable[[EventLog], object] = lambda _event_log: None,
        queue_timeout: float = 0,
        request_timeout: float = 0,
        keep_seconds: float = 0,
        keep_bytes: int = 0,
    ) -> None:
        self._end = end
        self._prioritize = prioritize
        self._ended = ended
        self._queue_timeout = queue_timeout
        self._request_timeout = request_timeout
        self._keep_seconds = keep_seconds
        self._keep_bytes = keep_bytes
        self._active: dict[str, _Active] = {}
        self._finished: OrderedDict[str, _Finished] = OrderedDict()  # those that finished first come first
        self._finished_bytes = 0
        self._gone: OrderedDict[str, str | None] = OrderedDict()  # their owners, by their ids
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def event_logs(self) -> list[EventLog]:
        """The event logs of the requests that wait or run, in order of arrival, without those that were given up."""
        return [each.event_log for each in self._active.values() if not each.given_up]

    @property
    def in_engine(self) -> list[EventLog]:
        """The event logs of the requests that the engine has or is given, in order of arrival."""
        return [each.event_log for each in self._active.values() if each.event_log.is_given]

    async def empty(self) -> None:
        """Waits until no request waits or runs."""
        await self._empty.wait()

    def add(self, event_log: EventLog, linger: float) -> RequestStream:
        """Adds a request that the engine will get, and returns its first reader.

        Args:
            linger: how long it continues without readers, in seconds.

        Raises:
            InvalidRequestError: Its id is in use.
        """
        request_id = event_log.request.id
        if request_id in self._active or request_id in self._finished:
            raise in_use(request_id)
        self._active[request_id] = active = _Active(event_log, linger)
        self._empty.clear()
        self._set_timers(active)
        return self.read(event_log)

    def given(self, request_id: str) -> None:
        """Notes that the engine is given a request."""
        if active := self._active.get(request_id):
            active.event_log.is_given = True

    def taken(self, request_id: str) -> None:
        """Repeats aborts and the priority to an engine that has taken a request. It ignored them before."""
        active = self._active.get(request_id)
        if active is None:  # it has ended already
            return
        for index, reason in active.event_log.aborts.items():
            self._end(request_id, index, reason)
        if active.lingering:
            self._set_priority(active, LOWEST_PRIORITY)

    def refused(self, request_id: str) -> None:
        """Removes a request that the engine has refused."""
        if active := self._active.get(request_id):
            self._remove(active)

    def read(self, event_log: EventLog, after: int = 0) -> RequestStream:
        """Adds a reader that has the events up to the id `after`.

        Raises:
            InvalidRequestError: There is no such event.
        """
        active = self._active.get(event_log.request.id)
        if active is None:
            return RequestStream(event_log, lambda _stream: None, after=after)
        stream = RequestStream(event_log, partial(self._left, active), after=after)
        active.readers.add(stream)
        if active.lingering:
            active.lingering.cancel()
            active.lingering = None
            self._set_priority(active, event_log.request.priority)
        return stream

    def find(self, request_id: str, owner: str | None = None) -> EventLog:
        """Finds the event log of a request.

        Raises:
            NotFoundError: This owner has no such request.
            GoneError: It has finished, and its events were dropped.
        """
        found = self._active.get(request_id) or self._finished.get(request_id)
        if found and found.event_log.owner == owner:
            return found.event_log
        if request_id in self._gone and self._gone[request_id] == owner:
            raise GoneError(
                f"request {request_id} has finished, and its events were dropped: --keep-finished says how long they "
                "stay, in at most 256 MiB of memory; send the request again"
            )
        raise NotFoundError(f"there is no request {request_id:.100}", param="id")

    def abort(self, request_id: str, index: int | None = None, reason: AbortReason = "cancelled") -> bool:
        """Ends a request, or its alternative `index`. Returns False if it isn't waiting or running."""
        active = self._active.get(request_id)
        if active is None or (index is not None and index not in active.event_log.unfinished):
            return False
        active.event_log.aborts.setdefault(index, reason)
        self._end(request_id, index, reason)
        return True

    def shut_down(self, *, waiting: bool) -> None:
        """Ends the requests that wait or, if `waiting` is False, all."""
        for request_id, active in list(self._active.items()):
            if not waiting:
                self.abort(request_id, reason="shutdown")
            elif not active.event_log.started:
                active.event_log.refusal = UnavailableError("the server is shutting down")
                self.abort(request_id, reason="shutdown")

    def suspend(self) -> None:
        """Ends the detached requests so that they resume after a restart. Their readers get no last event."""
        for request_id, active in list(self._active.items()):
            if active.event_log.detach and active.event_log.lasts:
                active.suspended = True
                self.abort(request_id, reason="shutdown")
                active.event_log.cut_off()

    def put(self, events: list[Event]) -> None:
        """Adds the events of one request in a step to its event log, and wakes the readers."""
        active = self._active.get(events[0].request_id)
        if active and active.suspended:
            if isinstance(events[-1], DoneEvent):
                self._remove(active)
        elif active:
            if not active.event_log.done:  # else this is called again, after a fault in what follows
                active.event_log.put(events)
            if active.event_log.done:
                logger.info("%s", done_line(active.event_log))
                self._ended(active.event_log)
                self._remove(active)
                self._add_finished(active.event_log)

    def lose(self, request_id: str) -> None:
        """Ends a request whose events can't be delivered. Its readers get no last event."""
        if active := self._active.get(request_id):
            self.abort(request_id)
            self._remove(active)
            active.event_log.cut_off()

    def forget(self, request_id: str) -> bool:
        """Drops a finished request. Returns False if there is none."""
        finished = self._finished.pop(request_id, None)
        if finished is None:
            return False
        finished.timer.cancel()
        self._finished_bytes -= finished.size
        return True

    def _set_timers(self, active: _Active) -> None:
        arrived = active.event_log.arrived
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
                timer = asyncio.get_running_loop().call_at(at, self._expire, active.event_log, error, only_waiting)
                active.timers.append(timer)

    def _expire(self, event_log: EventLog, error: UnavailableError, only_waiting: bool) -> None:
        if not (event_log.started and only_waiting):
            event_log.refusal = error
            self.abort(event_log.request.id, reason="timeout")

    def _left(self, active: _Active, stream: RequestStream) -> None:
        """Removes a reader. After the last one, the request waits `linger` seconds for a new reader, and runs last."""
        active.readers.discard(stream)
        if active.readers or active.event_log.detach or active.event_log.done:
            return
        if active.linger:
            active.lingering = asyncio.get_running_loop().call_later(active.linger, self._give_up, active)
            self._set_priority(active, LOWEST_PRIORITY)
        else:
            self._give_up(active)

    def _set_priority(self, active: _Active, priority: int) -> None:
        active.event_log.priority = priority
        self._prioritize(active.event_log.request.id, priority)

    def _give_up(self, active: _Active) -> None:
        active.given_up = True
        self.abort(active.event_log.request.id)

    def _remove(self, active: _Active) -> None:
        del self._active[active.event_log.request.id]
        for timer in (*active.timers, active.lingering):
            if timer:
                timer.cancel()
        if not self._active:
            self._empty.set()

    def _add_finished(self, event_log: EventLog) -> None:
        """Adds a finished request, and drops those that finished first until there is memory for it."""
        request_id, size = event_log.request.id, event_log.size
        timer = asyncio.get_running_loop().call_later(self._keep_seconds, self._drop, request_id)
        self._finished[request_id] = _Finished(event_log, size, timer)
        self._finished_bytes += size
        while self._finished_bytes > self._keep_bytes:
            self._drop(next(iter(self._finished)))

    def _drop(self, request_id: str) -> None:
        self._gone[request_id] = self._finished[request_id].event_log.owner
        if len(self._gone) > MAX_GONE:
            self._gone.popitem(last=False)
        self.forget(request_id)
