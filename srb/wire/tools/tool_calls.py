"""Reads the calls of tools out of a model's text, while the text comes."""

import hashlib
import re
import string
from dataclasses import dataclass
from typing import Literal

from srb.wire.tools.call_format import CallFormat

_LETTERS = string.digits + string.ascii_letters


@dataclass(frozen=True)
class Delta:
    """The next piece of an answer: text that is no call, the name of a call that begins, or a piece of its arguments.

    call: the number of the call, or None for text.
    """

    kind: Literal["text", "name", "arguments"]
    text: str
    call: int | None = None


class CallReader:
    """Reads the text of one alternative.

    n_calls: how many calls have begun.
    """

    def __init__(self, form: CallFormat) -> None:
        self.n_calls = 0
        self._form = form
        self._opening = re.compile(f"{re.escape(form.begin)}(.+?){re.escape(form.middle)}", re.DOTALL)
        self._again = (
            re.compile(f"{re.escape(form.again)}(.+?){re.escape(form.middle)}", re.DOTALL) if form.again else None
        )
        self._held = ""
        self._said = False
        self._json: _JsonEnd | None = None

    @property
    def is_complete(self) -> bool:
        """Whether there are calls, and all of them are complete."""
        return self.n_calls > 0 and self._json is None

    def push(self, text: str) -> list[Delta]:
        """The pieces that the next piece of text adds. Text that may be the beginning of a call is kept back."""
        self._held += text
        result: list[Delta] = []
        while more := self._read():
            result += more
        return [delta for delta in result if delta.text]

    def flush(self) -> list[Delta]:
        """The text that was kept back, when no more comes. The characters around calls don't count as text."""
        return [Delta("text", self._held)] if self._held and not self.n_calls else []

    def _read(self) -> list[Delta]:
        """The next pieces of the held text. Empty if more text has to come first."""
        if self._json:
            return self._arguments(self._json)
        if self.n_calls:
            return self._call(self._again) if self._again else []
        return self._text()

    def _text(self) -> list[Delta]:
        at = self._held.find(self._form.begin)
        if at >= 0 and (self._form.trigger or (at == 0 and not self._said)):
            before, self._held = self._held[:at].rstrip(), self._held[at:]
            return [Delta("text", before), *self._call(self._opening)] if before else self._call(self._opening)
        shown = len(self._held) - self._undecided()
        text, self._held = self._held[:shown], self._held[shown:]
        self._said = self._said or bool(text)
        return [Delta("text", text)] if text else []

    def _undecided(self) -> int:
        """How many characters at the end of the held text may be the beginning of a call, or spaces before one."""
        begin = self._form.begin
        if not self._form.trigger:
            return len(self._held) if not self._said and begin.startswith(self._held) else 0
        length = next((n for n in range(len(begin) - 1, 0, -1) if self._held.endswith(begin[:n])), 0)
        before = self._held[: len(self._held) - length]
        return length + len(before) - len(before.rstrip())

    def _call(self, opening: re.Pattern[str]) -> list[Delta]:
        found = opening.match(self._held)
        if not found:
            return []
        self._held = self._held[found.end() :]
        self.n_calls += 1
        self._json = _JsonEnd()
        return [Delta("name", found[1], self.n_calls - 1)]

    def _arguments(self, json_end: "_JsonEnd") -> list[Delta]:
        end = json_end.find(self._held)
        piece, self._held = self._held[:end], self._held[end:]
        if json_end.is_found:
            self._json = None
        return [Delta("arguments", piece, self.n_calls - 1)] if piece else []


class _JsonEnd:
    """Finds the end of a JSON object that comes in pieces."""

    def __init__(self) -> None:
        self.is_found = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def find(self, text: str) -> int:
        """How many characters of the next piece belong to the object."""
        for place, char in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = char == "\\"
                self._in_string = char != '"'
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.is_found = True
                    return place + 1
        return len(text)


def call_id(request_id: str, index: int, call: int) -> str:
    """The id of a call: nine letters and digits, as Mistral's are. It is the same each time the request is read."""
    number = int.from_bytes(hashlib.sha256(f"{request_id}/{index}/{call}".encode()).digest()[:8])
    return "".join(_LETTERS[number // 62**place % 62] for place in range(9))
