"""Alternatives that begin differently: the first words of a text, by which it's known again."""

import re

from srb.engine.backend import Tokenizer
from srb.engine.sampling_params import AVOIDED_CHARS

OPENING_WORDS = 8
OPENING_CHARS = AVOIDED_CHARS
"""No opening goes on behind so many characters, however few words there are."""

_WIDE = "\u1100-\u11ff\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_WIDE}]|[^\W{_WIDE}]+")

Opening = tuple[str, ...]


def opening(text: str, *, is_whole: bool) -> Opening | None:
    """The first words of a text, or all if it has fewer. None if there may be more of them.

    Case and what stands between words don't count. A Chinese, Japanese or Korean character is a word of its own.
    is_whole: nothing comes behind this text.
    """
    words = [each.end() for each in _WORD.finditer(text)]
    is_there = len(words) > OPENING_WORDS or (len(words) == OPENING_WORDS and words[-1] < len(text))
    return _words(text) if is_there or is_whole or len(text) >= OPENING_CHARS else None


def _words(text: str) -> Opening:
    text = text[:OPENING_CHARS]
    return tuple(word.casefold() for word in _WORD.findall(text)[:OPENING_WORDS]) or (text.strip(),)


def opening_of(text: str | tuple[int, ...], tokenizer: Tokenizer, n_before: int = 0) -> Opening:
    """The opening of all of a text, or of what these tokens stand for, from the byte `n_before` on."""
    if not isinstance(text, str):
        pieces = b"".join(tokenizer.piece(token) for token in text if not tokenizer.is_end(token))
        text = pieces[n_before:].decode(errors="replace")
    return _words(text)


class Openings:
    """What an alternative isn't to begin with: what its siblings have begun with, and what else is to be avoided.

    said: shared with the siblings; it gets what this one begins with.
    """

    def __init__(self, avoided: frozenset[Opening], said: set[Opening]) -> None:
        self._avoided = avoided
        self._said = said

    def claim(self, each: Opening) -> bool:
        """Takes an opening for this alternative. Returns False if it is there already."""
        if each in self._said or each in self._avoided:
            return False
        self._said.add(each)
        return True
