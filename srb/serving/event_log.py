"""`EventLog` has the events of one request. Any number of `RequestStream`s read it, each with a `Cursor`.

An event's id is its place: 1, 2, 3 and so on. The ids are the same for all readers, and a reader that has event N has
all events before it. So a reader that was disconnected after event N resumes there, and in the end it has the same
events as without the interruption. The engine waits for no reader: each alternative's text is stored once, and a
cursor is one number.

A running request's log has no limit of its own: it has what the request was admitted to generate. The logs of finished
requests are limited, in time and in bytes; what their answers are made of is counted with them (`memory_of`).

Neighbouring events of one alternative are merged for a late reader, but never across events of another alternative.
Example: the events are `0: "a" (1)`, `1: "x" (2)`, `0: "b" (3)`. A late reader that got `0: "ab" (3)` and was
disconnected would resume after 3, and never see "x".
"""

import asyncio
import math
import struct
import sys
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, Self

from srb.engine.events import DoneEvent, ErrorEvent, Event, StartEvent, StopEvent, StreamEvent, Token
from srb.engine.request import CompletionRequest
from srb.errors import InvalidRequestError, SrbError, UnavailableError
from srb.serving.logs import logfmt, loggable

MERGE_ABOVE = 1_024
"""A reader with more unread events gets them merged. A reader that is only a moment late gets each token."""

MAX_READ = 4_096
"""The number of events that are read at once, which takes a few milliseconds."""

_OTHER = 0xFFFF_FFFF  # in place of an index: the event isn't a StreamEvent

_OTHER_BYTES = 400
_PROMPT_TOKEN_BYTES = 40
_BRANCH_BYTES = 800
_PROBABILITY = struct.Struct("<id")  # a token's id and its logprob; not a number where it has none


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

    The text of each alternative is stored in one piece, and an event only has the end of its part. The same is done for
    tokens and probabilities if the request asks for them. An event takes 8 bytes besides its text; with `return_tokens`
    8 more; with `logprobs` 4 more, and 12 for each token that it names.

    Args:
        request: whose events these are.
        owner: whose request it is, where there are API keys.
        detach: whether the request continues without readers.
        lasts: whether a detached request resumes after a restart, if the server has a history. False if it isn't in it.
        exact: whether readers get all events as they came, and never merged. Readers of a format that numbers its own
            events need this.
        arrived: when it was submitted, in seconds of the event loop's clock.
        created: when it was submitted, in seconds since 1970.
        extra_bytes: the memory of its settings and answers, besides its prompts and events.

    Attributes:
        started: whether it has left the queue.
        max_tokens: `StartEvent.max_tokens`, if it has started.
        unfinished: the indices of the alternatives that haven't ended.
        lengths: the number of tokens of each alternative that were reported.
        aborted: whether the whole request was ended early, by its client or by the server.
        refusal: the reason if the server aborted the request before it started.
    """

    def __init__(
        self,
        request: CompletionRequest,
        *,
        owner: str | None = None,
        detach: bool = False,
        lasts: bool = True,
        exact: bool = False,
        arrived: float = 0.0,
        created: int = 0,
        extra_bytes: int = 0,
    ) -> None:
        self.request = request
        self._extra_bytes = extra_bytes
        self.owner = owner
        self.detach = detach
        self.lasts = lasts
        self.exact = exact
        self.arrived = arrived
        self.created = created
        self.started = False
        self.max_tokens = 0
        self.unfinished = set(range(request.count))
        self.lengths = [0] * request.count
        self.stops: list[StopEvent] = []
        self.error: SrbError | None = None
        self.end: DoneEvent | None = None
        self.aborted = False
        self.refusal: UnavailableError | None = None
        self._indexes = array("I")
        self._others: dict[int, Event] = {}  # by place
        self._texts = _Column([bytearray() for _ in range(request.count)])
        self._tokens = _Column([array("i") for _ in range(request.count)])
        self._probabilities = _Column([bytearray() for _ in range(request.count)])
        self._columns = [self._texts]
        if request.return_tokens:
            self._columns.append(self._tokens)
        if request.logprobs is not None:
            self._columns.append(self._probabilities)
        self._token_pieces: dict[int, bytes] = {}
        self._latest: list[Event] = []  # of the last step, for readers that have all events before it

    def __len__(self) -> int:
        """The number of events, which is the id of the last one."""
        return len(self._indexes)

    @property
    def done(self) -> bool:
        """Whether it has its last event."""
        return self.end is not None

    @property
    def texts(self) -> list[str]:
        """The text of each alternative so far."""
        return [text.decode() for text in self._texts.pieces]

    @property
    def size(self) -> int:
        """The memory of the log, its request, and what belongs to it, in bytes. An estimate."""
        request = _PROMPT_TOKEN_BYTES * self.request.prompt_tokens + _BRANCH_BYTES * len(self.request.branches)
        events = sys.getsizeof(self._indexes) + _OTHER_BYTES * len(self._others)
        names = sys.getsizeof(self._token_pieces) + sum(map(sys.getsizeof, self._token_pieces.values()))
        return self._extra_bytes + request + events + names + sum(column.size for column in self._columns)

    def raise_refusal(self) -> None:
        """Raises `UnavailableError` if the server ended the request before it started."""
        if self.refusal and not self.started:
            raise self.refusal

    def put(self, events: list[Event]) -> None:
        """Adds the events of a step, except for the start of a request that resumes."""
        if self.started:
            events = [event for event in events if not isinstance(event, StartEvent)]
        self._latest = events
        for event in events:
            if isinstance(event, StreamEvent):
                self._put_text(event)
                continue
            if isinstance(event, StartEvent):
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
            self._others[len(self)] = event
            self._indexes.append(_OTHER)
            for column in self._columns:
                column.ends.append(0)

    def _put_text(self, event: StreamEvent) -> None:
        index = event.index
        self.lengths[index] += len(event.sampled)
        self._indexes.append(index)
        self._texts.add(index, event.text.encode())
        if self.request.return_tokens:
            self._tokens.add(index, event.tokens)
        if self.request.logprobs is not None:
            part = b""
            for token in (event.token, *event.token.top_logprobs) if event.token else ():
                self._token_pieces[token.id] = token.piece
                part += _PROBABILITY.pack(token.id, math.nan if token.logprob is None else token.logprob)
            self._probabilities.add(index, part)


class _Column:
    """The texts of all alternatives, or their tokens, or their probabilities.

    Attributes:
        pieces: for each alternative, everything in one piece.
        ends: for each event, the end of its part of the piece.
    """

    def __init__(self, pieces: list[Any]) -> None:
        self.pieces = pieces
        self.ends = array("I")

    def add(self, index: int, part: Any) -> None:
        """Adds the part of a StreamEvent."""
        piece = self.pieces[index]
        piece.extend(part)
        self.ends.append(len(piece))

    @property
    def size(self) -> int:
        """The memory that it takes, in bytes."""
        return sys.getsizeof(self.ends) + sum(map(sys.getsizeof, self.pieces))


class Cursor:
    """A reader's place in an event log.

    Args:
        event_log: what is read.
        at: the id of the last event that was read.

    Raises:
        InvalidRequestError: There is no such event.
    """

    def __init__(self, event_log: EventLog, at: int = 0) -> None:
        if not 0 <= at <= len(event_log):
            raise InvalidRequestError(
                f"starting_after must be from 0 to {len(event_log)}, the id of the last event so far; got {at!s:.60}",
                param="starting_after",
            )
        self.at = at
        self._log = event_log
        # The beginning of each alternative's next part, by column and index.
        self._starts = {column: [0] * event_log.request.count for column in event_log._columns}
        for column, starts in self._starts.items():
            for index, end in zip(event_log._indexes[:at], column.ends, strict=False):
                if index != _OTHER:
                    starts[index] = end

    def read(self) -> list[tuple[int, Event]]:
        """Reads the next events with their ids, at most MAX_READ. The list is empty if there are no more yet.

        A reader that is more than MERGE_ABOVE events late gets neighbouring events of one alternative merged, unless
        the log is `exact` or has probabilities. A merged event has the id of its last part.
        """
        log, indexes = self._log, self._log._indexes
        if self.at == len(log) - len(log._latest):
            return self._read_latest()
        merges = len(log) - self.at > MERGE_ABOVE and log.request.logprobs is None and not log.exact
        events: list[tuple[int, Event]] = []
        place, end = self.at, min(len(log), self.at + MAX_READ)
        while place < end:
            index = indexes[place]
            if index == _OTHER:
                event = log._others[place]
            else:
                while merges and place + 1 < end and indexes[place + 1] == index:
                    place += 1
                event = self._stream_event(index, place)
            place += 1
            events.append((place, event))
        self.at = place
        return events

    def _read_latest(self) -> list[tuple[int, Event]]:
        """Reads the events of the last step as they came, for readers that keep up."""
        events = list(enumerate(self._log._latest, self.at + 1))
        for column, starts in self._starts.items():
            for number, event in events:
                if isinstance(event, StreamEvent):
                    starts[event.index] = column.ends[number - 1]
        self.at += len(events)
        return events

    def _stream_event(self, index: int, place: int) -> StreamEvent:
        log, request = self._log, self._log.request
        text = self._take(log._texts, index, place).decode()
        tokens = tuple(self._take(log._tokens, index, place)) if request.return_tokens else ()
        token = None
        if request.logprobs is not None:
            token = _token(self._take(log._probabilities, index, place), log._token_pieces)
        return StreamEvent(request.id, index, text, tokens, token)

    def _take(self, column: _Column, index: int, place: int) -> Any:
        """Takes the part that an event adds to an alternative, with those of the events that are merged into it."""
        starts, end = self._starts[column], column.ends[place]
        part = column.pieces[index][starts[index] : end]
        starts[index] = end
        return part


def _token(part: bytearray, pieces: dict[int, bytes]) -> Token | None:
    tokens = [
        Token(each, pieces[each], None if math.isnan(logprob) else logprob)
        for each, logprob in _PROBABILITY.iter_unpack(part)
    ]
    return replace(tokens[0], top_logprobs=tuple(tokens[1:])) if tokens else None


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
        self.event_log = event_log
        self._cursor = Cursor(event_log, after)
        self._on_close = on_close
        self._closed = False
        self._is_cut_off = False
        self._news = asyncio.Event()

    @property
    def request(self) -> CompletionRequest:
        """The request."""
        return self.event_log.request

    @property
    def at_end(self) -> bool:
        """Whether the stream has read the last event."""
        return self.event_log.done and self._cursor.at == len(self.event_log)

    def __aiter__(self) -> AsyncIterator[list[Event]]:
        return self

    async def __anext__(self) -> list[Event]:
        """Waits for events, and returns at least one. No event is lost if it is cancelled."""
        return [event for _, event in await self.numbered()]

    async def numbered(self) -> list[tuple[int, Event]]:
        """Waits for events, and returns at least one, with their ids. Raises `StopAsyncIteration` at the end."""
        while not (events := self._cursor.read()):
            if self.at_end or self._is_cut_off:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
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
        if self._is_cut_off and not self.at_end:
            raise UnavailableError(
                f"the server is shutting down, or has failed; request {self.request.id} resumes with its next start"
            )
        self.event_log.raise_refusal()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops reading."""
        if not self._closed:
            self._closed = True
            self._on_close(self)

    def cut_off(self) -> None:
        """Ends the stream before the last event, which comes after a restart."""
        self._is_cut_off = True
        self.wake()

    def wake(self) -> None:
        """Notes that the log has new events."""
        self._news.set()


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
