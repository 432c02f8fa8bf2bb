"""Counts what the alternatives of a prompt have said, so that the others can go on with something else.

Tokens that stay are counted between the steps, so that the order within a step doesn't matter. Alternatives that depend
on each other (`CompletionRequest.is_joint`) stay on one replica.
"""

from collections.abc import Iterable

from srb.engine.constraints.base import Constraint, SamplingInput
from srb.engine.constraints.setup import ConstraintSetup
from srb.engine.sequence import Sequence

CONTEXT = 2
"""So many equal tokens must come before a token, for the token to be counted; docs/figures/diversity.md says why."""


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

    def tell(self, index: int, tokens: Iterable[int]) -> None:
        """Takes the next tokens of an alternative."""
        last = self._last.get(index, self._prompt)
        for token in tokens:
            said = self._next.setdefault(last, {})
            said[token] = said.get(token, 0) | 1 << index
            last = (*last, token)[-CONTEXT:]
        self._last[index] = last

    def counts(self, index: int, last: tuple[int, ...]) -> dict[int, int]:
        """How many other alternatives have gone on with each token after these last ones; without tokens of none."""
        others = {token: who & ~(1 << index) for token, who in self._next.get(last, {}).items()}
        return {token: who.bit_count() for token, who in others.items() if who}


class DiversityPenalty(Constraint):
    """Makes an alternative go on with what fewer of its siblings have said.

    diversity: one object for it and its siblings.
    """

    def __init__(self, seq: Sequence, diversity: Diversity) -> None:
        self._seq = seq
        self._diversity = diversity
        self._n_counted = 0  # how many of its tokens are counted

    def between_steps(self) -> None:
        """Counts the new tokens that are sure to stay. So all siblings draw by the same counts in a step."""
        seq = self._seq
        if self._n_counted < seq.n_final:
            self._diversity.tell(seq.index, seq.tokens[self._n_counted : seq.n_final])
            self._n_counted = seq.n_final

    def before(self, draw: SamplingInput) -> None:
        """See `Constraint.before`."""
        seq = self._seq
        if strength := seq.params.diversity:
            last = (*seq.prompt.tokens[-CONTEXT:], *seq.tokens[-CONTEXT:])[-CONTEXT:]
            draw.biases |= {token: -strength * n for token, n in self._diversity.counts(seq.index, last).items()}


def give(setup: ConstraintSetup) -> None:
    """Gives the rule to all alternatives of a request, if it has one with `diversity`."""
    branches = setup.request.branches
    if not any(params.diversity for params in branches):
        return
    diversities = [Diversity(tokens) for tokens, _ in setup.asked]
    for index, each in enumerate(setup.resumed):
        diversities[index // len(branches)].tell(index, each.tokens)
    for seq in setup.active.sequences:
        seq.constraints.append(DiversityPenalty(seq, diversities[seq.index // len(branches)]))
