"""The interface of a decoding strategy, and of what has a row in a step."""

from collections.abc import Collection, Hashable, Sequence
from typing import Any, Protocol

from srb.engine.backend import Logits


class Row(Protocol):
    """What has a row in a step: a sequence that draws, or a beam, say. The row evaluates its next token."""

    seq_id: int | None

    @property
    def strategy(self) -> "DecodingStrategy": ...

    @property
    def group(self) -> "Sequence[Row]":
        """The row itself, and further rows of the same alternative, which are always in the same step."""

    @property
    def next_token(self) -> int:
        """The token that the next step evaluates."""

    @property
    def position(self) -> int:
        """The position of this token: how many tokens the cells hold."""

    @property
    def n_tokens(self) -> int:
        """How many tokens were generated behind the prompt."""

    @property
    def draft_tokens(self) -> Sequence[int]:
        """The tokens behind the next one that are known, or guessed, and may be evaluated before they are drawn."""

    @property
    def is_over(self) -> bool:
        """Whether it needs no more steps."""


class DecodingStrategy:
    """How a prompt is continued. There is one for each prompt, and only the engine's thread calls it.

    Each sequence of a prompt has cells and a row of its own, unless the way has `n_rows` rows in place of these: the
    sequences of a search only get the texts that it finds.
    """

    n_rows = 0
    """How many rows it has itself, each with a seq_id, in place of those of its sequences; 0: these have rows."""

    restarts = False
    """Whether it begins with the prompt again after an interruption, and finds what it had found before."""

    is_divisible = False
    """Whether its sequences can be preempted one by one, and computed again from their tokens."""

    needs_unified = False
    """Whether its rows fork or move cells in nearly every step, which is slow or impossible in streams."""

    holds_texts = True
    """Whether a sequence holds the text of its alternative, which other prompts may begin with."""

    shifts_context = False
    """Whether tokens leave its cells while it goes on, so that other prompts can't share them."""

    n_sampled = 0
    """How many tokens it has found since the request came."""

    n_resumed = 0
    """How many tokens it had already then, because the request goes on after an interruption."""

    @property
    def rows(self) -> Sequence[Row]:
        """What has a row in the next step."""
        return ()

    def unit(self, row: Row) -> Hashable:
        """What all rows are named that are always in the same step as a row: by its own name, it is alone."""
        return id(row)

    row_cells = 0
    """How many cells each of its own rows needs at most."""

    def preemption_group(self, seq: Any) -> Hashable:
        """Names the sequences that are admitted, preempted and resumed together: by its own name, it is alone."""
        return id(seq)

    def size(self, seq: Any, wanted: int, most: int, n_cells: int) -> None:
        """Sets how many tokens a sequence may generate in a context of `n_cells` cells.

        wanted: how many it asks for; -1: until the context is full, but at most `most`.
        """
        raise NotImplementedError

    def before_step(self) -> None:
        """Called before each step, for each prompt that holds cells. It may make room in these cells."""

    def begin(self, row: Any) -> None:
        """Lets one of the prompt's sequences go on. Its prompt is evaluated now, and those of its companions are.

        Called again for a sequence that has gone back so far that nothing of it is left to evaluate.
        """

    def take(self, row: Any, logits: Logits, beside: Sequence[Logits]) -> None:
        """Takes the logits behind the token that a row has evaluated. They are valid until the next step.

        beside: those of the rows that are together with it. It is called once for each token of a row, and for each one
        ahead that was drawn, also when the row has ended with the one before.
        """

    def after_step(self) -> None:
        """Called when all rows of a decode, or all sequences that begin now, were taken."""

    def lost(self, row: Any) -> Collection[Any]:
        """Which sequences end because a row can't be evaluated; None: because the prompt itself can't be."""
        raise NotImplementedError
