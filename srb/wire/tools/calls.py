"""Function calls in a model's text: how a chat template writes them, and a parser for text as it arrives.

`call_format` learns the format from the chat template: it renders a call with a known name and known arguments, and
takes the text around them. So no list of models is needed, and the format is the one that the model sees in prompts.
"""

import hashlib
import json
import re
import string
from dataclasses import dataclass
from typing import Any, Literal

from srb.engine.model import ChatTemplate
from srb.errors import InvalidRequestError

_CONTENT = "\N{SECTION SIGN}"  # no template has this character
_NAMES = ("srb_probe_a", "srb_probe_b")
_ARGUMENTS = {"srb_key": "srb_value"}
_ID = "000000000"  # Mistral's templates take nine letters and digits, and nothing else


@dataclass(frozen=True)
class CallFormat:
    """Calls are written as `begin`, a name, `middle`, arguments in JSON, and `end`.

    Attributes:
        begin: The text before the name.
        middle: The text between name and arguments.
        end: The text after the arguments.
        again: What replaces `end` if another call follows, up to that call's name. None: there can't be another.
        as_text: Whether the template takes the arguments of earlier calls as JSON text, not as an object.
        is_native: Whether the template itself writes calls in this format.
    """

    begin: str
    middle: str
    end: str
    again: str | None
    as_text: bool = False
    is_native: bool = True

    @property
    def trigger(self) -> str:
        """The first characters of `begin`, up to a space or a brace. After these, a text must go on as a call.

        Empty if `begin` starts with a space or a brace. A text is then a call only if it starts with `begin`.
        """
        found = re.match(r"[^\s{]+", self.begin)
        return found[0] if found else ""

    def write(self, calls: list[dict[str, Any]]) -> str:
        """The text of calls in this format. calls: in OpenAI's notation."""
        written = [
            call["function"]["name"] + self.middle + arguments_text(call["function"]["arguments"]) for call in calls
        ]
        return self.begin + (self.again or self.end + "\n" + self.begin).join(written) + self.end


PLAIN = CallFormat(
    begin='<tool_call>\n{"name": "',
    middle='", "arguments": ',
    end="}\n</tool_call>",
    again='}\n</tool_call>\n<tool_call>\n{"name": "',
    is_native=False,
)
"""The most common format, for templates without tools, or whose format `CallFormat` can't describe."""


def arguments_text(arguments: Any) -> str:
    """The arguments of a call as JSON text."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def call_format(template: ChatTemplate) -> CallFormat:
    """The format in which a template writes calls, or `PLAIN`."""
    if "tools" not in template.source or _NAMES[0] not in (_render(template) or ""):
        return PLAIN
    one = _render(template, _calling(1, _ARGUMENTS))
    # A template that wants text either fails for an object, or writes it in Python's notation.
    as_text = one is None or str(_ARGUMENTS) in one
    arguments: Any = json.dumps(_ARGUMENTS) if as_text else _ARGUMENTS
    answered, one = _render(template, {"content": _CONTENT}), _render(template, _calling(1, arguments))
    if answered is None or one is None:
        return PLAIN
    start = _before_tag(one[: _common_length(answered, one)])  # the two texts may differ from the middle of a tag on
    end = len(one) - _common_length(answered[::-1], one[::-1])
    pattern = f"(.+?){_NAMES[0]}(.+?){re.escape(json.dumps(_ARGUMENTS))}(.*)"
    found = re.fullmatch(pattern, one[start:end], re.DOTALL)
    if not found:
        return PLAIN
    begin, middle, rest = found.groups()
    between = re.escape(json.dumps(_ARGUMENTS)) + f"(.+?){_NAMES[1]}"
    again = re.search(between, _render(template, _calling(2, arguments)) or "", re.DOTALL)
    return CallFormat(begin.lstrip(), middle, rest[: _before_tag(rest)].rstrip(), again and again[1], as_text)


def _before_tag(text: str) -> int:
    """If the text ends in the middle of a tag, where that tag begins; else the text's end."""
    return text.rfind("<") if text.rfind("<") > text.rfind(">") else len(text)


def _calling(n: int, arguments: Any) -> dict[str, Any]:
    calls = [{"id": _ID, "type": "function", "function": {"name": name, "arguments": arguments}} for name in _NAMES[:n]]
    return {"content": "", "tool_calls": calls}


def _render(template: ChatTemplate, answer: dict[str, Any] | None = None) -> str | None:
    """A conversation with tools and this answer, rendered by the template. None if it fails."""
    answers = [{"role": "assistant"} | answer] if answer else []
    try:
        return template.render([{"role": "user", "content": "."}, *answers], {}, _TOOLS)
    except InvalidRequestError:
        return None


def _common_length(one: str, other: str) -> int:
    """The length of the common prefix of two texts."""
    return next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "",
            "parameters": {"type": "object", "properties": {"srb_key": {"type": "string"}}},
        },
    }
    for name in _NAMES
]

_LETTERS = string.digits + string.ascii_letters


@dataclass(frozen=True)
class Delta:
    """A part of an answer: thoughts, text, the name of a call that begins, or a part of its arguments.

    call: the number of the call; None for thoughts and text.
    """

    kind: Literal["reasoning", "text", "name", "arguments"]
    text: str
    call: int | None = None


class CallReader:
    """Parses the text of an alternative into text and calls. n_calls: how many calls have begun."""

    def __init__(self, form: CallFormat) -> None:
        self.n_calls = 0
        self._form = form
        self._opening = re.compile(f"{re.escape(form.begin)}(.+?){re.escape(form.middle)}", re.DOTALL)
        self._again = (
            re.compile(f"{re.escape(form.again)}(.+?){re.escape(form.middle)}", re.DOTALL) if form.again else None
        )
        self._buffer = ""
        self._has_text = False
        self._json: _JsonEnd | None = None

    @property
    def is_complete(self) -> bool:
        """Whether there are calls, and all of them are complete."""
        return self.n_calls > 0 and self._json is None

    def push(self, text: str) -> list[Delta]:
        """Parses the next text. Text that may be the beginning of a call is buffered."""
        self._buffer += text
        result: list[Delta] = []
        while more := self._read():
            result += more
        return [delta for delta in result if delta.text]

    def flush(self) -> list[Delta]:
        """The buffered text, when no more follows. The characters around calls don't count as text."""
        return [Delta("text", self._buffer)] if self._buffer and not self.n_calls else []

    def _read(self) -> list[Delta]:
        """Parses some of the buffer. Empty if more text is needed."""
        if self._json:
            return self._arguments(self._json)
        if self.n_calls:
            return self._call(self._again) if self._again else []
        return self._text()

    def _text(self) -> list[Delta]:
        at = self._buffer.find(self._form.begin)
        if at >= 0 and (self._form.trigger or (at == 0 and not self._has_text)):
            before, self._buffer = self._buffer[:at].rstrip(), self._buffer[at:]
            return [Delta("text", before), *self._call(self._opening)] if before else self._call(self._opening)
        shown = len(self._buffer) - self._undecided()
        text, self._buffer = self._buffer[:shown], self._buffer[shown:]
        self._has_text = self._has_text or bool(text)
        return [Delta("text", text)] if text else []

    def _undecided(self) -> int:
        """How many characters at the end of the buffer may be the beginning of a call, or spaces before one."""
        begin = self._form.begin
        if not self._form.trigger:
            return len(self._buffer) if not self._has_text and begin.startswith(self._buffer) else 0
        length = next((n for n in range(len(begin) - 1, 0, -1) if self._buffer.endswith(begin[:n])), 0)
        before = self._buffer[: len(self._buffer) - length]
        return length + len(before) - len(before.rstrip())

    def _call(self, opening: re.Pattern[str]) -> list[Delta]:
        found = opening.match(self._buffer)
        if not found:
            return []
        self._buffer = self._buffer[found.end() :]
        self.n_calls += 1
        self._json = _JsonEnd()
        return [Delta("name", found[1], self.n_calls - 1)]

    def _arguments(self, json_end: "_JsonEnd") -> list[Delta]:
        end = json_end.find(self._buffer)
        text, self._buffer = self._buffer[:end], self._buffer[end:]
        if json_end.is_found:
            self._json = None
        return [Delta("arguments", text, self.n_calls - 1)] if text else []


class _JsonEnd:
    """Finds the end of a JSON object whose text arrives in parts."""

    def __init__(self) -> None:
        self.is_found = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def find(self, text: str) -> int:
        """How many characters of the next text belong to the object."""
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
    """The id of a call: nine letters and digits, as Mistral's. It is the same whenever the request is read."""
    number = int.from_bytes(hashlib.sha256(f"{request_id}/{index}/{call}".encode()).digest()[:8])
    return "".join(_LETTERS[number // 62**place % 62] for place in range(9))
