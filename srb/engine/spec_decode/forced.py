"""`ForcedTokens`: draft tokens where a grammar leaves no choice.

After `{"` a schema may leave nothing but the text `name": "`. The model might still write it with other tokens than the
usual ones (`na` and `me`, say), and the seed decides that. So these tokens are drafts, too.
"""

from collections import abc

from srb.engine.backend import Backend
from srb.engine.sequence import Prompt, Sequence
from srb.engine.spec_decode.base import DraftBudget, Proposer


class ForcedTokens(Proposer):
    """Proposes the usual tokens of the text that a sequence must have next."""

    acceptance_rate = 0.9

    def _propose(self, n_accepted: int, budget: DraftBudget) -> abc.Sequence[int]:
        return self._seq.sampler.forced(self._max_tokens) if self._seq.sampler else ()


def build(prompt: Prompt, backend: Backend) -> dict[Sequence, Proposer]:
    """Return a proposer for each sequence of a prompt that has a grammar."""
    return {seq: ForcedTokens(seq, backend.draft_max) for seq in prompt.sequences if seq.params.has_grammar}
