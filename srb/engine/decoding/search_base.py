"""`CandidateStrategy`: the base of beam search and bridges, which give the sequences the best of the texts they find.

The texts have the rows. The alternatives have no cells, so event logs, probabilities and history don't see the other
texts. After an interruption the strategy begins again with the prompt, finds the same texts, and skips what was
reported.
"""

from collections import abc
from dataclasses import replace
from typing import Any, Self, TypeVar

from srb.engine.decoding.base import AnyStrategy, DecodingStrategy, EngineParts
from srb.engine.events import FinishReason, StopEvent, StopReason, Token
from srb.engine.output.detokenizer import IncrementalDetokenizer
from srb.engine.sequence import Prompt, Sequence
from srb.errors import NoTokenError


class OwnRow:
    """A `Row` that belongs to a strategy, and not to a sequence.

    Args:
        prompt: The prompt that it continues.
        tokens: The tokens after the prompt, as far as they are known.
        n_computed: How many of these are in its cells.
        seq_id: Where its cells are.
    """

    def __init__(
        self,
        strategy: AnyStrategy,
        prompt: Prompt,
        tokens: list[int],
        *,
        n_computed: int = 0,
        seq_id: int | None = None,
    ) -> None:
        self.prompt = prompt
        self.tokens = tokens
        self.n_computed = n_computed
        self.seq_id = seq_id
        self.strategy = strategy

    @property
    def group(self) -> tuple[Self]:
        return (self,)

    @property
    def next_token(self) -> int:
        return self.tokens[self.n_computed]

    @property
    def draft_tokens(self) -> abc.Sequence[int]:
        return () if self.prompt.block_size else self.tokens[self.n_computed + 1 :]

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    @property
    def position(self) -> int:
        return len(self.prompt.tokens) + self.n_computed

    @property
    def is_over(self) -> bool:
        """Whether its strategy has dropped it."""
        return self not in self.strategy.rows


class TextRow(OwnRow):
    """A row with a text that a sequence may get."""

    def __init__(self, strategy: AnyStrategy, prompt: Prompt, tokens: list[int], **options: Any) -> None:
        super().__init__(strategy, prompt, tokens, **options)
        self.text: IncrementalDetokenizer | None = None  # only if there are stop strings
        self.details: list[list[Token]] = []  # for each token, if tokens are reported
        self.finish_reason: FinishReason | None = None
        self.stop_reason: StopReason = None


OwnRowT = TypeVar("OwnRowT", bound=OwnRow)

_DEFAULT_TOKENS = 128
"""The most tokens of a text if the request has no limit: the cells of all rows are allocated at once."""


class CandidateStrategy(DecodingStrategy[OwnRowT]):
    """A strategy with `n_rows` rows of its own. Its sequences get the best texts of these."""

    restarts = True
    needs_unified = True
    param = ""
    """The request field that asks for it; errors name it."""

    def __init__(self, prompt: Prompt, parts: EngineParts) -> None:
        super().__init__(prompt, parts)
        self._stop_fields: dict[Sequence, dict[str, Any]] = {}

    def set_max_tokens(self, seq: Sequence, requested: int, limit: int, n_cells: int) -> None:
        """Set `max_tokens` of a sequence, and `row_cells`."""
        prompt, n_after = self._prompt, self._active.request.cells_after
        room = (n_cells - len(prompt.tokens)) // (1 if prompt.block_size else self.n_rows) - n_after
        seq.max_tokens = min(_DEFAULT_TOKENS if requested == -1 else requested, max(0, room + 1))
        self.row_cells = max(1, seq.max_tokens) + n_after - 1

    def begin_sequence(self, seq: Sequence) -> None:
        """Mark a sequence as running. The rows begin in `after_step`, when this was called for all sequences."""
        seq.state = "running"

    def finish_with(self, seq: Sequence, text: TextRow, **stop_fields: Any) -> None:
        """Give a sequence its text, and end it. The fields become those of its `StopEvent`."""
        if text.tokens[: seq.length] != [*seq.resumed_tokens, *seq.tokens]:
            self.refuse(seq, "the request was interrupted, and found another text this time")
            return
        self.add_tokens(seq, text.tokens, text.details, len(text.tokens))
        self._stop_fields[seq] = stop_fields
        self._parts.runner.finish(seq, text.finish_reason or "stop", text.stop_reason)

    def refuse(self, seq: Sequence, problem: str) -> None:
        """End a sequence that can't have a text."""
        self.fail_sequence(seq, NoTokenError(problem, param=self.param))

    def stop_event(self, seq: Sequence, event: StopEvent) -> StopEvent:
        return replace(event, **self._stop_fields.get(seq, {}))
