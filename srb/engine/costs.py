"""How long evaluating takes on this machine. The planner computes from this how large pieces of prompts are."""

from dataclasses import dataclass

NEVER = 1 << 30
"""For `Costs.apart`: no piece is so large, so no piece is cheaper in a decode of its own."""

_LEAST = 1e-9  # no token is free


@dataclass(frozen=True, slots=True)
class Costs:
    """How many seconds the parts of a decode take. The numbers were measured once, or estimated.

    The engine plans by these and not by the times of the moment, so that the same requests make the same batches.

    step: any decode, however few rows it has.
    row: the row of a running sequence, and each token of a piece that joins such rows.
    prompt_token: each token of a piece that has a decode of its own.
    row_cell, prompt_cell: how much longer such a row, or such a token, takes for each token that comes before it in its
        own sequence.
    apart: from so many tokens on, a piece is cheaper in a decode of its own than in one with rows of running sequences.
    walks_all: whether `row_cell` and `prompt_cell` count for every token in the cells instead, whatever its sequence.
        This is so without flash attention.
    lone_step: a decode with one row and nothing else, which has faster kernels; 0: it takes `step + row`, as a line
        through the times of several rows says.
    """

    step: float
    row: float
    prompt_token: float
    row_cell: float
    prompt_cell: float
    apart: int = NEVER
    walks_all: bool = False
    lone_step: float = 0.0

    def among(self, in_use: int) -> "Costs":
        """The costs while so many tokens are in the cells, of all sequences together."""
        if not self.walks_all:
            return self
        row, token = self.row_cell * in_use, self.prompt_token + self.prompt_cell * in_use
        lone_step = self.lone_step and self.lone_step + row
        return Costs(self.step, self.row + row, token, 0.0, 0.0, apart=self.apart, lone_step=lone_step)

    def of_rows(self, lengths: list[int]) -> float:
        """How many seconds a decode takes that has a row for each sequence of these lengths."""
        step = self.step + self.row * len(lengths)
        return (self.lone_step if len(lengths) == 1 and self.lone_step else step) + self.row_cell * sum(lengths)

    def of_piece(self, n_tokens: int, before: int, *, joins: bool = False) -> float:
        """How many seconds a piece of a prompt takes, beside the step.

        before: how many tokens of the prompt come before it. joins: whether it joins rows of running sequences.
        """
        each, cell = self._of_token(joins=joins)
        return n_tokens * (each + cell * (before + n_tokens / 2))

    def largest_piece(self, seconds: float, before: int, *, joins: bool = False) -> int:
        """How many tokens a piece of a prompt can have that takes at most so many seconds; see `of_piece`."""
        each, cell = self._of_token(joins=joins)
        each += cell * before
        # of_piece(n) = seconds is a quadratic equation in n. This form of its root is also right if `cell` is 0.
        return int(2 * seconds / (each + (each * each + 2 * cell * max(seconds, 0.0)) ** 0.5))

    def _of_token(self, *, joins: bool) -> tuple[float, float]:
        joins = joins and self.apart != NEVER
        each, cell = (self.row, self.row_cell) if joins else (self.prompt_token, self.prompt_cell)
        return max(each, _LEAST), cell
