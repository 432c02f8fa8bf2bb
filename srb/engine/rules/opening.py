"""Keeps alternatives from beginning alike. Texts are compared by their opening, which is their first words."""

import re

from srb.engine.asking.model import Tokenizer
from srb.engine.asking.sampling_params import AVOIDED_CHARS

OPENING_WORDS = 8
OPENING_CHARS = AVOIDED_CHARS
"""An opening ends after at most so many characters, even if it has fewer words by then."""

_WIDE = "\u1100-\u11ff\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_WIDE}]|[^\W{_WIDE}]+")

Opening = tuple[str, ...]


def opening(text: str, *, is_whole: bool) -> Opening | None:
    """The first `OPENING_WORDS` words of a text, or all if it has fewer; None if some of them may still come.

    Neither case nor the characters between words count. A Chinese, Japanese or Korean character is a word of its own.
    is_whole: whether the text is complete.
    """
    words = [each.end() for each in _WORD.finditer(text)]
    is_there = len(words) > OPENING_WORDS or (len(words) == OPENING_WORDS and words[-1] < len(text))
    return _words(text) if is_there or is_whole or len(text) >= OPENING_CHARS else None


def _words(text: str) -> Opening:
    text = text[:OPENING_CHARS]
    return tuple(word.casefold() for word in _WORD.findall(text)[:OPENING_WORDS]) or (text.strip(),)


def opening_of(text: str | tuple[int, ...], tokenizer: Tokenizer, n_before: int = 0) -> Opening:
    """The opening of a complete text, or of the text of these tokens without its first `n_before` bytes."""
    if not isinstance(text, str):
        pieces = b"".join(tokenizer.piece(token) for token in text if not tokenizer.is_end(token))
        text = pieces[n_before:].decode(errors="replace")
    return _words(text)


class Openings:
    """The openings that an alternative must not have.

    avoided: those that its parameters name. said: those of its siblings. All siblings share this set, and the
        alternative adds its own opening to it.
    """

    def __init__(self, avoided: frozenset[Opening], said: set[Opening]) -> None:
        self._avoided = avoided
        self._said = said

    def claim(self, each: Opening) -> bool:
        """Claims an opening for this alternative. Returns False if it may not have this one."""
        if each in self._said or each in self._avoided:
            return False
        self._said.add(each)
        return True

    def release(self, each: Opening) -> None:
        """Gives back an opening that this alternative has claimed: it has taken some of these words back."""
        self._said.discard(each)
