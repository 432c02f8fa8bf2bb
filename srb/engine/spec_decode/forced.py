"""`ForcedTokens`: what a grammar leaves no choice for.

After `{"` a schema may leave nothing but the text `name": "`. The model might still write it with other tokens than the
usual ones (`na` and `me`, say), and the seed decides that. So these tokens are guessed, too, and not taken for drawn.
"""

from collections.abc import Sequence as Many

from srb.engine.backend import Backend
from srb.engine.sequence import Prompt, Sequence
from srb.engine.spec_decode.base import AcceptanceRate, Proposer


class ForcedTokens(Proposer):
    """Guesses the usual tokens of the text that the sampler of a sequence will have to draw."""

    trust = 0.9

    def _guess(self, n_right: int, worth: AcceptanceRate) -> Many[int]:
        return self._seq.sampler.forced(self._most) if self._seq.sampler else ()


def give(prompt: Prompt, backend: Backend) -> dict[Sequence, Proposer]:
    """The guesses for those sequences of a prompt that have a grammar."""
    return {seq: ForcedTokens(seq, backend.draft_max) for seq in prompt.sequences if seq.params.is_constrained}
