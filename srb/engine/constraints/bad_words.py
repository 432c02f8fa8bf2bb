"""`BadWords`: finds the words of `bad_words` in a stream of characters. `banned_strings` takes them back.

vLLM bans the usual tokens of each word, with and without a space before it, so "he" isn't found in "the". Here a word
is found by its characters, whatever tokens they come in, unless it is a part of a longer word.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from srb.engine.output.detokenizer import StopStrings
from srb.engine.validation.patterns import is_word

_EDGE = "\udc00"
"""Stands for the beginning and the end of a word in what is searched. No text has this half of a surrogate pair."""

_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u2e80-\ua4cf\ua9e0-\ua9ff"
    "\uaa60-\uaadf\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
"""Scripts in which words have no spaces between them, or are joined to particles: Thai to Chinese, and Korean."""


@lru_cache(10_000)
def _is_in_word(char: str) -> bool:
    return is_word(char) and not _UNSPACED.match(char)


def _with_edges(text: str) -> str:
    """Return the text as it is searched: with the edges of its words, also at its own ends."""
    result, in_word = "", False
    for char in text:
        result += (_EDGE if _is_in_word(char) != in_word else "") + char
        in_word = _is_in_word(char)
    return result + (_EDGE if in_word else "")


class WordState(NamedTuple):
    """The state of a search between two characters.

    Attributes:
        prefix: the state of the automaton.
        in_word: whether a word may go on here.
        found: the number of last characters from the beginning of a word that is complete; 0: none is.
    """

    prefix: int
    in_word: bool
    found: int


class BadWords:
    """Finds any of several words. The space before one doesn't count, as in vLLM."""

    start = WordState(0, False, 0)

    def __init__(self, words: tuple[str, ...]) -> None:
        marked = [_with_edges(word.lstrip() or word) for word in words]
        self._words = StopStrings(tuple(marked))
        self._n_chars = [0] * len(self._words.depth)
        for word in marked:
            state = 0
            for end, char in enumerate(word, 1):
                state = self._words.advance(state, char)
                self._n_chars[state] = end - word.count(_EDGE, 0, end)

    def advance(self, state: WordState, char: str) -> WordState:
        """Return the state after `char`."""
        if len(self._n_chars) == 1:  # there are no words
            return state
        prefix, in_word, found = state.prefix, _is_in_word(char), 0
        if in_word != state.in_word:
            prefix = self._words.advance(prefix, _EDGE)
            found = self._length(prefix, 1)  # `char` was needed to see that the word is complete
        prefix = self._words.advance(prefix, char)
        return WordState(prefix, in_word, max(found, self._length(prefix)))

    def depth(self, state: WordState) -> int:
        """Return how many of the last characters may still become a word."""
        return self._n_chars[state.prefix]

    def found_at_end(self, state: WordState) -> int:
        """Return the length of the longest word that ends here if the text does; 0: there is none."""
        return self._length(self._words.advance(state.prefix, _EDGE)) if state.in_word else 0

    def _length(self, prefix: int, n_after: int = 0) -> int:
        """Return the length of the word that is complete in this state, and of what comes after it; 0: none is."""
        word = self._words.match[prefix]
        return len(word) - word.count(_EDGE) + n_after if word else 0
