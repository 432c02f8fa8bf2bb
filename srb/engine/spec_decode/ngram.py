"""`NgramProposer`: what followed the same tokens before, in the prompt, in the text, or in a sibling's text.

That is often right where a text is rewritten, quoted or translated into another form, and in code. The method is known
as prompt lookup decoding: A. Saxena, "Prompt Lookup Decoding" (2023).
"""

from collections import abc
from functools import cached_property

from srb.engine.backend import Backend
from srb.engine.kv_cache.radix import pack
from srb.engine.sequence import Prompt, Sequence
from srb.engine.spec_decode.base import DraftBudget, Proposer

NGRAM_SIZE = 2
"""How many equal tokens must come before a place, so that the text after it is proposed."""

MAX_ROWS = 4
"""The most rows of a step. With more rows, to look up for each would take longer than the draft tokens save."""

_SIZE = pack((0,)).itemsize


class NgramProposer(Proposer):
    """Proposes what followed the last place that has the same tokens before it.

    Tokens are compared as bytes, which finds the place in 100,000 tokens in some tenths of a millisecond.

    Args:
        max_tokens: The most tokens to propose.
        siblings: The proposers of all sequences of its prompt.
    """

    acceptance_rate = 0.3
    max_rows = MAX_ROWS

    def __init__(self, seq: Sequence, max_tokens: int, siblings: "list[NgramProposer]") -> None:
        super().__init__(seq, max_tokens)
        self._siblings = siblings
        self._own = bytearray()  # its own tokens
        self._source: bytes | bytearray = b""
        self._place = 0  # where in the source the draft tokens begin, in bytes

    @cached_property
    def _prompt(self) -> bytes:
        first = self._siblings[0]
        return self._seq.prompt.packed.tobytes() if first is self else first._prompt

    def _propose(self, n_accepted: int, budget: DraftBudget) -> abc.Sequence[int]:
        tokens = self._seq.tokens
        del self._own[len(tokens) * _SIZE :]
        self._own += pack(tokens[len(self._own) // _SIZE :]).tobytes()
        self._place += n_accepted * _SIZE
        if not n_accepted or self._place >= len(self._source):
            self._find()
        found = pack(())
        found.frombytes(self._source[self._place : self._place + self._max_tokens * _SIZE])
        end = next((k for k, token in enumerate(found) if token < 0), len(found))  # an image has no token
        return found[:end].tolist()

    def _find(self) -> None:
        """Find the last place with the same tokens before it, in its own text first."""
        size = NGRAM_SIZE * _SIZE
        last = (self._prompt[-size:] + self._own)[-size:]
        self._source, self._place = b"", 0
        siblings = [each._own for each in self._siblings if each is not self]
        sources: list[bytes | bytearray] = [self._own, self._prompt, *siblings]
        for source in sources:
            at = _last_place(last, source)
            if len(last) == size and at >= 0:
                self._source, self._place = source, at + size
                return


def _last_place(tokens: bytes, source: bytes | bytearray) -> int:
    """Return where these tokens come last in the source, with another one after them, in bytes; -1: nowhere."""
    at = source.rfind(tokens, 0, max(0, len(source) - _SIZE))
    while at % _SIZE and at >= 0:  # it begins within a token
        at = source.rfind(tokens, 0, at + len(tokens) - 1)
    return at


def build(prompt: Prompt, backend: Backend) -> dict[Sequence, Proposer]:
    """Return a proposer for each sequence of a prompt."""
    siblings: list[NgramProposer] = []
    siblings += [NgramProposer(seq, backend.draft_max, siblings) for seq in prompt.sequences]
    return {each._seq: each for each in siblings}
