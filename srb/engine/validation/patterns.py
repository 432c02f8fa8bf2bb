"""`Patterns`: finds regular expressions of bounded length in a stream of characters, in time linear in its length.

Python's `re` can't tell which end of a text may still become a match, and may take exponential time. So the expressions
become one nondeterministic automaton, as in K. Thompson, "Regular expression search algorithm" (CACM 11(6), 1968). Its
threads advance together, one step for each character.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from srb.errors import InvalidRequestError

MAX_PATTERN_CHARS = 1_000
MAX_WIDTH = 200
"""The most characters of a match, since all of them may have to be held back."""

Test = Callable[[str], bool]
Expression = tuple[Any, ...]
"""("char", Test), ("boundary", bool), ("all", parts), ("any", parts), or ("times", part, least, most)."""

_MAX_DEPTH = 50
_PATTERN = re.compile(r"/(.+)/([dgimsuvy]*)", re.DOTALL)
_BOUNDS = re.compile(r"\{(\d+)(?:(,)(\d*))?\}")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}


def is_word(char: str) -> bool:
    """Return whether a character belongs to words: letters, digits and _."""
    return char.isalnum() or char == "_"


_QUOTES = {"‘": "'", "’": "'", "ʼ": "'", "“": '"', "”": '"'}  # noqa: RUF001


@lru_cache(10_000)
def folded(char: str) -> str:
    """Return the character that stands for all that are equal if case is ignored. Curly quotes become straight ones.

    It is always one character, so places in a text stay the same, although full case folding makes "ss" of ß. Turkish's
    two letters i, with and without a dot, are equal.
    """
    folds = char.upper().casefold()
    return _QUOTES.get(char, folds if len(folds) == 1 else char.lower()[0])


def is_pattern(text: str) -> bool:
    """Return whether a text is written as a pattern, rather than as a phrase."""
    return _PATTERN.fullmatch(text) is not None


def parse_pattern(text: str) -> Expression:
    r"""Return the expression of a pattern, such as `/delv(e|es|ing)\b/i`. Raises `InvalidRequestError`.

    A pattern is between slashes; an `i` after the second one ignores case, as `folded` does. JavaScript's `g` and `u`
    change nothing; its other flags are refused. A pattern may have `.`, `[a-z]`, `[^a-z]`, `\d \w \s` and `\D \W \S`,
    `\b` and `\B`, `( )` and `(?: )`, `|`, `?`, `{3}` and `{1,20}`. Refused are repetitions without a bound (`*`, `+`,
    `{3,}`), `^`, `$`, look-arounds and references.
    """
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
            raise self._error(f"has the flag {unknown[0]}, which srb doesn't know; it knows i, which ignores case")
        expression = self._any()
        if self._at < len(self._source):
            raise self._error('has a ")" without a "("; write \\) for the character')
        least, most = width(expression)
        if least == 0:
            raise self._error("matches the empty text")
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
            raise self._error(
                f'has a "{char}", which means nothing in a text that is still growing; write \\{char} or \\b'
            )
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
            return lambda char: any(first <= each <= last for each in (char, char.lower(), char.upper(), folded(char)))
        return lambda char: first <= char <= last

    def _literal(self, wanted: str) -> Test:
        if self._any_case:
            wanted = folded(wanted)
            return lambda char: folded(char) == wanted
        return lambda char: char == wanted

    @property
    def _next(self) -> str:
        return self._source[self._at : self._at + 1]

    def _pop(self) -> str:
        char = self._next
        if char == "":
            raise self._error('ends too early, within "[" or after "\\"')
        self._at += 1
        return char

    def _take(self, char: str) -> bool:
        is_there = self._next == char
        self._at += is_there
        return is_there

    def _unbounded(self, what: str) -> InvalidRequestError:
        return self._error(
            f'has no bound at "{what}"; write {{1,20}}, for example, because that much text is held back'
        )

    def _error(self, what: str) -> InvalidRequestError:
        return InvalidRequestError(f"banned_strings: the pattern {self._text!r:.100} {what}", param="banned_strings")


def _not(test: Test) -> Test:
    return lambda char: not test(char)


def width(expression: Expression) -> tuple[int, int]:
    """Return the fewest and the most characters of a text that matches an expression."""
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


MAX_NODES = 1_000
"""The most nodes of an automaton, which has all patterns of an alternative. A live node takes 3 µs per character."""

_MAX_CACHED = 10_000

_FOUND = 0


class State(NamedTuple):
    """The state of a search between two characters.

    Attributes:
        after_word: whether the last character belongs to a word.
        threads: by node, the length of the longest text that led there.
        found: the length of the longest match that ends here; 0: none does.
    """

    after_word: bool
    threads: dict[int, int]
    found: int


@dataclass(frozen=True, slots=True)
class _Node:
    """A test for a character, a test for the end of a word (`boundary`), or neither; and the next nodes."""

    next: tuple[int, ...]
    test: Test | None = None
    boundary: bool | None = None


class Patterns:
    """Finds any of several patterns.

    Raises:
        InvalidRequestError: `parse_pattern` refuses one, or all together are too large.
    """

    start = State(False, {}, 0)

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._nodes = [_Node(())]
        self._firsts = tuple(self._add(parse_pattern(each), (_FOUND,)) for each in patterns)
        # The states after a place without threads. Most places of a text have none.
        self._first_states: dict[tuple[bool, str], State] = {}

    def advance(self, state: State, char: str) -> State:
        """Return the state after `char`."""
        if not self._firsts:
            return state
        if state.threads or len(self._first_states) == _MAX_CACHED:
            return self._after(state, char)
        key = (state.after_word, char)
        if key not in self._first_states:
            self._first_states[key] = self._after(state, char)
        return self._first_states[key]

    def _after(self, state: State, char: str) -> State:
        threads: dict[int, int] = {}
        found = 0
        for node, length in self._reached(state, before_word=is_word(char)):
            if node == _FOUND:
                found = max(found, length + 1)  # `char` was needed to see that it is complete
            elif (test := self._nodes[node].test) and test(char):
                for following in self._nodes[node].next:
                    threads[following] = max(threads.get(following, 0), length + 1)
        found = max((found, *(n for node, n in self._follow(threads, None) if node == _FOUND)))
        return State(is_word(char), threads, found)

    def depth(self, state: State) -> int:
        """Return how many of the last characters may still become a match."""
        return max(state.threads.values(), default=0)

    def found_at_end(self, state: State) -> int:
        """Return the length of the longest match if the text ends here; 0: there is none."""
        reached = self._reached(state, before_word=False)
        return max((length for node, length in reached if node == _FOUND), default=0)

    def _reached(self, state: State, *, before_word: bool) -> Iterator[tuple[int, int]]:
        """Yield the nodes that the threads, and those that begin here, reach before the next character."""
        threads = dict.fromkeys(self._firsts, 0) | state.threads
        return self._follow(threads, state.after_word != before_word)

    def _follow(self, threads: dict[int, int], at_boundary: bool | None) -> Iterator[tuple[int, int]]:
        """Yield the nodes that are reached without a further character. at_boundary: None if it isn't known yet."""
        seen: set[int] = set()
        waiting = sorted(threads.items(), key=lambda thread: thread[1])
        while waiting:
            at, length = waiting.pop()  # the longest first, so a node's first length is its longest
            if at in seen:
                continue
            seen.add(at)
            node = self._nodes[at]
            if at == _FOUND or node.test:
                yield at, length
            elif node.boundary is None or node.boundary is at_boundary:
                waiting += [(following, length) for following in node.next]

    def _add(self, expression: Expression, following: tuple[int, ...]) -> int:
        """Add the nodes of an expression, and return the first of them. following: the nodes after it."""
        match expression:
            case ("char", test):
                return self._node(_Node(following, test=test))
            case ("boundary", boundary):
                return self._node(_Node(following, boundary=boundary))
            case ("all", parts):
                for part in reversed(parts):
                    following = (self._add(part, following),)
                return self._node(_Node(following)) if not parts else following[0]
            case ("any", parts):
                return self._node(_Node(tuple(self._add(part, following) for part in parts)))
            case ("times", part, least, most):
                after = following
                for _ in range(most - least):
                    following = (self._node(_Node((self._add(part, following), *after))),)
                for _ in range(least):
                    following = (self._add(part, following),)
                return self._node(_Node(following))
        raise AssertionError(expression)

    def _node(self, node: _Node) -> int:
        if len(self._nodes) == MAX_NODES:
            raise InvalidRequestError(
                f"the patterns in banned_strings have more than {MAX_NODES} parts with all their repetitions; "
                "use fewer, or smaller bounds",
                param="banned_strings",
            )
        self._nodes.append(node)
        return len(self._nodes) - 1


@lru_cache(64)
def patterns_of(strings: tuple[str, ...]) -> Patterns:
    """Return the automaton of these patterns, which alternatives with the same ones share. Raises as `Patterns`."""
    return Patterns(strings)
