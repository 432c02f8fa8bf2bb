"""`Proposer`: what an alternative will probably say next, and how often that was right."""

import math
from collections.abc import Sequence as Many
from dataclasses import dataclass

from srb.engine.backend import Costs
from srb.engine.sequence import Sequence

# How many guessed tokens are worth their rows, by the costs of the backend. An example, with costs in milliseconds:
# a decode with one row takes 12, with two 20, and each further row takes 2 more. A guess of six tokens that are
# right nine times out of ten is met by 4.2 tokens in the mean, which saves 4.2 decodes of 12, and costs 18. If they
# are right every second time, only one is met, and no number of them is worth it. With four rows, a decode of 24 is
# saved only if all four texts come a token further. If one alone does, it ends sooner, and the others have decodes
# of 22. So the more certain its guess is, the more of the decode counts: others of the same prompt are about as
# certain.

_MARGIN = 1.1
"""Guesses must save so many times what they cost, because the costs aren't exact."""


@dataclass(frozen=True, slots=True)
class AcceptanceRate:
    """What guesses are worth in the next step, for one sequence.

    n_rows: how many rows the step has without them. position: how many tokens come before the first of them.
    most: how many there can be. least: how many seconds they must save, because another guess saves so many.
    """

    n_rows: int
    position: int
    costs: Costs
    most: int
    least: float = 0.0

    def seconds(self, n_rows: int) -> float:
        """How long a step of so many rows takes."""
        return self.costs.of_rows([self.position] * n_rows)

    def least_likely(self, making: float) -> float:
        """How likely a guessed token must be drawn that takes a row more, and so many seconds to guess, to be worth it.

        A probability, or more than 1.
        """
        row = self.seconds(self.n_rows + 2) - self.seconds(self.n_rows + 1)  # the second row may cost more
        return _MARGIN * (row + making) / (self.seconds(self.n_rows) / self.n_rows)

    def of(self, trust: float, n_tokens: int, making: float = 0.0, before: float = 0.0) -> tuple[int, float]:
        """How many of `n_tokens` save the most time, and how many seconds; (0, `least`): none saves more than that.

        trust: how likely each of them is right, if the one before it is.
        making: how many seconds it takes to guess one. before: how many more it takes until there is the first.
        """
        alone = self.seconds(self.n_rows)
        row = alone - (self.seconds(self.n_rows - 1) if self.n_rows > 1 else 0.0)
        share = row + trust * (alone / self.n_rows - row)  # what a token more saves
        best, gain, met, likely = 0, self.least, 0.0, 1.0
        for n in range(1, min(n_tokens, self.most) + 1):
            likely *= trust
            met += likely
            saved = met * share - _MARGIN * (self.seconds(self.n_rows + n) - alone + n * making + before)
            if saved > gain:
                best, gain = n, saved
        return best, gain


_WEIGHT = 1 / 8
"""How much one token changes the trust: about the last 8 guessed tokens count."""


class Proposer:
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

    def next(self, worth: AcceptanceRate) -> Many[int]:
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

    def _guess(self, n_right: int, worth: AcceptanceRate) -> Many[int]:
        """The tokens that it expects now.

        n_right: how many tokens of the last guess came since then, if these are all that came; else 0.
        worth: tells a guess that takes time whether its tokens are worth that time.
        """
        raise NotImplementedError
