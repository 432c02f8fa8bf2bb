"""Alternatives that differ: what each has said is a reason for the others to go on with something else."""

from collections.abc import Iterable

CONTEXT = 2
"""After so many equal tokens it counts what an alternative goes on with; docs/diversity.md says why so many."""


class Diversity:
    """What the alternatives of one prompt have gone on with, after each two tokens.

    It is the Hamming term of diverse beam search (Vijayakumar et al. 2018, arXiv:1610.02424), made independent of
    position: there an alternative counts that has the token at the same place, here one that has it after the same
    tokens, wherever that is.
    """

    def __init__(self, prompt: tuple[int, ...]) -> None:
        self._prompt = prompt[-CONTEXT:]
        self._last: dict[int, tuple[int, ...]] = {}  # tokens of each alternative
        self._next: dict[tuple[int, ...], dict[int, int]] = {}  # the tokens after others: a bit for who has said it

    def tell(self, index: int, tokens: Iterable[int]) -> None:
        """Takes what an alternative goes on with."""
        last = self._last.get(index, self._prompt)
        for token in tokens:
            said = self._next.setdefault(last, {})
            said[token] = said.get(token, 0) | 1 << index
            last = (*last, token)[-CONTEXT:]
        self._last[index] = last

    def counts(self, index: int, last: tuple[int, ...]) -> dict[int, int]:
        """How many others have gone on with each token after the last ones of an alternative, where any has."""
        others = {token: who & ~(1 << index) for token, who in self._next.get(last, {}).items()}
        return {token: who.bit_count() for token, who in others.items() if who}
