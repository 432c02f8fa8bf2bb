"""What evaluating takes on this machine: what the sizes of pieces of prompts come from."""

from dataclasses import dataclass

NEVER = 1 << 30
"""For `Costs.apart`: no piece is so large."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a decode, as they were measured once or estimated. It's these that count and not live times, so that
    the same requests make the same batches.

    step: of any decode, however few rows it has.
    row: beside that, of the row of a running sequence.
    prompt_token: of a token of a prompt, in a piece of 64 tokens or more.
    row_cell, prompt_cell: what either takes longer for each token of its own sequence that comes before it.
    apart: a piece of so many tokens is cheaper in a decode of its own than in one with rows of running sequences.
    """

    step: float
    row: float
    prompt_token: float
    row_cell: float
    prompt_cell: float
    apart: int = NEVER

    def of_rows(self, lengths: list[int]) -> float:
        """Seconds of a decode with a row for each sequence of these lengths."""
        return self.step + self.row * len(lengths) + self.row_cell * sum(lengths)

    def of_piece(self, n_tokens: int, before: int) -> float:
        """Seconds of so many tokens of a prompt, after the ones before."""
        return n_tokens * (self.prompt_token + self.prompt_cell * (before + n_tokens / 2))

    def largest_piece(self, seconds: float, before: int) -> int:
        """How many tokens of a prompt can be evaluated in this time, after the ones before."""
        each = self.prompt_token + self.prompt_cell * before
        # of_piece(n) = seconds is a quadratic equation; this form of its root also holds without prompt_cell.
        return int(2 * seconds / (each + (each * each + 2 * self.prompt_cell * max(seconds, 0.0)) ** 0.5))
