"""`Following`: the way of a prompt whose sequences are companions, which have the tokens that their leaders draw."""

from srb.engine.sequence import Sequence
from srb.engine.ways.tools import OfPrompt


class Following(OfPrompt):
    """Has no rows: those of its sequences come together with those of their leaders."""

    def lost(self, row: Sequence | None) -> list[Sequence]:
        """The leaders, which can't go on without their companions."""
        return [seq.leader for seq in self._prompt.living if seq.leader]
