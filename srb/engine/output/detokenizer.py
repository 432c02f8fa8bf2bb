"""Turns the bytes of tokens into text, and finds stop strings in it, one token at a time.

The work for a token depends only on the token's length, and not on the length of the text so far.

Tokens are reported when their text is whole, one event each. So a text and its probabilities never disagree, and a stop
string's text doesn't show while its tokens do.
"""

import codecs
from collections import deque


class StopStrings:
    """Finds the first of several strings in a stream of characters.

    The automaton is that of Aho and Corasick, "Efficient string matching: an aid to bibliographic search"
    (CACM 18(6), 1975). Its states are the prefixes of the strings; state 0 is the empty one. The match is the
    string that is complete first, and the longest of those that are complete at the same character. So the match
    doesn't depend on how the text was cut into tokens.
    """

    def __init__(self, strings: tuple[str, ...]) -> None:
        self.depth = [0]
        """The length of each state's prefix: so many last characters may still become a stop string."""
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
        """Sets each state's fallback: the longest proper suffix of its prefix that is a state too."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for char, child in self._next[state].items():
                fallback = self.advance(self._fallback[state], char)
                self._fallback[child] = fallback
                self.match[child] = self.match[child] or self.match[fallback]
                queue.append(child)

    def advance(self, state: int, char: str) -> int:
        """The state that `char` leads to from another state."""
        while char not in self._next[state]:
            if state == 0:
                return 0
            state = self._fallback[state]
        return self._next[state][char]


class IncrementalDetokenizer:
    """The text of one sequence, which grows with each token.

    Bytes that aren't valid UTF-8 become U+FFFD. A character is kept back until all of its bytes have come. Text that
    may be the beginning of a stop string is kept back, too.

    stops: the strings that may end the text.
    """

    __slots__ = ("_decoder", "_held", "_state", "matched", "stops")

    def __init__(self, stops: StopStrings | None = None) -> None:
        self.matched: str | None = None
        """The stop string that was found; nothing may be pushed after that."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.stops = stops
        self._state = 0
        self._held = ""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is kept back: all text of the tokens so far has been returned."""
        return not self._held and not self._decoder.getstate()[0]

    def copy(self) -> "IncrementalDetokenizer":
        """A copy, which can go on with other tokens."""
        other = IncrementalDetokenizer(self.stops)
        other._decoder.setstate(self._decoder.getstate())
        other._state, other._held, other.matched = self._state, self._held, self.matched
        return other

    def precede(self, data: bytes) -> str:
        """Takes text that comes before the first token and can't be a stop string; returns what can be shown."""
        return self._decoder.decode(data)

    def push(self, piece: bytes) -> str:
        """Takes the bytes of the next token and returns the text that can now be shown, which may be none."""
        text = self._decoder.decode(piece)
        if self.stops is None:
            return text
        state, advance, match = self._state, self.stops.advance, self.stops.match
        for i, char in enumerate(text):
            state = advance(state, char)
            if matched := match[state]:
                shown = (self._held + text[: i + 1])[: -len(matched)]
                self.matched, self._held = matched, ""
                return shown
        self._state = state
        text = self._held + text
        end = len(text) - self.stops.depth[state]
        self._held = text[end:]
        return text[:end]

    def flush(self) -> str:
        """Returns the text that was kept back. To be called at the end; an incomplete character is dropped."""
        held, self._held = self._held, ""
        return held
