"""Splits an answer with one alternative into its parts while it comes: a text, and the calls of tools after it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from srb.engine.telling.events import Event, StartEvent, StopEvent, StreamEvent, Token
from srb.wire.reply.one import Answer
from srb.wire.tools.call_format import CallFormat
from srb.wire.tools.tool_calls import CallReader, Delta, call_id


@dataclass
class Part:
    """A part of an answer: a text, or a call.

    index: the number of the part. name: of the function that is called; None for a text. id: of the call.
    text: the text so far, or the JSON text of the arguments. tokens: those of a text, if they were asked for.
    """

    index: int
    name: str | None = None
    id: str = ""
    text: str = ""
    tokens: list[Token] = field(default_factory=list)

    @property
    def arguments(self) -> dict[str, Any] | None:
        """The arguments of a call. None if their JSON is incomplete."""
        try:
            found = json.loads(self.text)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


@dataclass(frozen=True)
class Change:
    """One change: a part begins, grows, or ends. Each part ends before the next one begins.

    text, tokens: those that a growing part gets.
    """

    kind: Literal["begin", "more", "end"]
    part: Part
    text: str = ""
    tokens: tuple[Token, ...] = ()


class Parts:
    """Reads an answer from its events.

    calls: how the model writes calls. None: it may call nothing; then there is always one text, even an empty one.
    """

    def __init__(self, request_id: str, calls: CallFormat | None) -> None:
        self.answer = Answer()
        self.all: list[Part] = []
        self._request_id = request_id
        self._reader = CallReader(calls) if calls else None
        self._tokens: list[Token] = []  # tokens whose text isn't in a part yet, or that have no text

    @property
    def calls(self) -> list[Part]:
        """The calls that have begun."""
        return [part for part in self.all if part.name is not None]

    @property
    def ends_with_calls(self) -> bool:
        """Whether the model has ended the answer itself, with complete calls."""
        stop = self.answer.stop
        return bool(self._reader and self._reader.is_complete and stop and stop.finish_reason == "stop")

    def take(self, event: Event) -> Iterator[Change]:
        """The changes that the next event makes. Raises `SrbError` if the event is an error."""
        self.answer.take(event)
        match event:
            case StartEvent() if not self._reader:
                yield self._begin(Part(0))
            case StreamEvent(text=text, token=token):
                self._tokens += [token] if token else []
                yield from self._add(self._reader.push(text) if self._reader else [Delta("text", text)])
            case StopEvent():
                yield from self._add(self._reader.flush() if self._reader else [])
                if self.all:
                    yield Change("end", self.all[-1])

    def _begin(self, part: Part) -> Change:
        self.all.append(part)
        return Change("begin", part)

    def _add(self, deltas: list[Delta]) -> Iterator[Change]:
        for delta in deltas:
            if delta.kind == "name":
                if self.all:
                    yield Change("end", self.all[-1])
                call = call_id(self._request_id, 0, delta.call or 0)
                yield self._begin(Part(len(self.all), delta.text, call))
            elif delta.text:
                if not self.all:
                    yield self._begin(Part(0))
                yield self._more(delta.text)
        if self._tokens and self.all and self.all[-1].name is None:
            yield self._more("")

    def _more(self, text: str) -> Change:
        part, tokens = self.all[-1], tuple(self._tokens)
        part.text += text
        self._tokens = []
        if part.name is not None:
            return Change("more", part, text)
        part.tokens += tokens
        return Change("more", part, text, tokens)
