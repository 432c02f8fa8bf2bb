"""What evaluating takes on this machine: what the sizes of pieces of prompts come from."""

from dataclasses import dataclass

NEVER = 1 << 30
"""For `Costs.apart`: no piece is so large."""

_LEAST = 1e-9  # no token is free


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a decode, as they were measured once or estimated.

    These count, and not the times of the moment, so that the same requests make the same batches.

    step: of any decode, however few rows it has.
    row: beside that, of the row of a running sequence, and of each token of a piece that joins such rows.
    prompt_token: of each token of a piece that has a decode of its own.
    row_cell, prompt_cell: what either takes longer for each token of its own sequence that comes before it.
    apart: a piece of so many tokens is cheaper in a decode of its own than in one with rows of running sequences.
    walks_all: whether it's for each token in the cells instead, whoever it is of; so it is without flash attention.
    """

    step: float
    row: float
    prompt_token: float
    row_cell: float
    prompt_cell: float
    apart: int = NEVER
    walks_all: bool = False

    def among(self, in_use: int) -> "Costs":
        """The same while so many tokens are in the cells."""
        if not self.walks_all:
            return self
        row, token = self.row + self.row_cell * in_use, self.prompt_token + self.prompt_cell * in_use
        return Costs(self.step, row, token, row_cell=0.0, prompt_cell=0.0, apart=self.apart)

    def of_rows(self, lengths: list[int]) -> float:
        """Seconds of a decode with a row for each sequence of these lengths."""
        return self.step + self.row * len(lengths) + self.row_cell * sum(lengths)

    def of_piece(self, n_tokens: int, before: int, *, joins: bool = False) -> float:
        """Seconds of so many tokens of a prompt after the ones before; where it joins rows, or else apart."""
        each, cell = self._of_token(joins=joins)
        return n_tokens * (each + cell * (before + n_tokens / 2))

    def largest_piece(self, seconds: float, before: int, *, joins: bool = False) -> int:
        """How many tokens of a prompt can be evaluated in this time, after the ones before."""
        each, cell = self._of_token(joins=joins)
        each += cell * before
        # of_piece(n) = seconds is a quadratic equation; this form of its root holds without `cell`, too.
        return int(2 * seconds / (each + (each * each + 2 * cell * max(seconds, 0.0)) ** 0.5))

    def _of_token(self, *, joins: bool) -> tuple[float, float]:
        joins = joins and self.apart != NEVER
        each, cell = (self.row, self.row_cell) if joins else (self.prompt_token, self.prompt_cell)
        return max(each, _LEAST), cell
