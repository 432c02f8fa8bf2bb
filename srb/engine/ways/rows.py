"""The rows of ways that have rows in place of those of their sequences; see `Way.n_rows`."""

from collections.abc import Sequence as Many
from typing import Any, Self

from srb.engine.ports import Row, Way
from srb.engine.telling.events import FinishReason, Token
from srb.engine.telling.text import TextState


class OwnRow(Row):
    """A row that belongs to a way.

    n_before: the length of the prompt, in tokens. tokens: those after the prompt, as far as they are known.
    n_held: how many of these are in its cells. at_once: whether known tokens may be evaluated together.
    """

    def __init__(
        self,
        way: Way,
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
        self._way = way
        self._at_once = at_once

    @property
    def way(self) -> Way:
        """The way that it belongs to."""
        return self._way

    @property
    def together(self) -> tuple[Self]:
        """Itself; see `Row.together`."""
        return (self,)

    @property
    def next_token(self) -> int:
        """The token that its next row evaluates."""
        return self.tokens[self.n_held]

    @property
    def ahead(self) -> Many[int]:
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
        return self not in self.way.rows


class TextRow(OwnRow):
    """A row that holds a text which a sequence may get."""

    def __init__(self, way: Way, n_before: int, tokens: list[int], **given: Any) -> None:
        super().__init__(way, n_before, tokens, **given)
        self.text: TextState | None = None  # only if there are stop strings
        self.reported: list[list[Token]] = []  # for each token, if tokens are reported
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | None = None
