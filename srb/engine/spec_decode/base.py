"""The interface of a proposer of draft tokens, and how many of these are worth their rows."""

import math
from collections import abc
from dataclasses import dataclass

from srb.engine.backend import Costs
from srb.engine.sequence import Sequence

_MARGIN = 1.1
"""Draft tokens must save this many times what they cost, because the costs aren't exact."""

_WEIGHT = 1 / 8
"""The weight of one token in the acceptance rate: about the last 8 draft tokens count."""


@dataclass(frozen=True, slots=True)
class DraftBudget:
    """What draft tokens of one sequence may cost in the next step, by the costs of the backend.

    An example, with costs in milliseconds: a batch with one row takes 12, with two 20, and each further row takes 2
    more. Of six draft tokens with an acceptance rate of 0.9, 4.2 are accepted on average. That saves 4.2 batches of 12,
    and costs 18. With a rate of 0.5 only one is accepted, and no number of them is worth it.

    With four rows, a batch of 24 is saved only if all four texts get one more token. If only one of them does, it ends
    sooner, and the others have batches of 22. So the higher the acceptance rate is, the more of the batch counts: that
    of siblings is about the same.

    Attributes:
        n_rows: The number of rows that the step has without draft tokens.
        position: The number of tokens before the first draft token.
        costs: The costs of a batch.
        max_tokens: The most draft tokens.
        min_saved: The time that they must save, in seconds, because other draft tokens save as much.
    """

    n_rows: int
    position: int
    costs: Costs
    max_tokens: int
    min_saved: float = 0.0

    def seconds(self, n_rows: int) -> float:
        """Return how long a step with this many rows takes."""
        return self.costs.of_rows([self.position] * n_rows)

    def min_probability(self, draft_seconds: float) -> float:
        """Return how probable a draft token must be to be worth a row and the time to draft it; maybe more than 1."""
        row = self.seconds(self.n_rows + 2) - self.seconds(self.n_rows + 1)  # the second row may cost more
        return _MARGIN * (row + draft_seconds) / (self.seconds(self.n_rows) / self.n_rows)

    def best(
        self, acceptance_rate: float, n_tokens: int, draft_seconds: float = 0.0, start_seconds: float = 0.0
    ) -> tuple[int, float]:
        """Return how many draft tokens save the most time, and the seconds that they save.

        Args:
            acceptance_rate: How probable each of them is accepted if the one before it is.
            draft_seconds: The time that it takes to draft one.
            start_seconds: The time that it takes before the first is drafted.

        Returns:
            (0, `min_saved`) if none saves more than that.
        """
        alone = self.seconds(self.n_rows)
        row = alone - (self.seconds(self.n_rows - 1) if self.n_rows > 1 else 0.0)
        share = row + acceptance_rate * (alone / self.n_rows - row)  # what one more token saves
        best, most_saved, accepted, probability = 0, self.min_saved, 0.0, 1.0
        for n in range(1, min(n_tokens, self.max_tokens) + 1):
            probability *= acceptance_rate
            accepted += probability
            cost = self.seconds(self.n_rows + n) - alone + n * draft_seconds + start_seconds
            saved = accepted * share - _MARGIN * cost
            if saved > most_saved:
                best, most_saved = n, saved
        return best, most_saved


class Proposer:
    """Proposes the next tokens of one sequence (draft tokens), and tracks how many are accepted.

    It is called before each step of few rows, also where no row is worth it. Then it sees the tokens that were sampled,
    and updates its acceptance rate. So tracking is free, and where it is mostly wrong only the drafting costs time.

    Subclass it, override `_propose`, and set a first `acceptance_rate`.

    Args:
        max_tokens: The most tokens to propose.
    """

    acceptance_rate = 0.0
    """How probable each draft token is accepted if the one before it was."""

    max_rows: float = math.inf
    """It isn't called in a step that has more rows than this."""

    def __init__(self, seq: Sequence, max_tokens: int) -> None:
        self._seq, self._max_tokens = seq, max_tokens
        self._proposed: abc.Sequence[int] = ()
        self._n_seen = 0  # how many tokens the sequence had then

    def propose(self, budget: DraftBudget) -> abc.Sequence[int]:
        """Return draft tokens, or none. Call it before a step, at most once."""
        tokens = self._seq.tokens
        n_accepted = 0
        for proposed, sampled in zip(self._proposed, tokens[self._n_seen :], strict=False):
            self.acceptance_rate += _WEIGHT * ((proposed == sampled) - self.acceptance_rate)
            if proposed != sampled:
                break
            n_accepted += 1
        were_all = bool(n_accepted) and n_accepted == len(tokens) - self._n_seen
        self._n_seen = len(tokens)
        self._proposed = self._propose(n_accepted if were_all else 0, budget)
        return self._proposed

    def _propose(self, n_accepted: int, budget: DraftBudget) -> abc.Sequence[int]:
        """Return draft tokens.

        Args:
            n_accepted: How many of the last draft tokens were sampled since then, if nothing else was; else 0.
        """
        raise NotImplementedError
