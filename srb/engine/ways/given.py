"""`Given`: stands in for the sampler of an alternative that is scored, whose tokens are known before they are drawn.

So a continuation is scored like an alternative is drawn: it is forked off its prompt, and each token is reported with
the log-probability that it has there. But nobody needs to wait for a token before the next one is evaluated. The
planner evaluates them together (`Row.ahead`), up to 128 of them in a step, and then they are drawn one after the other.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from srb.engine.backend import Logprobs
from srb.engine.sequence import ActiveRequest
from srb.engine.ways.sampling import Sampling


class Scored(Sampling):
    """Draws the given tokens. All are evaluated ahead but the end, which needs no row.

    With blocks (`Backend.block_size`) each is in a row of its own, as if it were drawn.
    """

    def before_step(self) -> None:
        """Sets which tokens are evaluated ahead."""
        for seq in self.rows if not self._prompt.block_size else ():
            seq.ahead = self._active.request.candidates[seq.index][seq.length : -1]


class Given:
    """Draws the given tokens, whatever the logits are. Implements `srb.engine.backend.Sampler`."""

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self._left = iter(tokens)

    def sample(self, logits: Any, excluded: Collection[int] = (), biases: Mapping[int, float] | None = None) -> int:
        """The next token."""
        return next(self._left)

    def hold(self, n_tokens: int) -> None:
        """Given tokens stay."""

    def go_back(self, n_tokens: int) -> None:
        """Given tokens stay."""

    def forced(self, most: int) -> tuple[int, ...]:
        """Nobody asks: the way knows them."""
        return ()

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
        seq.params = replace(seq.params, max_tokens=len(tokens))
        seq.sampler = Given(tokens[len(seq.begun) :])
