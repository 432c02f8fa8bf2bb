"""`EventLog` has the events of one request. Any number of `RequestStream`s read it.

An event's id is its place: 1, 2, 3 and so on. The ids are the same for all readers, and a reader that has event N has
all events before it. So a reader that was disconnected after event N resumes there, and in the end it has the same
events as without the interruption. The engine waits for no reader: each event is stored once, and a cursor is the id of
the last event that was read.

The log is also what a request resumes from when its engine fails (`srb.engine.resume`).

A running request's log has no limit of its own: it has what the request was admitted to generate. The logs of finished
requests are limited, in time and in bytes; what their answers are made of is counted with them (`memory_of`).

Neighbouring events of one alternative are merged for a late reader, but never across events of another alternative.
Example: the events are `0: "a" (1)`, `1: "x" (2)`, `0: "b" (3)`. A late reader that got `0: "ab" (3)` and was
disconnected would resume after 3, and never see "x".
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import fields, is_dataclass, replace
from itertools import groupby
from typing import Any, Self

from srb.engine.events import (
    AbortReason,
    DoneEvent,
    ErrorEvent,
    Event,
    ProgressEvent,
    StartEvent,
    StopEvent,
    StreamEvent,
)
from srb.engine.request import CompletionRequest
from srb.errors import InvalidRequestError, SrbError, UnavailableError
from srb.serving.logs import logfmt, loggable

MERGE_ABOVE = 1_024
"""A reader with more unread events gets them merged. A reader that is only a moment late gets each token."""

MAX_READ = 4_096
"""The number of events that are read at once, which takes a few milliseconds."""

_EVENT_BYTES = 230
_PROBABILITY_BYTES = 140
_PROMPT_TOKEN_BYTES = 40
_BRANCH_BYTES = 800


def memory_of(value: Any) -> int:
    """Estimates the memory of a value and everything in it, in bytes. An object that is in it twice counts once."""
    seen, left, size = set[int](), [value], 0
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, type):
            continue
        seen.add(id(each))
        size += sys.getsizeof(each)
        if isinstance(each, dict):
            left += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set | frozenset):
            left += each
        elif is_dataclass(each):
            left += [getattr(each, field.name) for field in fields(each)]
        elif hasattr(each, "__dict__"):
            left.append(vars(each))
    return size


class EventLog:
    """The events that the engine has reported for one request.

    Args:
        request: whose events these are.
        owner: whose request it is, where there are API keys.
        detach: whether the request continues without readers.
        lasts: whether a detached request resumes after a restart, if the server has a history. False if it isn't in it.
        exact: whether readers get all events as they came, and never merged. Readers of a format that numbers its own
            events need this.
        created: when it was submitted, in seconds since 1970.
        extra_bytes: the memory of its settings and answers, besides its prompts and events.

    Attributes:
        arrived: when it was submitted, in seconds of the event loop's clock.
        is_given: whether an engine has it, or is given it. If that engine fails, it resumes.
        priority: its present one. The engine has the lowest one for a request that waits for its client to come back.
        started: whether it has left the queue.
        max_tokens: `StartEvent.max_tokens`, if it has started.
        unfinished: the indices of the alternatives that haven't ended.
        lengths: the number of tokens of each alternative that were reported.
        n_steps: the number of steps of an engine that it has events of, besides its start.
        aborts: why alternatives were ended early, by their client or by the server. The key None means all of them.
        refusal: the reason if the server aborted the request before it started.
        size: the memory of the log, its request, and what belongs to it, in bytes. An estimate.
        is_cut_off: whether its readers end before the last event.
    """

    def __init__(
        self,
        request: CompletionRequest,
        *,
        owner: str | None = None,
        detach: bool = False,
        lasts: bool = True,
        exact: bool = False,
        created: int = 0,
        extra_bytes: int = 0,
    ) -> None:
        self.request = request
        self.owner = owner
        self.detach = detach
        self.lasts = lasts
        self.exact = exact
        self.arrived = 0.0
        self.created = created
        self.is_given = False
        self.priority = request.priority
        self.started = False
        self.max_tokens = 0
        self.unfinished = set(range(request.count))
        self.lengths = [0] * request.count
        self.stops: list[StopEvent] = []
        self.error: SrbError | None = None
        self.end: DoneEvent | None = None
        self.n_steps = 0
        self.aborts: dict[int | None, AbortReason] = {}
        self.refusal: UnavailableError | None = None
        self.size = extra_bytes + _PROMPT_TOKEN_BYTES * request.prompt_tokens + _BRANCH_BYTES * len(request.branches)
        self.events: list[Event] = []
        self.is_cut_off = False
        self._news = asyncio.Event()

    def __len__(self) -> int:
        """The number of events, which is the id of the last one."""
        return len(self.events)

    @property
    def done(self) -> bool:
        """Whether it has its last event."""
        return self.end is not None

    @property
    def aborted(self) -> bool:
        """Whether the whole request was ended early."""
        return None in self.aborts

    @property
    def n_tokens(self) -> int:
        """The number of tokens of its prompts and texts so far."""
        return self.request.prompt_tokens + sum(self.lengths)

    @property
    def texts(self) -> list[str]:
        """The text of each alternative so far."""
        parts: list[list[str]] = [[] for _ in range(self.request.count)]
        for event in self.events:
            if isinstance(event, StreamEvent):
                parts[event.index].append(event.text)
        return ["".join(each) for each in parts]

    def put(self, events: list[Event]) -> None:
        """Adds the events of a step, except for the start of a request that resumes, and wakes the readers."""
        if self.started:
            events = [event for event in events if not isinstance(event, StartEvent)]
        self.events += events
        self.size += _EVENT_BYTES * len(events)
        self.n_steps += not all(isinstance(event, StartEvent | ProgressEvent) for event in events)
        for event in events:
            if isinstance(event, StreamEvent):
                self.lengths[event.index] += len(event.sampled)
                if event.token:
                    self.size += _PROBABILITY_BYTES * (1 + len(event.token.top_logprobs))
            elif isinstance(event, StartEvent):
                self.started, self.max_tokens = True, event.max_tokens
            elif isinstance(event, StopEvent):
                self.unfinished.discard(event.index)
                self.lengths[event.index] = event.length
                self.stops.append(event)
            elif isinstance(event, ErrorEvent):
                self.error = event.error
            elif isinstance(event, DoneEvent):
                self.end = event
                if self.request.media:  # an image takes megabytes, and nobody evaluates it any more
                    self.request = replace(self.request, media=())
        self._wake()

    def check_id(self, number: int) -> None:
        """Raises `InvalidRequestError` if a reader can't have the event with this id: there is none."""
        if not 0 <= number <= len(self):
            raise InvalidRequestError(
                f"starting_after must be from 0 to {len(self)}, the id of the last event so far; got {number!s:.60}",
                param="starting_after",
            )

    def read(self, after: int) -> list[tuple[int, Event]]:
        """Returns the events after the one with the id `after`, with their ids: at most MAX_READ.

        A reader that is more than MERGE_ABOVE events late gets neighbouring events of one alternative merged, unless
        the log is `exact` or has probabilities. A merged event has the id of its last part.
        """
        numbered = list(enumerate(self.events[after : after + MAX_READ], after + 1))
        if len(self) - after <= MERGE_ABOVE or self.request.logprobs is not None or self.exact:
            return numbered
        runs = groupby(numbered, lambda each: each[1].index if isinstance(each[1], StreamEvent) else each[0] << 32)
        return [_merged(list(run)) for _, run in runs]

    async def grown(self, after: int) -> bool:
        """Waits for events after the one with the id `after`. Returns False if none will come."""
        while len(self) <= after and not self.done and not self.is_cut_off:
            await self._news.wait()
        return len(self) > after

    def cut_off(self) -> None:
        """Ends the readers before the last event, which comes after a restart."""
        self.is_cut_off = True
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


def _merged(run: list[tuple[int, Event]]) -> tuple[int, Event]:
    """Merges events of one alternative. Any other event is alone."""
    number, last = run[-1]
    if len(run) == 1 or not isinstance(last, StreamEvent):
        return number, last
    parts = [event for _, event in run if isinstance(event, StreamEvent)]
    return number, replace(
        last, text="".join(each.text for each in parts), tokens=tuple(token for each in parts for token in each.tokens)
    )


class RequestStream:
    """A reader of a request: `async for events in stream`. It may begin late, be slow, or leave early.

    Close the stream, or use it as a context manager. When the last reader of a request has left, the request is
    cancelled, unless it was submitted to continue without readers.

    Args:
        event_log: that of the request.
        on_close: called once, when the stream is closed.
        after: the id of the last event that the reader has. 0: it reads all.

    Raises:
        InvalidRequestError: There is no such event.
    """

    def __init__(self, event_log: EventLog, on_close: Callable[["RequestStream"], object], *, after: int = 0) -> None:
        event_log.check_id(after)
        self.event_log = event_log
        self._after = after
        self._on_close = on_close
        self._closed = False

    @property
    def request(self) -> CompletionRequest:
        """The request."""
        return self.event_log.request

    @property
    def at_end(self) -> bool:
        """Whether the stream has read the last event."""
        return self.event_log.done and self._after == len(self.event_log)

    def __aiter__(self) -> AsyncIterator[list[Event]]:
        return self

    async def __anext__(self) -> list[Event]:
        """Waits for events, and returns at least one. No event is lost if it is cancelled."""
        return [event for _, event in await self.numbered()]

    async def numbered(self) -> list[tuple[int, Event]]:
        """Waits for events, and returns at least one, with their ids. Raises `StopAsyncIteration` at the end."""
        if not await self.event_log.grown(self._after):
            raise StopAsyncIteration
        events = self.event_log.read(self._after)
        self._after = events[-1][0]
        return events

    async def collect(self) -> list[Event]:
        """Reads all events. Raises what `raise_refusal` raises."""
        events = [event async for batch in self for event in batch]
        self.raise_refusal()
        return events

    def raise_refusal(self) -> None:
        """Raises the error of a stream that has ended too early.

        Raises:
            UnavailableError: The server has ended the request before it started, or the server ends and the request
                resumes after its next start.
        """
        if self.event_log.is_cut_off and not self.at_end:
            raise UnavailableError(
                f"the server is shutting down, or has failed; request {self.request.id} resumes with its next start"
            )
        if self.event_log.refusal and not self.event_log.started:
            raise self.event_log.refusal

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops reading."""
        if not self._closed:
            self._closed = True
            self._on_close(self)


def done_line(event_log: EventLog) -> str:
    """Formats the log line of a request that has ended."""
    assert event_log.end is not None
    usage, timings = event_log.end.usage, event_log.end.timings
    reasons = Counter(stop.finish_reason for stop in event_log.stops)
    return logfmt(
        event="done",
        id=event_log.request.id,
        count=event_log.request.count,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        generated_tokens=usage.completion_tokens,
        queued_ms=timings.queued_ms,
        prompt_ms=timings.prompt_ms,
        predicted_ms=timings.predicted_ms,
        finish=",".join(f"{reason}:{number}" for reason, number in sorted(reasons.items())),
        abort=next((stop.stop_reason for stop in event_log.stops if stop.finish_reason == "abort"), None),
        error=(loggable(event_log.error) or event_log.error.code) if event_log.error else None,
    )
