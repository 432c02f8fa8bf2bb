"""`Patterns`: finds regular expressions of bounded length in a stream of characters, in time linear in its length.

Python's `re` can't tell which end of a text may still become a match, and may take exponential time. So the expressions
become one nondeterministic automaton, as in K. Thompson, "Regular expression search algorithm" (CACM 11(6), 1968). Its
threads advance together, one step for each character.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from srb.engine.asking.pattern_syntax import Expression, Test, is_word, parse_pattern
from srb.errors import InvalidRequestError

MAX_NODES = 1_000
"""The size of the automaton of one alternative's patterns. A character takes 3 µs for each node where it matters."""

_MOST_KEPT = 10_000

_FOUND = 0


class State(NamedTuple):
    """Where a search is, at a place between two characters.

    after_word: whether the last character is one of words. threads: by node, how many of the last characters the
    longest text has that led there. found: the length of the longest text that is complete here; 0: none is.
    """

    after_word: bool
    threads: dict[int, int]
    found: int


@dataclass(frozen=True, slots=True)
class _Node:
    """One of: a test for a character, a test for the end of a word (`boundary`), or neither; and what comes next."""

    next: tuple[int, ...]
    test: Test | None = None
    boundary: bool | None = None


class Patterns:
    """Finds any of several patterns, each written as `pattern_syntax` says.

    Raises `InvalidRequestError` for a wrong one, for one without a bound, and if all together are too large.
    """

    start = State(False, {}, 0)

    def __init__(self, patterns: tuple[str, ...]) -> None:
        self._nodes = [_Node(())]
        self._firsts = tuple(self._add(parse_pattern(each), (_FOUND,)) for each in patterns)
        # The states after a place where no thread is: most places of a text are such.
        self._begun: dict[tuple[bool, str], State] = {}

    def advance(self, state: State, char: str) -> State:
        """The state after `char`."""
        if not self._firsts:
            return state
        if state.threads or len(self._begun) == _MOST_KEPT:
            return self._after(state, char)
        key = (state.after_word, char)
        if key not in self._begun:
            self._begun[key] = self._after(state, char)
        return self._begun[key]

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
        """How many of the last characters may still become a match."""
        return max(state.threads.values(), default=0)

    def found_at_end(self, state: State) -> int:
        """The length of the longest match that is complete if the text ends here; 0: there is none."""
        reached = self._reached(state, before_word=False)
        return max((length for node, length in reached if node == _FOUND), default=0)

    def _reached(self, state: State, *, before_word: bool) -> Iterator[tuple[int, int]]:
        """The nodes that the threads, and those that begin here, reach before the next character."""
        begun = dict.fromkeys(self._firsts, 0) | state.threads
        return self._follow(begun, state.after_word != before_word)

    def _follow(self, threads: dict[int, int], at_boundary: bool | None) -> Iterator[tuple[int, int]]:
        """The nodes that are reached without a further character. at_boundary: None if that isn't known yet."""
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
        """Adds the nodes of an expression, and returns the first of them. following: what comes behind it."""
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
                behind = following
                for _ in range(most - least):
                    following = (self._node(_Node((self._add(part, following), *behind))),)
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
    """The patterns with these texts, which all alternatives of a request share. Raises what `Patterns` raises."""
    return Patterns(strings)
