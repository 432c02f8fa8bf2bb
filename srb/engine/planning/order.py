"""Which prompts are evaluated next, and how much time they have beside the rows of running sequences.

The prompt with the fewest tokens left goes first. A long one would starve behind them, so each prompt has a grace: for
how many more tokens it may be passed.
"""

from srb.engine.costs import Costs
from srb.engine.sequence import Prompt

PATIENCE = 2.5
"""Because others pass it, a prompt may take at most so many times as long as alone after the prompts before it."""

_LEAST_PASSING = 0.25
"""For each token of a prompt, so many tokens of later prompts may pass it, even if `PATIENCE` would allow fewer."""

_LITTLE_MORE = 1.2
"""A piece has a decode of its own if this makes the pause at most so many times as long."""

UNLIMITED = 1e9  # seconds


def passing(seconds: float, for_rows: float) -> float:
    """For each token of a prompt, how many tokens of later prompts may pass it.

    seconds: what prompts have in each step. for_rows: what the rows take.
    """
    return max(PATIENCE * seconds / (seconds + for_rows) - 1, _LEAST_PASSING) / 2


def in_turn(prefilling: list[Prompt], passing: float) -> list[Prompt]:
    """The prompts that may go next, the shortest first: all up to the first one that no other may pass any more.

    passing: for each token that a prompt has left when it comes, so many tokens of later prompts may pass it. For each
        token that is evaluated of it, or of a prompt before it, it may be passed by so many more.
    """
    for prompt in prefilling:
        if prompt.grace is None:
            prompt.grace = passing * left(prompt)
    last = next((k for k, prompt in enumerate(prefilling) if (prompt.grace or 0) < 0), len(prefilling))
    return sorted(prefilling[: last + 1], key=lambda prompt: left(prompt).bit_length())


def count(prefilling: list[Prompt], prompt: Prompt, n_tokens: int, passing: float) -> None:
    """Counts tokens of a prompt as evaluated: earlier prompts were passed by them, the others may be passed by more."""
    place = prefilling.index(prompt)
    for k, each in enumerate(prefilling):
        assert each.grace is not None
        each.grace += n_tokens * (passing if k >= place else -1)


def enough(seconds: float, for_rows: float, before: int, costs: Costs) -> tuple[float, int]:
    """Lengthens the time for prompts beside rows, so that none is evaluated `PATIENCE` times as slowly as alone.

    A token that joins the rows takes longer than a token of a piece in a decode of its own, and small pieces join the
    rows. If that needs a pause nearly as long as the smallest piece of its own needs, there is time for this piece.

    Returns the seconds, and the least size of the first piece: that of the smallest piece of its own, or 1.
    """
    apart = costs.step + costs.of_piece(costs.apart, before)
    slower = costs.of_piece(1, before, joins=True) / costs.of_piece(1, before) / PATIENCE
    joined = max(seconds, for_rows * slower / (1 - slower)) if slower < 1 else UNLIMITED
    if apart <= seconds or for_rows + apart <= _LITTLE_MORE * (for_rows + joined):
        return max(seconds, apart), costs.apart
    return joined, 1


def left(prompt: Prompt) -> int:
    """How many tokens of a prompt aren't evaluated yet."""
    return len(prompt.tokens) - prompt.evaluated


def in_use(prompts: list[Prompt]) -> int:
    """About how many tokens are in the cells, and at least those of the longest prompt."""
    own = sum(each.evaluated - each.cached + sum(row.n_tokens for row in each.way.rows) for each in prompts)
    return max(own, *(prompt.evaluated for prompt in prompts), 0)
