"""`Choosing`: what a beam search and a bridge have in common. They give the sequences the best of the texts they find.

The texts have the rows. The alternatives of the prompt hold nothing, so event logs, probabilities and history know
nothing of the other texts. After an interruption such a way begins again with the prompt, finds the same texts, and
skips what was told.
"""

from dataclasses import replace
from typing import Any

from srb.engine.ports import Rule
from srb.engine.sequence import Sequence
from srb.engine.telling.events import StopEvent
from srb.engine.ways.rows import TextRow
from srb.engine.ways.tools import OfPrompt
from srb.errors import NoTokenError

_OPEN_ENDED = 128
"""How many tokens a text has at most if the request says until the context is full."""


class Choosing(OfPrompt):
    """A way with `n_rows` rows, whose sequences get the best texts of these.

    param: the field of a request that asks for it, which errors name.
    """

    begins_anew = True
    needs_unified = True
    param = ""

    def size(self, seq: Sequence, wanted: int, most: int, n_cells: int) -> None:
        """Sets how long a text may be. The rows' cells are leased at once, so an open-ended text has a limit."""
        prompt, behind = self._prompt, self._active.request.cells_behind
        room = (n_cells - len(prompt.tokens)) // (1 if prompt.block_size else self.n_rows) - behind
        seq.max_tokens = min(_OPEN_ENDED if wanted == -1 else wanted, max(0, room + 1))
        self.row_cells = max(1, seq.max_tokens) + behind - 1

    def begin(self, seq: Sequence) -> None:
        """See `Way.begin`. The rows begin in `after_step`, when this was called for all sequences."""
        seq.state = "running"

    def give(self, seq: Sequence, text: TextRow, **told: Any) -> None:
        """Gives a sequence its text, and ends it.

        told: fields of its `StopEvent`.
        """
        if text.tokens[: seq.length] != [*seq.begun, *seq.tokens]:
            self.refuse(seq, "the request was interrupted, and found another text this time")
            return
        self.tell(seq, text.tokens, text.reported, len(text.tokens))
        seq.rules.append(Told(told))
        self._tools.decoding.finish(seq, text.finish_reason or "stop", text.stop_reason)

    def refuse(self, seq: Sequence, problem: str) -> None:
        """Ends a sequence that can't have a text."""
        self.fail(seq, NoTokenError(problem, param=self.param))


class Told(Rule):
    """Adds fields to the event of an alternative's end."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def ended(self, event: StopEvent) -> StopEvent:
        """See `Rule.ended`."""
        return replace(event, **self._fields)
