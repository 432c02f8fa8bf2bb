"""How many guessed tokens are worth their rows, by the costs of the backend.

An example, with costs in milliseconds: a decode with one row takes 12, with two 20, and each further row takes 2 more.
A guess of six tokens that are right nine times out of ten is met by 4.2 tokens in the mean, which saves 4.2 decodes of
12, and costs 18. If they are right every second time, only one is met, and no number of them is worth it.
"""

from dataclasses import dataclass

from srb.engine.costs import Costs

_MARGIN = 1.1
"""Guesses must save so many times what they cost, because the costs aren't exact."""


@dataclass(frozen=True, slots=True)
class Worth:
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

    def of(self, trust: float, n_tokens: int, making: float = 0.0) -> tuple[int, float]:
        """How many of `n_tokens` save the most time, and how many seconds; (0, `least`): none saves more than that.

        trust: how likely each of them is right, if the one before it is.
        making: how many seconds it takes to guess one.
        """
        alone = self.seconds(self.n_rows)
        share = alone / self.n_rows  # what a token of this sequence costs in a step of its own
        best, gain, met, likely = 0, self.least, 0.0, 1.0
        for n in range(1, min(n_tokens, self.most) + 1):
            likely *= trust
            met += likely
            saved = met * share - _MARGIN * (self.seconds(self.n_rows + n) - alone + n * making)
            if saved > gain:
                best, gain = n, saved
        return best, gain
