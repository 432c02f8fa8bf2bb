"""`CandidateStrategy`: what a beam search and a bridge have in common. They give the sequences the best of the texts
they find.

The texts have the rows. The alternatives of the prompt hold nothing, so event logs, probabilities and history know
nothing of the other texts. After an interruption such a way begins again with the prompt, finds the same texts, and
skips what was told.
"""

from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Any, Self

from srb.engine.constraints.base import Constraint
from srb.engine.decoding.base import DecodingStrategy, Row
from srb.engine.decoding.strategy import PromptStrategy
from srb.engine.events import FinishReason, StopEvent, Token
from srb.engine.output.detokenizer import IncrementalDetokenizer
from srb.engine.sequence import Sequence
from srb.errors import NoTokenError

# The rows of ways that have rows in place of those of their sequences; see `DecodingStrategy.n_rows`.


class OwnRow(Row):
    """A row that belongs to a way.

    n_before: the length of the prompt, in tokens. tokens: those after the prompt, as far as they are known.
    n_held: how many of these are in its cells. at_once: whether known tokens may be evaluated together.
    """

    def __init__(
        self,
        strategy: DecodingStrategy,
        n_before: int,
        tokens: list[int],
        *,
        n_held: int = 0,
        seq_id: int | None = None,
        at_once: bool = True,
    ) -> None:
        self.n_before = n_before
        self.tokens = tokens
        self.n_held = n_held
        self.seq_id = seq_id
        self._way = strategy
        self._at_once = at_once

    @property
    def strategy(self) -> DecodingStrategy:
        """The way that it belongs to."""
        return self._way

    @property
    def group(self) -> tuple[Self]:
        """Itself; see `Row.group`."""
        return (self,)

    @property
    def next_token(self) -> int:
        """The token that its next row evaluates."""
        return self.tokens[self.n_held]

    @property
    def draft_tokens(self) -> Many[int]:
        """The known tokens after the next one."""
        return self.tokens[self.n_held + 1 :] if self._at_once else ()

    @property
    def n_tokens(self) -> int:
        """How many tokens it has after the prompt."""
        return len(self.tokens)

    @property
    def position(self) -> int:
        """How many tokens are in its cells."""
        return self.n_before + self.n_held

    @property
    def is_over(self) -> bool:
        """Whether it needs no more steps."""
        return self not in self.strategy.rows


class TextRow(OwnRow):
    """A row that holds a text which a sequence may get."""

    def __init__(self, strategy: DecodingStrategy, n_before: int, tokens: list[int], **given: Any) -> None:
        super().__init__(strategy, n_before, tokens, **given)
        self.text: IncrementalDetokenizer | None = None  # only if there are stop strings
        self.reported: list[list[Token]] = []  # for each token, if tokens are reported
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | None = None


_OPEN_ENDED = 128
"""How many tokens a text has at most if the request says until the context is full."""


class CandidateStrategy(PromptStrategy):
    """A way with `n_rows` rows, whose sequences get the best texts of these.

    param: the field of a request that asks for it, which errors name.
    """

    restarts = True
    needs_unified = True
    param = ""

    def size(self, seq: Sequence, wanted: int, most: int, n_cells: int) -> None:
        """Sets how long a text may be. The rows' cells are leased at once, so an open-ended text has a limit."""
        prompt, behind = self._prompt, self._active.request.cells_behind
        room = (n_cells - len(prompt.tokens)) // (1 if prompt.block_size else self.n_rows) - behind
        seq.max_tokens = min(_OPEN_ENDED if wanted == -1 else wanted, max(0, room + 1))
        self.row_cells = max(1, seq.max_tokens) + behind - 1

    def begin(self, seq: Sequence) -> None:
        """See `DecodingStrategy.begin`. The rows begin in `after_step`, when this was called for all sequences."""
        seq.state = "running"

    def give(self, seq: Sequence, text: TextRow, **told: Any) -> None:
        """Gives a sequence its text, and ends it.

        told: fields of its `StopEvent`.
        """
        if text.tokens[: seq.length] != [*seq.resumed_tokens, *seq.tokens]:
            self.refuse(seq, "the request was interrupted, and found another text this time")
            return
        self.tell(seq, text.tokens, text.reported, len(text.tokens))
        seq.constraints.append(Told(told))
        self._tools.decoding.finish(seq, text.finish_reason or "stop", text.stop_reason)

    def refuse(self, seq: Sequence, problem: str) -> None:
        """Ends a sequence that can't have a text."""
        self.fail(seq, NoTokenError(problem, param=self.param))


class Told(Constraint):
    """Adds fields to the event of an alternative's end."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def ended(self, event: StopEvent) -> StopEvent:
        """See `Constraint.ended`."""
        return replace(event, **self._fields)
