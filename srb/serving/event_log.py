"""`RequestStream` reads a request's events. It may begin late, be slow, or leave early."""

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

# `EventLog` keeps a request's events compactly. Any number of readers can read it, each from a place of its own. An
# event's id is its place: 1, 2, 3 and so on. The ids are the same for all readers, and a reader that has event N has
# all events before it. So a reader that was cut off behind event N goes on there, and in the end it has read the
# same as without the cut. Each alternative's text is kept once. So text that nobody has read yet costs nothing, the
# engine waits for no reader, and a reader's place is one number. A running request's journal has no limit of its
# own: it holds what the request was admitted to generate. Finished journals are limited, in time and in bytes; what
# makes their answers again is counted with them (`Reply.keeps`, `rollback_of`). Events of different alternatives are
# never merged across one another. Example: the events are `0: "a" (1)`, `1: "x" (2)`, `0: "b" (3)`. A late reader
# who got `0: "ab" (3)` and was cut off there would go on behind 3, and never see "x". Neighbouring events of one
# alternative are merged for a late reader.

MERGE_ABOVE = 1_024
"""A reader with more unread events than this gets them merged. A reader that is only a moment late gets each token."""

MAX_READ = 4_096
"""How many events are read at once. Reading so many takes a few milliseconds."""

_OTHER = 0xFFFF_FFFF  # in place of an index: the event isn't a StreamEvent

_OTHER_BYTES = 400
_PROMPT_TOKEN_BYTES = 40
_BRANCH_BYTES = 800
_PROBABILITY = struct.Struct("<id")  # a token's id and its logprob; not a number where it has none


def rollback_of(value: Any) -> int:
    """About how many bytes of memory a value and everything in it take. What is in it twice counts once."""
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

    The text of each alternative is kept in one piece. Each event only keeps where its part of this text ends. Tokens
    and probabilities are kept in the same way, if the request asks for them. An event takes 8 bytes beside its text;
    with `return_tokens` 8 more; with `logprobs` 4 more, and 12 for each token that it names.

    owner: whose request it is, where there are API keys. detach: whether the request lives on without readers.
    lasts: whether a detached request goes on after a restart, if the server keeps a history; not if this lacks it.
    exact: whether readers get all events as they came, and never merged. The readers of a format that numbers what it
        makes of the events need this.
    arrived: when it was submitted, in seconds of the event loop's clock. created: the same, in seconds since 1970.
    held: how many bytes are kept with it beside the prompts and what is said, for its settings and its answers.
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
        held: int = 0,
    ) -> None:
        self.request = request
        self._held = held
        self.owner = owner
        self.detach = detach
        self.lasts = lasts
        self.exact = exact
        self.arrived = arrived
        self.created = created
        self.started = False
        self.max_tokens = 0  # `StartEvent.max_tokens`, if it has started
        self.living = set(range(request.count))
        self.lengths = [0] * request.count  # how many tokens of each alternative were reported
        self.stops: list[StopEvent] = []
        self.error: SrbError | None = None
        self.end: DoneEvent | None = None
        self.aborted = False
        """Whether the whole request was ended early: by its client, or by the server."""
        self.refusal: UnavailableError | None = None
        """Why the request was aborted before it had started, if the server decided so."""
        self._indexes = array("I")
        self._others: dict[int, Event] = {}  # by place
        self._texts = _Column([bytearray() for _ in self.living])
        self._tokens = _Column([array("i") for _ in self.living])
        self._probabilities = _Column([bytearray() for _ in self.living])
        self._columns = [self._texts]
        if request.return_tokens:
            self._columns.append(self._tokens)
        if request.logprobs is not None:
            self._columns.append(self._probabilities)
        self._token_pieces: dict[int, bytes] = {}
        self._latest: list[Event] = []  # of the last step, for readers that have read all events before it

    def __len__(self) -> int:
        """How many events there are, which is the id of the last one."""
        return len(self._indexes)

    @property
    def done(self) -> bool:
        """Whether its last event has come."""
        return self.end is not None

    @property
    def texts(self) -> list[str]:
        """The text of each alternative so far."""
        return [text.decode() for text in self._texts.pieces]

    @property
    def size(self) -> int:
        """About how many bytes of memory the journal and its request take, and what is kept with them."""
        request = _PROMPT_TOKEN_BYTES * self.request.prompt_tokens + _BRANCH_BYTES * len(self.request.branches)
        events = sys.getsizeof(self._indexes) + _OTHER_BYTES * len(self._others)
        names = sys.getsizeof(self._token_pieces) + sum(map(sys.getsizeof, self._token_pieces.values()))
        return self._held + request + events + names + sum(column.size for column in self._columns)

    def raise_refusal(self) -> None:
        """Raises `UnavailableError` if the server ended the request before it started."""
        if self.refusal and not self.started:
            raise self.refusal

    def put(self, events: list[Event]) -> None:
        """Takes the events of a step. Readers aren't told that it starts again after an interruption."""
        if self.started:
            events = [event for event in events if not isinstance(event, StartEvent)]
        self._latest = events
        for event in events:
            if isinstance(event, StreamEvent):
                self._say(event)
                continue
            if isinstance(event, StartEvent):
                self.started, self.max_tokens = True, event.max_tokens
            elif isinstance(event, StopEvent):
                self.living.discard(event.index)
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

    def _say(self, event: StreamEvent) -> None:
        index = event.index
        self.lengths[index] += len(event.drawn)
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

    pieces: for each alternative, everything in one piece. ends: for each event, where its part of the piece ends.
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
        """How many bytes of memory it takes."""
        return sys.getsizeof(self.ends) + sum(map(sys.getsizeof, self.pieces))


class Cursor:
    """A reader's place in a journal.

    at: the id of the last event that was read. Raises `InvalidRequestError` if there is no such event.
    """

    def __init__(self, journal: EventLog, at: int = 0) -> None:
        if not 0 <= at <= len(journal):
            raise InvalidRequestError(
                f"starting_after must be from 0 to {len(journal)}, the id of the last event that there is; "
                f"got {at!s:.60}",
                param="starting_after",
            )
        self.at = at
        self._journal = journal
        # Where the next part of each alternative begins, by column and index.
        self._starts = {column: [0] * journal.request.count for column in journal._columns}
        for column, starts in self._starts.items():
            for index, end in zip(journal._indexes[:at], column.ends, strict=False):
                if index != _OTHER:
                    starts[index] = end

    def read(self) -> list[tuple[int, Event]]:
        """The next events with their ids, at most MAX_READ; an empty list if there are no more yet.

        For a reader that is more than MERGE_ABOVE events late, adjacent events of the same alternative are merged,
        unless the journal is `exact` or has probabilities. A merged event has the id of its last part.
        """
        journal, indexes = self._journal, self._journal._indexes
        if self.at == len(journal) - len(journal._latest):
            return self._read_latest()
        merges = len(journal) - self.at > MERGE_ABOVE and journal.request.logprobs is None and not journal.exact
        events: list[tuple[int, Event]] = []
        place, end = self.at, min(len(journal), self.at + MAX_READ)
        while place < end:
            index = indexes[place]
            if index == _OTHER:
                event = journal._others[place]
            else:
                while merges and place + 1 < end and indexes[place + 1] == index:
                    place += 1
                event = self._stream_event(index, place)
            place += 1
            events.append((place, event))
        self.at = place
        return events

    def _read_latest(self) -> list[tuple[int, Event]]:
        """The events of the last step as they came. Readers that keep up read these."""
        events = list(enumerate(self._journal._latest, self.at + 1))
        for column, starts in self._starts.items():
            for number, event in events:
                if isinstance(event, StreamEvent):
                    starts[event.index] = column.ends[number - 1]
        self.at += len(events)
        return events

    def _stream_event(self, index: int, place: int) -> StreamEvent:
        journal, request = self._journal, self._journal.request
        text = self._take(journal._texts, index, place).decode()
        tokens = tuple(self._take(journal._tokens, index, place)) if request.return_tokens else ()
        token = None
        if request.logprobs is not None:
            token = _token(self._take(journal._probabilities, index, place), journal._token_pieces)
        return StreamEvent(request.id, index, text, tokens, token)

    def _take(self, column: _Column, index: int, place: int) -> Any:
        """What the event at this place adds to an alternative, with the unread events that are merged into it."""
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
    """A reader of a request: `async for events in stream`.

    Close the stream, or use it as a context manager. When the last reader of a request has left, the request is
    cancelled, unless it was submitted to live on.

    left: is called once, when the stream is closed. after: the id of the event behind which the stream begins.
    Raises `InvalidRequestError` if there is no such event.
    """

    def __init__(self, journal: EventLog, left: Callable[["RequestStream"], object], *, after: int = 0) -> None:
        self.journal = journal
        self._cursor = Cursor(journal, after)
        self._left = left
        self._closed = False
        self._is_cut_off = False
        self._news = asyncio.Event()

    @property
    def request(self) -> CompletionRequest:
        """The request whose events these are."""
        return self.journal.request

    @property
    def at_end(self) -> bool:
        """Whether the stream has read the last event that will ever come."""
        return self.journal.done and self._cursor.at == len(self.journal)

    def __aiter__(self) -> AsyncIterator[list[Event]]:
        return self

    async def __anext__(self) -> list[Event]:
        """The next events, at least one. It may be cancelled, and no event is lost."""
        return [event for _, event in await self.numbered()]

    async def numbered(self) -> list[tuple[int, Event]]:
        """The next events with their ids, at least one. Raises `StopAsyncIteration` behind the last one."""
        while not (events := self._cursor.read()):
            if self.at_end or self._is_cut_off:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return events

    async def collect(self) -> list[Event]:
        """All events to the last. Raises what `raise_refusal` raises."""
        events = [event async for batch in self for event in batch]
        self.raise_refusal()
        return events

    def raise_refusal(self) -> None:
        """Call this when the stream has ended.

        Raises `UnavailableError` if the server has ended the request before it started, or if the server ends and
        the request goes on after its next start.
        """
        if self._is_cut_off and not self.at_end:
            raise UnavailableError(
                f"the server is shutting down, or has failed; request {self.request.id} goes on with its next start"
            )
        self.journal.raise_refusal()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the request."""
        if not self._closed:
            self._closed = True
            self._left(self)

    def cut_off(self) -> None:
        """Ends the stream before the last event, because this event will come after a restart."""
        self._is_cut_off = True
        self.wake()

    def wake(self) -> None:
        """Tells the stream that the journal has new events."""
        self._news.set()


def done_line(journal: EventLog) -> str:
    """The log line of a request that has ended."""
    assert journal.end is not None
    usage, timings = journal.end.usage, journal.end.timings
    reasons = Counter(stop.finish_reason for stop in journal.stops)
    return logfmt(
        event="done",
        id=journal.request.id,
        count=journal.request.count,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        generated_tokens=usage.completion_tokens,
        queued_ms=timings.queued_ms,
        prompt_ms=timings.prompt_ms,
        predicted_ms=timings.predicted_ms,
        finish=",".join(f"{reason}:{number}" for reason, number in sorted(reasons.items())),
        abort=next((stop.stop_reason for stop in journal.stops if stop.finish_reason == "abort"), None),
        error=(loggable(journal.error) or journal.error.code) if journal.error else None,
    )
