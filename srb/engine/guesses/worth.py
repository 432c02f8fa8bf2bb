"""How many guessed tokens are worth their rows, by the costs of the backend.

An example, with costs in milliseconds: a decode with one row takes 12, with two 20, and each further row takes 2 more.
A guess of six tokens that are right nine times out of ten is met by 4.2 tokens in the mean, which saves 4.2 decodes of
12, and costs 18. If they are right every second time, only one is met, and no number of them is worth it.
"""

from srb.engine.costs import Costs

_MARGIN = 1.1
"""Guesses must save so many times what they cost, because the costs aren't exact."""


def worth(trust: float, most: int, n_rows: int, position: int, costs: Costs) -> int:
    """How many guessed tokens save the most time; 0: none does.

    trust: how likely each of them is right, if the one before it is. most: how many there are.
    n_rows: how many rows the step has without them. position: how many tokens come before the first of them.
    """

    def seconds(n: int) -> float:
        return costs.of_rows([position] * n)

    share = seconds(n_rows) / n_rows  # what a token of this sequence costs in a step of its own
    best, gain, met, likely = 0, 0.0, 0.0, 1.0
    for n in range(1, most + 1):
        likely *= trust
        met += likely
        saved = met * share - _MARGIN * (seconds(n_rows + n) - seconds(n_rows))
        if saved > gain:
            best, gain = n, saved
    return best
