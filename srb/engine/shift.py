"""Prompts and texts that are longer than the context: decides which of their tokens stay in the cells.

An example, with n_keep = 2, and n_discard left out. The alternatives 0 and 1 have a prompt in common:

    "a b c d e f g h" ─┬─ "i j"     no room is left for the next tokens
                       └─ "k l"
    "a b f g h" ─┬─ "i j"           half of the tokens behind "a b" have left. The cells of the prompt were moved once,
                 └─ "k l"           for both alternatives, and each has room for one or two tokens more
    "a b j" ...                     in the end each alternative can lose only tokens of its own

All alternatives of a prompt lose their common tokens at the same time. This works because they have all generated
equally many tokens, and so they go on sharing cells. The text that a client gets is not changed by a shift.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from srb.engine.request import CompletionRequest

if TYPE_CHECKING:
    from srb.engine.active_request import ActiveRequest
    from srb.engine.sequence import Prompt, Sequence

UNLIMITED = 2**31 - 1
"""The `max_tokens` of an alternative that only the model ends."""

LEAST_CELLS = 8
"""A request whose context may be shifted needs at least so many cells of the cache for each alternative."""

_LEAST_ROOM = 16
"""A prompt isn't cut if it leaves each alternative room for so many tokens, or half of the context to all of them."""

_LEAST_PROMPT = 4
"""When a prompt is cut, at least so many tokens stay behind its first `n_keep`, as in llama-server."""


@dataclass(slots=True)
class Shift:
    """Which tokens of a prompt leave, and how many have left.

    n_keep: how many first tokens stay. n_discard: how many leave each time; 0: half of the rest.
    n_cut: how many tokens were left out before the prompt was evaluated. n_dropped: how many left the cells after that.
    """

    n_keep: int
    n_discard: int
    n_cut: int
    n_dropped: int = 0


def may_shift(request: CompletionRequest, n_cells: int, default_max_tokens: int) -> bool:
    """Whether a request asks for context_shift, and may need it: one alternative alone may not fit into the context."""
    longest = max(map(len, request.prompts))
    wanted = {default_max_tokens if params.max_tokens is None else params.max_tokens for params in request.branches}
    return request.context_shift and (-1 in wanted or longest + max(0, max(wanted) - 1) > n_cells)


def fit(active: "ActiveRequest", n_cells: int, default_max_tokens: int, bos: int | None) -> None:
    """Cuts the prompts of a request that may have to shift its context, so that they fit into the context.

    A request that fits with all that it may generate isn't changed. A prompt is cut as llama-server used to do it: its
    first tokens stay, and as many blocks behind them leave as must. A block is half as long as the room behind the
    first tokens. So the prompts of a chat that grows begin alike for a while.
    """
    request = active.request
    if not may_shift(request, n_cells, default_max_tokens):
        return
    n_all = len(active.sequences)
    for prompt in active.prompts:  # a request has several if it was resumed, or has different adapters
        tokens, n = prompt.tokens, len(prompt.sequences)
        part = n_cells * n // n_all
        most = part - n * max(2, min(_LEAST_ROOM, part // (2 * n)))
        n_keep = len(prompt.asked) if request.n_keep == -1 else request.n_keep + (tokens[0] == bos)
        n_keep, n_cut = min(n_keep, len(tokens)), 0
        if len(tokens) > most:
            n_keep = min(n_keep, most - _LEAST_PROMPT)
            block = (most - n_keep) // 2
            n_cut = (len(tokens) - n_keep - block) // block * block
            prompt.begin_with(tokens[:n_keep] + tokens[n_keep + n_cut :])
        prompt.shift = Shift(n_keep, request.n_discard, n_cut)


def moves(prompt: "Prompt") -> bool:
    """Whether cells of a prompt are moved: later, to make room, or now, because its text was known at another place."""
    return prompt.shift is not None or bool(prompt.beginning and prompt.beginning.moved)


def to_drop(seq: "Sequence") -> tuple[int, int]:
    """How many tokens of its prompt, and of its own, a sequence without room must lose now.

    Room that the prompt gives up is shared by all of its sequences, so the prompt loses at least one token for each.
    """
    prompt, shift = seq.prompt, seq.prompt.shift
    assert shift
    n, of_prompt = len(prompt.sequences), prompt.position - shift.n_keep
    n_left = of_prompt + seq.n_own - 1
    least = n if of_prompt >= n else of_prompt + 1
    n_discard = min(max(shift.n_discard or n_left // 2, least), max(1, n_left - 1))
    from_prompt = min(n_discard, of_prompt)
    own = n_discard - from_prompt
    return from_prompt, own if own or from_prompt >= n else 1


def gain(prompt: "Prompt", n_tokens: int) -> int:
    """How much room each sequence of a prompt gets when `n_tokens` of the prompt leave.

    Sequences that have ended are counted, too, so that a text doesn't depend on when its siblings end.
    """
    return n_tokens // len(prompt.sequences)
