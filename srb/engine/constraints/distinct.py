"""`distinct`: the alternatives of a prompt begin with different tokens."""

from srb.engine.constraints.base import Constraint, SamplingInput
from srb.engine.constraints.setup import ConstraintSetup
from srb.engine.sequence import Sequence


class DistinctTexts(Constraint):
    """Draws a first token that none of the siblings has drawn.

    drawn: the first tokens of all siblings, also of those with other adapters. They share this set.
    """

    def __init__(self, seq: Sequence, drawn: set[int]) -> None:
        self._seq = seq
        self._drawn = drawn
        self._own: int | None = None

    def before(self, draw: SamplingInput) -> None:
        """See `Constraint.before`."""
        if not self._seq.length:
            draw.excluded = self._drawn

    def after(self, draw: SamplingInput, token: int, piece: bytes, *, is_last: bool) -> int:
        """See `Constraint.after`."""
        if not self._seq.length:
            self._own = token
            self._drawn.add(token)
        return 0

    def taken_back(self) -> None:
        """Lets others begin with the first token again, if it was taken back."""
        if not self._seq.length and self._own is not None:
            self._drawn.discard(self._own)
            self._own = None


def give(setup: ConstraintSetup) -> None:
    """Gives the rule to all alternatives of a request with `distinct`."""
    if not setup.request.distinct:
        return
    n = len(setup.request.branches)
    drawn = [
        {each.tokens[0] for each in setup.resumed[k : k + n] if each.tokens} for k in range(0, len(setup.resumed), n)
    ]
    for seq in setup.active.sequences:
        seq.constraints.append(DistinctTexts(seq, drawn[seq.index // n]))
