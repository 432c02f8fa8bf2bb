"""The syntax of patterns: `/delv(e|es|ing)\\b/i`. A pure function from a text to an `Expression`.

A pattern stands between slashes, and an `i` behind the last one means small and capital letters alike. JavaScript's `g`
and `u` say what is so anyway; its other flags are refused. A pattern has the usual notation: `.`, `[a-z]`, `[^a-z]`,
`\\d \\w \\s` and `\\D \\W \\S`, `\\b` and `\\B`, `( )` and `(?: )`, `|`, `?`, `{3}` and `{1,20}`. What has no bound
(`*`, `+`, `{3,}`), and `^`, `$`, look-arounds and references, are refused.
"""

import re
from collections.abc import Callable
from typing import Any

from srb.errors import InvalidRequestError

MAX_PATTERN_CHARS = 1_000
MAX_WIDTH = 200
"""The most characters that a match may have, since so many may have to be held back."""

Test = Callable[[str], bool]
Expression = tuple[Any, ...]
"""("char", Test), ("boundary", bool), ("all", parts), ("any", parts), or ("times", part, least, most)."""

_MAX_DEPTH = 50
_PATTERN = re.compile(r"/(.+)/([dgimsuvy]*)", re.DOTALL)
_BOUNDS = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}


def is_word(char: str) -> bool:
    """Whether words are made of such characters: letters, digits and _."""
    return char.isalnum() or char == "_"


def is_pattern(text: str) -> bool:
    """Whether a text is written as a pattern, and not as a phrase."""
    return _PATTERN.fullmatch(text) is not None


def parse_pattern(text: str) -> Expression:
    """The expression of a pattern. Raises `InvalidRequestError`."""
    return _Parser(text).parse()


_KINDS: dict[str, Test] = {"d": str.isdecimal, "w": is_word, "s": str.isspace}


class _Parser:
    def __init__(self, text: str) -> None:
        found = _PATTERN.fullmatch(text)
        assert found, "is_pattern says so"
        self._text = text
        self._source, self._flags = found[1], found[2]
        self._any_case = "i" in self._flags
        self._at = 0
        self._depth = 0

    def parse(self) -> Expression:
        if len(self._source) > MAX_PATTERN_CHARS:
            raise self._error(f"is longer than {MAX_PATTERN_CHARS} characters")
        if unknown := self._flags.strip("giu"):
            raise self._error(
                f"has the flag {unknown[0]}, which srb doesn't know; i means small and capital letters alike"
            )
        expression = self._any()
        if self._at < len(self._source):
            raise self._error('has a ")" without a "("; write \\) for the character')
        least, most = width(expression)
        if least == 0:
            raise self._error("matches the empty text, which is everywhere")
        if most > MAX_WIDTH:
            raise self._error(f"matches texts of up to {most} characters; the limit is {MAX_WIDTH}")
        return expression

    def _any(self) -> Expression:
        parts = [self._all()]
        while self._take("|"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else ("any", tuple(parts))

    def _all(self) -> Expression:
        parts = []
        while self._next not in ("", "|", ")"):
            parts.append(self._times(self._one()))
        return ("all", tuple(parts))

    def _times(self, part: Expression) -> Expression:
        if self._take("?"):
            least, most = 0, 1
        elif self._next in ("*", "+"):
            raise self._unbounded(self._next)
        elif found := _BOUNDS.match(self._source, self._at):
            if found[2] and not found[3]:
                raise self._unbounded(found[0])
            self._at = found.end()
            least, most = int(found[1][:9]), int((found[3] or found[1])[:9])
            if least > most:
                raise self._error(f"has bounds the wrong way round: {found[0]}")
        else:
            return part
        self._take("?")  # lazy or greedy: all matches count
        if self._next in ("?", "*", "+", "{"):
            raise self._error(f'repeats a repetition at "{self._next}"; put the first one in brackets')
        if width(part)[1] * most > MAX_WIDTH or most > MAX_WIDTH:
            raise self._error(f"matches texts of more than {MAX_WIDTH} characters, the limit")
        return ("times", part, least, most)

    def _one(self) -> Expression:
        char = self._pop()
        if char == "(":
            return self._group()
        if char == "[":
            return ("char", self._class())
        if char == ".":
            return ("char", lambda each: each != "\n")
        if char == "\\":
            return self._escape()
        if char in "^$":
            raise self._error(f'has a "{char}", which has no meaning in a text that goes on; write \\{char} or \\b')
        if char in "?*+":
            raise self._error(f'has nothing before "{char}"; write \\{char} for the character')
        return ("char", self._literal(char))

    def _group(self) -> Expression:
        if self._take("?") and not self._take(":"):
            raise self._error("has a group that begins with (? and isn't (?: ), which srb doesn't know")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self._error(f"has brackets within brackets, more than {_MAX_DEPTH} deep")
        inside = self._any()
        self._depth -= 1
        if not self._take(")"):
            raise self._error('has a "(" without a ")"; write \\( for the character')
        return inside

    def _escape(self) -> Expression:
        char = self._pop()
        if char in ("b", "B"):
            return ("boundary", char == "b")
        if kind := _KINDS.get(char.lower()):
            return ("char", kind if char.islower() else _not(kind))
        return ("char", self._literal(self._escaped(char)))

    def _escaped(self, char: str) -> str:
        if char in _ESCAPED:
            return _ESCAPED[char]
        if char == "" or char.isalnum():
            raise self._error(f'has "\\{char}", which srb doesn\'t know')
        return char

    def _class(self) -> Test:
        negated = self._take("^")
        tests: list[Test] = []
        while not tests or self._next != "]":
            char = self._pop()
            if char == "\\" and (kind := _KINDS.get(self._next.lower())):
                tests.append(kind if self._pop().islower() else _not(kind))
                continue
            first = self._escaped(self._pop()) if char == "\\" else char
            if self._next == "-" and self._source[self._at + 1 : self._at + 2] not in ("]", ""):
                self._pop()
                last = self._pop()
                last = self._escaped(self._pop()) if last == "\\" else last
                if first > last:
                    raise self._error(f"has a range the wrong way round: {first}-{last}")
                tests.append(self._range(first, last))
            else:
                tests.append(self._literal(first))
        self._pop()
        alone = tuple(tests)
        return lambda char: any(test(char) for test in alone) != negated

    def _range(self, first: str, last: str) -> Test:
        if self._any_case:
            return lambda char: any(first <= each <= last for each in (char, char.lower(), char.upper()))
        return lambda char: first <= char <= last

    def _literal(self, wanted: str) -> Test:
        if self._any_case:
            lower = wanted.lower()
            return lambda char: char == wanted or char.lower() == lower
        return lambda char: char == wanted

    @property
    def _next(self) -> str:
        return self._source[self._at : self._at + 1]

    def _pop(self) -> str:
        char = self._next
        if char == "":
            raise self._error('ends too early, within "[" or behind "\\"')
        self._at += 1
        return char

    def _take(self, char: str) -> bool:
        is_there = self._next == char
        self._at += is_there
        return is_there

    def _unbounded(self, what: str) -> InvalidRequestError:
        return self._error(f'has no bound at "{what}"; write {{1,20}}, say, because so much text is held back')

    def _error(self, what: str) -> InvalidRequestError:
        return InvalidRequestError(f"banned_strings: the pattern {self._text!r:.100} {what}", param="banned_strings")


def _not(test: Test) -> Test:
    return lambda char: not test(char)


def width(expression: Expression) -> tuple[int, int]:
    """The fewest and the most characters of a text that matches an expression."""
    match expression:
        case ("char", _):
            return 1, 1
        case ("boundary", _):
            return 0, 0
        case ("all", parts):
            widths = [width(part) for part in parts]
            return sum(least for least, _ in widths), sum(most for _, most in widths)
        case ("any", parts):
            widths = [width(part) for part in parts]
            return min(least for least, _ in widths), max(most for _, most in widths)
        case ("times", part, least, most):
            of_part = width(part)
            return of_part[0] * least, of_part[1] * most
    raise AssertionError(expression)
