"""Prompts and texts that are longer than the context: what of them stays in the cells.

An example, with n_keep = 2, and n_discard left out. The alternatives 0 and 1 have a prompt in common:

    "a b c d e f g h" ─┬─ "i j"     no room is left for what comes next
                       └─ "k l"
    "a b f g h" ─┬─ "i j"           half of what is behind "a b" has left. The cells of the prompt were moved once, for
                 └─ "k l"           both, and each has room for one or two tokens more
    "a b j" ...                     in the end only what each has of its own can leave

All alternatives of a prompt lose what they have in common at the same time: they have come equally far, and so no cell
is needed twice. What is said knows nothing of it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from srb.engine.request import CompletionRequest

if TYPE_CHECKING:
    from srb.engine.active_request import ActiveRequest
    from srb.engine.sequence import Prompt, Sequence

UNLIMITED = 2**31 - 1
"""The `max_tokens` of an alternative that has no end but its own."""

LEAST_CELLS = 8
"""So many cells there must be for each alternative of a request that may have to leave out something."""

_LEAST_ROOM = 16
"""A prompt that leaves each alternative so much room isn't cut, nor one that leaves half of the context."""

_LEAST_PROMPT = 4
"""So many tokens of a prompt that is cut stay behind the first ones, as in llama-server."""


@dataclass(slots=True)
class Shift:
    """What a prompt does without.

    n_keep: how many first tokens stay. n_discard: how many leave each time; 0: half of the rest.
    n_cut: how many tokens were left out before it was evaluated. n_dropped: how many have left the cells since.
    """

    n_keep: int
    n_discard: int
    n_cut: int
    n_dropped: int = 0


def may_shift(request: CompletionRequest, n_cells: int, default_max_tokens: int) -> bool:
    """Whether a request wants the context shifted that may have no room for all of an alternative, were it alone."""
    longest = max(map(len, request.prompts))
    wanted = {default_max_tokens if params.max_tokens is None else params.max_tokens for params in request.branches}
    return request.context_shift and (-1 in wanted or longest + max(0, max(wanted) - 1) > n_cells)


def fit(active: "ActiveRequest", n_cells: int, default_max_tokens: int, bos: int | None) -> None:
    """Cuts the prompts of a request that may have to leave out something to what the context has room for.

    One that fits with all that it may generate goes on as any other. A prompt is cut as llama-server used to do it: its
    first tokens stay, and of the rest as many blocks leave as have to, each half as long as there is room. So a chat
    that grows begins alike for a while.
    """
    request = active.request
    if not may_shift(request, n_cells, default_max_tokens):
        return
    part = n_cells // len(active.prompts)  # several where it was resumed, or has different adapters
    for prompt in active.prompts:
        tokens, n = prompt.tokens, len(prompt.sequences)
        most = part - n * max(2, min(_LEAST_ROOM, part // (2 * n)))
        n_keep = len(prompt.asked) if request.n_keep == -1 else request.n_keep + (tokens[0] == bos)
        n_keep, n_cut = min(n_keep, len(tokens)), 0
        if len(tokens) > most:
            n_keep = min(n_keep, most - _LEAST_PROMPT)
            block = (most - n_keep) // 2
            n_cut = (len(tokens) - n_keep - block) // block * block
            prompt.begin_with(tokens[:n_keep] + tokens[n_keep + n_cut :])
        prompt.shift = Shift(n_keep, request.n_discard, n_cut)


def to_drop(seq: "Sequence") -> tuple[int, int]:
    """How many tokens of its prompt, and of its own, a sequence without room does without from now on.

    What leaves of a prompt makes room for all that continue it, and so must be one for each, at least.
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
    """How much room each sequence of a prompt gets for what leaves of it.

    It's the same whoever has ended: a text doesn't depend on what becomes of its siblings.
    """
    return n_tokens // len(prompt.sequences)
