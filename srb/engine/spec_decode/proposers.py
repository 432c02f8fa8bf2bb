"""Speculative decoding: proposers of draft tokens, which are evaluated before they are sampled.

| module | what it proposes |
|---|---|
| `base.py` | `Proposer`, the interface; `DraftBudget`, how many draft tokens are worth their rows |
| `replay.py` | the tokens that an interrupted text had already |
| `forced.py` | the text that a grammar leaves no choice for |
| `ngram.py` | what followed the same words in the prompt, in the text, or in a sibling's text |
| `draft_model.py` | what a small model samples |

`decoding/speculative.py` evaluates the draft tokens. Each token is still sampled from the model, by the same sampler
and constraints, and a wrong draft costs nothing but time. So draft tokens can't change a text, but for the last bits of
its logits, which depend on what else is in the batch.

To add one: write a module with a `Proposer` and a function `build`, which makes the proposers for the sequences of a
prompt, and add the function to `PROPOSERS`. A sequence gets the draft tokens that save the most time.
"""

from collections.abc import Callable

from srb.engine.backend import Backend
from srb.engine.request import CompletionRequest
from srb.engine.sequence import Prompt, Sequence
from srb.engine.spec_decode import draft_model, forced, ngram, replay
from srb.engine.spec_decode.base import Proposer

PROPOSERS: tuple[Callable[[Prompt, Backend], dict[Sequence, Proposer]], ...] = (
    replay.build,
    forced.build,
    ngram.build,
    draft_model.build,
)
"""Those that take time come last."""


def may_speculate(request: CompletionRequest, backend: Backend) -> bool:
    """Return whether the texts of a request stay the same with draft tokens.

    Joint alternatives must get equally many tokens in a step. A model with a window can't take wrong draft tokens back.
    With blocks, the last bits of a row depend on the other rows of its sequence.
    """
    return backend.draft_max > 0 and not (request.is_joint or backend.block_size) and backend.window is None


def proposers_of(prompt: Prompt, backend: Backend) -> dict[Sequence, list[Proposer]]:
    """Return the proposers of those sequences of a prompt that have any."""
    found: dict[Sequence, list[Proposer]] = {}
    for build in PROPOSERS:
        for seq, proposer in build(prompt, backend).items():
            found.setdefault(seq, []).append(proposer)
    return found
