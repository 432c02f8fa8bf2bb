"""Incremental detokenizer: turns the bytes of tokens into text, and finds stop strings in it, one token at a time.

The work for a token depends only on the token's length, and not on the length of the text before it.
"""

import codecs
from collections import deque
from collections.abc import Collection

LONGEST_CHARACTER = 4
"""The most bytes of a character in UTF-8."""


class StopStrings:
    """Finds the first of several strings in a stream of characters.

    The automaton is that of Aho and Corasick, "Efficient string matching: an aid to bibliographic search"
    (CACM 18(6), 1975). Its states are the prefixes of the strings; state 0 is the empty one. The match is the
    string that is complete first, and the longest of those that are complete at the same character. So the match
    doesn't depend on how the text was cut into tokens.
    """

    def __init__(self, strings: tuple[str, ...]) -> None:
        self.depth = [0]
        """The length of each state's prefix: the number of last characters that may still become a stop string."""
        self.match: list[str | None] = [None]
        """The string that is complete in each state."""
        self._next: list[dict[str, int]] = [{}]
        self._fallback = [0]
        for string in strings:
            self._insert(string)
        self._link()

    def _insert(self, string: str) -> None:
        state = 0
        for char in string:
            if char not in self._next[state]:
                self._next[state][char] = len(self.depth)
                self.depth.append(self.depth[state] + 1)
                self.match.append(None)
                self._next.append({})
                self._fallback.append(0)
            state = self._next[state][char]
        self.match[state] = string

    def _link(self) -> None:
        """Set each state's fallback: the longest proper suffix of its prefix that is a state too."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self._next[state].items():
                fallback = self.advance(self._fallback[state], char)
                self._fallback[child] = fallback
                self.match[child] = self.match[child] or self.match[fallback]
                queue.append(child)

    def advance(self, state: int, char: str) -> int:
        """Return the state that `char` leads to from another state."""
        while char not in self._next[state]:
            if state == 0:
                return 0
            state = self._fallback[state]
        return self._next[state][char]


class IncrementalDetokenizer:
    """The text of one sequence, which grows with each token.

    Bytes that aren't valid UTF-8 become U+FFFD. A character waits until all of its bytes have come. Text that may be
    the beginning of a stop string waits, too.

    Args:
        stops: The strings that may end the text.
        included: Those of them that are a part of the text which they end.
    """

    __slots__ = ("_decoder", "_state", "_waiting", "included", "matched", "stops")

    def __init__(self, stops: StopStrings | None = None, included: Collection[str] = ()) -> None:
        self.matched: str | None = None
        """The stop string that was found; nothing may be pushed after that."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.stops = stops
        self.included = included
        self._state = 0
        self._waiting = ""

    @property
    def is_whole(self) -> bool:
        """Whether nothing waits: all text of the tokens so far has been returned."""
        return not self._waiting and not self._decoder.getstate()[0]

    def copy(self) -> "IncrementalDetokenizer":
        """Return a copy, which can go on with other tokens."""
        other = IncrementalDetokenizer(self.stops, self.included)
        other._decoder.setstate(self._decoder.getstate())
        other._state, other._waiting, other.matched = self._state, self._waiting, self.matched
        return other

    def push_prompt(self, data: bytes) -> str:
        """Process text before the first token, which can't be a stop string, and return what can be shown."""
        return self._decoder.decode(data)

    def push(self, piece: bytes) -> str:
        """Process the bytes of the next token, and return the text that can be shown now; it may be empty."""
        text = self._decoder.decode(piece)
        if self.stops is None:
            return text
        state, advance, match = self._state, self.stops.advance, self.stops.match
        for i, char in enumerate(text):
            state = advance(state, char)
            if matched := match[state]:
                shown = self._waiting + text[: i + 1]
                self.matched, self._waiting = matched, ""
                return shown if matched in self.included else shown[: -len(matched)]
        self._state = state
        text = self._waiting + text
        end = len(text) - self.stops.depth[state]
        self._waiting = text[end:]
        return text[:end]

    def flush(self) -> str:
        """Return the text that was waiting. Call it at the end: an incomplete character is dropped."""
        waiting, self._waiting = self._waiting, ""
        return waiting
