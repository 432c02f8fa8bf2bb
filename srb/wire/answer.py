"""`Answer` has what has come of a request: the one place where the formats' bodies and streams get it from.

A format is two functions: one makes chunks of an event, the other one the body of a finished answer.
"""

import codecs
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from srb.engine.events import (
    DoneEvent,
    ErrorEvent,
    Event,
    PromptLogprobsEvent,
    StartEvent,
    StopEvent,
    StreamEvent,
    Timings,
    Token,
)
from srb.errors import SrbError
from srb.wire.reasoning import AnswerReader
from srb.wire.tools.calls import Delta, call_id

ItemKind = Literal["reasoning", "text", "call"]


@dataclass
class Item:
    """A part of an alternative: thoughts, a text, or a function call.

    Attributes:
        index: The number of the item.
        kind: What it is.
        call: The number of the call.
        name: The function that is called.
        id: The id of the call.
        text: The text so far, or the arguments so far as JSON text.
        tokens: The tokens of a text or of thoughts, if they were asked for.
    """

    index: int
    kind: ItemKind = "text"
    call: int = 0
    name: str | None = None
    id: str = ""
    text: str = ""
    tokens: list[Token] = field(default_factory=list)

    @property
    def arguments(self) -> dict[str, Any] | None:
        """The arguments of a call. None if their JSON is incomplete, and for a text, even if it is JSON."""
        if self.name is None:
            return None
        try:
            found = json.loads(self.text)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


class Change(NamedTuple):
    """A change: an item begins, grows by a text and tokens, or ends. Each item ends before the next one begins."""

    kind: Literal["begin", "more", "end"]
    item: Item
    text: str = ""
    tokens: tuple[Token, ...] = ()


@dataclass
class Tokens:
    """Tokens of an alternative.

    Attributes:
        reported: Those with log-probabilities, if these were asked for.
        offsets: Where in the text each of these begins, in characters. The last ones may have no offset yet.
        ids: The ids of all, if these were asked for.
    """

    reported: list[Token] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    def with_text(self, text: str) -> "Tokens":
        """Those that come before the end of the text, which others added nothing to."""
        n = len(self.reported)
        while n and self.offsets[n - 1] == len(text):
            n -= 1
        return Tokens(self.reported[:n], self.offsets[:n], self.ids)


class Alternative:
    """One alternative, as far as its events have come.

    Attributes:
        index: Its index.
        text: Its text, with thoughts and calls as the model writes them.
        items: The same text in parts: thoughts, a text, and calls after it. An alternative that may have no calls has
            a text, maybe an empty one, or thoughts.
        tokens: Its tokens since the last `drain`.
        n_ids: How many ids of tokens have come.
        n_thought_tokens: How many of them were thoughts.
        prompt_is_told: Whether a stream has shown the ids of its prompt.
        stop: Its end.
        error: Why it failed.
    """

    def __init__(self, request_id: str, index: int, reader: AnswerReader) -> None:
        self.index = index
        self.text = ""
        self.items: list[Item] = []
        self.tokens = Tokens()
        self.n_ids = self.n_thought_tokens = 0
        self.prompt_is_told = False
        self.stop: StopEvent | None = None
        self.error: SrbError | None = None
        self._request_id = request_id
        self._reader = reader
        self._loose: list[Token] = []  # tokens whose text isn't in an item yet, or that have no text

    def all_of(self, kind: ItemKind) -> str:
        """The texts of all items of a kind."""
        return "".join(item.text for item in self.items if item.kind == kind)

    @property
    def calls(self) -> list[Item]:
        """The calls that have begun."""
        return [item for item in self.items if item.kind == "call"]

    @property
    def ends_with_calls(self) -> bool:
        """Whether the model has ended the alternative itself, with complete calls."""
        return bool(self._reader.is_complete and self.stop and self.stop.finish_reason == "stop")

    def drain(self) -> Tokens:
        """The tokens that have come since the last call. A stream that shows them once needs no memory for them."""
        drained = self.tokens
        if drained.reported or drained.ids:
            self.tokens = Tokens()
            if self.items:
                self.items[-1].tokens = []
        return drained

    def begin(self) -> list[Change]:
        """The changes that the start of the request makes."""
        return [self._begin(Item(0))] if self._reader.is_plain else []

    def grow(self, event: StreamEvent) -> list[Change]:
        """The changes that more text makes."""
        if event.token:
            self.tokens.reported.append(event.token)
            self._loose.append(event.token)
        if event.tokens:
            self.tokens.ids += event.tokens
            self.n_ids += len(event.tokens)
        if event.text:
            self._place(event.text)
        changes = self._add(self._reader.push(event.text))
        self.n_thought_tokens += 0 if self._reader.has_answer else len(event.tokens)
        return changes

    def end(self, event: StopEvent) -> list[Change]:
        """The changes that the end makes."""
        self.stop = event
        self._place("")
        changes = self._add(self._reader.flush())
        if not self.items and not self._reader.may_call:
            changes += [self._begin(Item(0)), *self._add([])]
        return [*changes, Change("end", self.items[-1])] if self.items else changes

    def _place(self, text: str) -> None:
        """Adds the text that the tokens without offset have waited for, and finds where in it they begin."""
        if self.tokens.reported:
            place, decoder = 0, codecs.getincrementaldecoder("utf-8")("replace")
            for token in self.tokens.reported[len(self.tokens.offsets) :]:
                self.tokens.offsets.append(len(self.text) + place)
                piece = decoder.decode(token.piece)
                if text.startswith(piece, place) or piece.startswith(text[place:]):  # else it is special: no text
                    place = min(place + len(piece), len(text))
        self.text += text

    def _add(self, deltas: list[Delta]) -> list[Change]:
        changes: list[Change] = []
        for delta in deltas:
            if delta.kind == "name":
                call = delta.call or 0
                changes += self._next("call", call, delta.text, call_id(self._request_id, self.index, call))
                continue
            if delta.kind != "arguments" and (not self.items or self.items[-1].kind != delta.kind):
                changes += self._next(delta.kind)
            changes.append(self._more(delta.text))
        if self._loose and self.items and self.items[-1].kind != "call":
            changes.append(self._more(""))
        return changes

    def _next(self, kind: ItemKind, *call: Any) -> list[Change]:
        ended = [Change("end", self.items[-1])] if self.items else []
        return [*ended, self._begin(Item(len(self.items), kind, *call))]

    def _begin(self, item: Item) -> Change:
        self.items.append(item)
        return Change("begin", item)

    def _more(self, text: str) -> Change:
        item = self.items[-1]
        item.text += text
        if not self._loose:
            return Change("more", item, text)
        tokens, self._loose = tuple(self._loose), []
        if item.kind == "call":
            return Change("more", item, text)
        item.tokens += tokens
        return Change("more", item, text, tokens)


class Answer:
    """What has come of a request so far.

    The ids of calls are made from its id, `reader` returns what splits the text of an alternative, and the clock, in
    seconds, is for the timings of a request that runs.

    Attributes:
        start, done: The first event of the request, and the last one.
        error: Why the whole request failed.
        alternatives: Its alternatives by index.
        prompts: The tokens of each prompt, by the indices of its alternatives, if log-probabilities were asked for.
        now, started, began: When the last event came, the first one, and the first text.
    """

    def __init__(
        self,
        request_id: str = "",
        reader: Callable[[], AnswerReader] = AnswerReader,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.start: StartEvent | None = None
        self.done: DoneEvent | None = None
        self.error: SrbError | None = None
        self.alternatives: dict[int, Alternative] = {}
        self.prompts: dict[tuple[int, ...], list[Token]] = {}
        self.now = self.started = self.began = 0.0
        self._request_id = request_id
        self._reader = reader
        self._clock = clock

    def __getitem__(self, index: int) -> Alternative:
        """The alternative with this index."""
        if index not in self.alternatives:
            self.alternatives[index] = Alternative(self._request_id, index, self._reader())
        return self.alternatives[index]

    def take(self, event: Event) -> list[Change]:
        """Takes the next event. Returns the changes that it makes, all in the alternative that the event belongs to."""
        self.now = self._clock()
        match event:
            case StreamEvent():
                self.began = self.began or self.now
                return self[event.index].grow(event)
            case StopEvent():
                return self[event.index].end(event)
            case StartEvent():
                self.start, self.started = event, self.now
                return [change for index in range(event.count) for change in self[index].begin()]
            case PromptLogprobsEvent():
                self.prompts.setdefault(event.indices, []).extend(event.tokens)
            case ErrorEvent(index=None):
                self.error = event.error
            case ErrorEvent(index=int(index)):
                self[index].error = event.error
            case DoneEvent():
                self.done = event
        return []

    @property
    def failure(self) -> SrbError | None:
        """Why the whole request, or each of its alternatives, failed."""
        errors = [each.error for each in self.alternatives.values()]
        return self.error or (errors[0] if errors and all(errors) else None)

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens of the prompts. 0 until the request has started."""
        return self.start.prompt_tokens if self.start else 0

    @property
    def ordered(self) -> list[Alternative]:
        """The alternatives in their order."""
        return [self.alternatives[index] for index in sorted(self.alternatives)]

    def running_timings(self, index: int) -> Timings:
        """The timings of an alternative after its last event, for requests that have the ids of tokens."""
        assert self.start
        start, n_ids = self.start, self[index].n_ids
        known = start.prompt_tokens - start.n_truncated - start.cached_tokens
        ms = 1000 * (self.began - self.started), 1000 * (self.now - self.began)
        return Timings(0, known, ms[0], n_ids, ms[1], start.n_truncated)


class Format(Protocol):
    """How answers look, for a request."""

    def chunk(self, answer: Answer, event: Event, changes: list[Change]) -> Iterator[Any]:
        """What is streamed for the last event of an answer, which made these changes."""

    def body(self, answer: Answer) -> Any:
        """The response to a finished request."""


class Response:
    """Builds a reader's response from the events of its request. form: how it looks. given: for `Answer`."""

    def __init__(self, form: Format, *given: Any, **more: Any) -> None:
        self.form = form
        self.answer = Answer(*given, **more)

    def chunks(self, events: list[Event]) -> Iterator[Any]:
        """What is streamed for the next events."""
        for event in events:
            yield from self.form.chunk(self.answer, event, self.answer.take(event))

    def object(self, events: list[Event]) -> Any:
        """The response to a finished request. Raises `SrbError` if the request, or all of its alternatives, failed."""
        for event in events:
            self.answer.take(event)
        if failure := self.answer.failure:
            raise failure
        return self.form.body(self.answer)
