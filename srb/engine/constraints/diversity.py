"""`diversity`: counts the tokens of the alternatives of a prompt, so that siblings can go on with other tokens.

Final tokens are counted between the steps, so that the order within a step doesn't matter. Alternatives that depend on
each other (`CompletionRequest.is_joint`) stay on one replica.
"""

from collections.abc import Iterable

from srb.engine.constraints.base import Constraint, ConstraintSetup, SamplingInput
from srb.engine.sequence import Sequence

CONTEXT = 2
"""A token counts only after this many equal tokens; docs/figures/diversity.md says why."""


class Diversity:
    """For each two tokens: which alternatives of a prompt have gone on with which token after them.

    An example: after " the old", two alternatives have gone on with " man" and one with " house".

    This is the Hamming term of diverse beam search (Vijayakumar et al. 2018, arXiv:1610.02424), made independent of
    position. There, an alternative counts if it has the token at the same place; here, if it has the token after the
    same tokens, wherever that is.
    """

    def __init__(self, prompt: tuple[int, ...]) -> None:
        self._prompt = prompt[-CONTEXT:]
        self._last: dict[int, tuple[int, ...]] = {}  # the last tokens of each alternative
        self._next: dict[tuple[int, ...], dict[int, int]] = {}  # by two tokens, then the next: a bit per alternative

    def add(self, index: int, tokens: Iterable[int]) -> None:
        """Count the next tokens of an alternative."""
        last = self._last.get(index, self._prompt)
        for token in tokens:
            following = self._next.setdefault(last, {})
            following[token] = following.get(token, 0) | 1 << index
            last = (*last, token)[-CONTEXT:]
        self._last[index] = last

    def counts(self, index: int, last: tuple[int, ...]) -> dict[int, int]:
        """Return how many other alternatives have each token after these last ones, without tokens of none."""
        others = {token: who & ~(1 << index) for token, who in self._next.get(last, {}).items()}
        return {token: who.bit_count() for token, who in others.items() if who}


class DiversityPenalty(Constraint):
    """Makes tokens less probable that siblings have at the same place.

    Args:
        seq: The alternative.
        diversity: The counts, shared with its siblings.
    """

    def __init__(self, seq: Sequence, diversity: Diversity) -> None:
        self._seq = seq
        self._diversity = diversity
        self._n_counted = 0  # how many of its tokens are counted

    def before_step(self) -> None:
        """Count the new final tokens. So all siblings see the same counts in a step."""
        seq = self._seq
        if self._n_counted < seq.n_final:
            self._diversity.add(seq.index, seq.tokens[self._n_counted : seq.n_final])
            self._n_counted = seq.n_final

    def before_sampling(self, inputs: SamplingInput) -> None:
        """Add a negative bias to each token that siblings have here."""
        seq = self._seq
        if strength := seq.params.diversity:
            last = (*seq.prompt.tokens[-CONTEXT:], *seq.tokens[-CONTEXT:])[-CONTEXT:]
            for token, n in self._diversity.counts(seq.index, last).items():
                inputs.add(token, -strength * n)


def build(setup: ConstraintSetup) -> None:
    """Add the constraint to all alternatives of a request if any of them has `diversity`."""
    branches = setup.request.branches
    if not any(params.diversity for params in branches):
        return
    diversities = [Diversity(tokens) for tokens, _ in setup.asked]
    for index, each in enumerate(setup.resumed):
        diversities[index // len(branches)].add(index, each.tokens)
    for seq in setup.active.sequences:
        seq.constraints.append(DiversityPenalty(seq, diversities[seq.index // len(branches)]))
