"""`Guess`: what an alternative will probably say next, and how often that was right."""

import math
from collections.abc import Sequence as Many

from srb.engine.guesses.worth import Worth
from srb.engine.sequence import Sequence

_WEIGHT = 1 / 8
"""How much one token changes the trust: about the last 8 guessed tokens count."""


class Guess:
    """Guesses the next tokens of one sequence, at most `most`.

    It is asked before each step of few rows, also where no row is worth it, and sees what is drawn then. So to learn
    how far it can be trusted costs no row, and where it is mostly wrong nothing but the guessing is lost.
    """

    trust = 0.0
    """How likely each guessed token is the one that is drawn, if the one before it was."""
    most_rows: float = math.inf
    """It isn't asked in a step that has more rows than this."""

    def __init__(self, seq: Sequence, most: int) -> None:
        self._seq, self._most = seq, most
        self._guessed: Many[int] = ()
        self._n_seen = 0  # how many tokens the sequence had then

    def next(self, worth: Worth) -> Many[int]:
        """The tokens that it expects now, and none if it knows nothing. Call it before a step, at most once."""
        tokens = self._seq.tokens
        n_right = 0
        for guessed, drawn in zip(self._guessed, tokens[self._n_seen :], strict=False):
            self.trust += _WEIGHT * ((guessed == drawn) - self.trust)
            if guessed != drawn:
                break
            n_right += 1
        goes_on = bool(n_right) and n_right == len(tokens) - self._n_seen
        self._n_seen = len(tokens)
        self._guessed = self._guess(n_right if goes_on else 0, worth)
        return self._guessed

    def _guess(self, n_right: int, worth: Worth) -> Many[int]:
        """The tokens that it expects now.

        n_right: how many tokens of the last guess came since then, if these are all that came; else 0.
        worth: tells a guess that takes time whether its tokens are worth that time.
        """
        raise NotImplementedError
