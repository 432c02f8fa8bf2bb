"""What an alternative will probably say next, so that it is evaluated before it is drawn.

| file | what it guesses |
|---|---|
| `guess.py` | `Proposer`, which each of them is; read this first |
| `worth.py` | how many guessed tokens are worth their rows |
| `forced.py` | what a grammar leaves no choice for |
| `lookup.py` | what the prompt, the text or a sibling has after the same words |
| `draft.py` | what a small model says |

In: a sequence and its tokens. Out: tokens for `Row.draft_tokens`, which `ways/guessing.py` sets. Each token is still
drawn from the model, by the same sampler and rules, and a wrong guess costs nothing but time. So a guess can't change
a text, but for the last bits of its logits: rows that are evaluated together have others.

A module has a function `give`, which makes the guesses for the sequences of a prompt. Whoever adds one adds it to
`PROPOSERS`, where those that take time come last. A sequence has the tokens of the guess that saves the most.
"""

from collections.abc import Callable

from srb.engine.backend import Backend
from srb.engine.request import CompletionRequest
from srb.engine.sequence import Prompt, Sequence
from srb.engine.spec_decode import draft_model as draft
from srb.engine.spec_decode import forced
from srb.engine.spec_decode import ngram as lookup
from srb.engine.spec_decode.base import Proposer

PROPOSERS: tuple[Callable[[Prompt, Backend], dict[Sequence, Proposer]], ...] = (forced.give, lookup.give, draft.give)


def may_speculate(request: CompletionRequest, backend: Backend) -> bool:
    """Whether the texts of a request stay the same if it guesses.

    Alternatives that look at each other must all come as far in a step. Models that forget can't take a wrong guess
    back. With blocks, a row that is evaluated together with another one has other bits.
    """
    return backend.draft_max > 0 and not (request.is_joint or backend.block_size) and backend.window is None


def proposers_of(prompt: Prompt, backend: Backend) -> dict[Sequence, list[Proposer]]:
    """The guesses for those sequences of a prompt that have any, those that take time last."""
    found: dict[Sequence, list[Proposer]] = {}
    for give in PROPOSERS:
        for seq, guess in give(prompt, backend).items():
            found.setdefault(seq, []).append(guess)
    return found
