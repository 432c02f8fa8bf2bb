"""`ReplayedTokens`: draft tokens that an alternative had before an interruption, and samples again."""

from collections import abc

from srb.engine.backend import Backend
from srb.engine.sequence import Prompt, Sequence
from srb.engine.spec_decode.base import DraftBudget, Proposer


class ReplayedTokens(Proposer):
    """Proposes the next of the tokens that are known."""

    acceptance_rate = 1.0

    def _propose(self, n_accepted: int, budget: DraftBudget) -> abc.Sequence[int]:
        return self._seq.replayed[len(self._seq.tokens) :][: self._max_tokens]


def build(prompt: Prompt, backend: Backend) -> dict[Sequence, Proposer]:
    """Return a proposer for each sequence of a prompt that has known tokens."""
    return {seq: ReplayedTokens(seq, backend.draft_max) for seq in prompt.sequences if seq.replayed}
