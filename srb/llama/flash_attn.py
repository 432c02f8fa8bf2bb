"""When flash attention is worth turning off: a rule of counts, measured by bench/flash_attn.py on a CPU."""

from collections.abc import Collection

Work = Collection[tuple[int, int, int]]
"""Prompts: the tokens of each, how many sequences continue it, and how many tokens these may generate."""

FEW = 4  # rows of one prompt; flash attention computes fewer in a fast way of its own

LOST_PER_TOKEN = 250
"""What a token of a prompt takes longer without flash attention, in cells walked."""

LOST_BY_CHANGE = 200_000
"""How many cells are walked in the time that it takes to change the context, there and back."""


def is_faster_without(work: Work) -> bool:
    """Whether the whole of the work takes less time without flash attention."""
    return attention_saved(work) > LOST_PER_TOKEN * sum(tokens for tokens, _, _ in work) + LOST_BY_CHANGE


def attention_saved(work: Work) -> int:
    """How many cells fewer are walked without flash attention while the sequences generate; may be negative.

    With it each row walks its own cells and those of its prompt, at twice the cost; without it, all cells in use.
    """
    in_use = sum(tokens + n * length // 2 for tokens, n, length in work)
    return sum(n * length * (2 * (tokens + length // 2) - in_use) for tokens, n, length in work if n >= FEW)
