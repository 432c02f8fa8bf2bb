"""`Given`: stands in for the sampler of an alternative that is scored, whose tokens are known before they are drawn.

So a continuation is scored like an alternative is drawn: it is forked off its prompt, and each token is reported with
the log-probability that it has there. But nobody needs to wait for a token before the next one is evaluated. The
planner evaluates them together (`Sequence.ahead`), and then they are drawn one after the other.

Nothing but the planner and this sampler knows of it. Up to 128 tokens are evaluated ahead of the draws.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from srb.engine.backend import Logprobs
from srb.engine.sequence import ActiveRequest


class Given:
    """Draws the given tokens, whatever the logits are. Implements `srb.engine.backend.Sampler`."""

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self._left = iter(tokens)

    def sample(self, logits: Any, excluded: Collection[int] = (), biases: Mapping[int, float] | None = None) -> int:
        """The next token."""
        return next(self._left)

    def logprobs(self, token: int, top: int) -> Logprobs:
        """Nothing else could have been drawn."""
        return 0.0, [(token, 0.0)][:top]

    def close(self) -> None:
        """There is nothing to free."""


def give_tokens(active: ActiveRequest) -> None:
    """Gives the alternatives of a request their tokens, if these are scored and not drawn."""
    candidates = active.request.candidates
    for seq in active.sequences if candidates else ():
        tokens = candidates[seq.index]
        seq.given = () if active.block_size else tokens  # each is in a row of its own, as if it were drawn
        seq.params = replace(seq.params, max_tokens=len(tokens))
        seq.sampler = Given(tokens[len(seq.begun) :])
