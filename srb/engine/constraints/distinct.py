"""`distinct`: the alternatives of a prompt begin with different tokens."""

from srb.engine.constraints.base import Constraint, ConstraintSetup, SamplingInput
from srb.engine.sequence import Sequence


class DistinctTexts(Constraint):
    """Excludes the first tokens of the siblings.

    Args:
        seq: The alternative.
        used: The first tokens of all siblings, also of those with other adapters. They share this set.
    """

    def __init__(self, seq: Sequence, used: set[int]) -> None:
        self._seq = seq
        self._used = used
        self._own: int | None = None

    def before_sampling(self, inputs: SamplingInput) -> None:
        if not self._seq.length:
            inputs.excluded = self._used

    def after_sampling(self, inputs: SamplingInput, token: int, piece: bytes, *, is_last: bool) -> int:
        if not self._seq.length:
            self._own = token
            self._used.add(token)
        return 0

    def rolled_back(self) -> None:
        """Free the first token if it was taken back."""
        if not self._seq.length and self._own is not None:
            self._used.discard(self._own)
            self._own = None


def build(setup: ConstraintSetup) -> None:
    """Add the constraint to all alternatives of a request with `distinct`."""
    if not setup.request.distinct:
        return
    n = len(setup.request.branches)
    used = [
        {each.tokens[0] for each in setup.resumed[k : k + n] if each.tokens} for k in range(0, len(setup.resumed), n)
    ]
    for seq in setup.active.sequences:
        seq.constraints.append(DistinctTexts(seq, used[seq.index // n]))
