"""The interface of a constraint (logits processor), which changes how one alternative is sampled."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from srb.engine.backend import Backend, Logits
from srb.engine.events import StopEvent
from srb.engine.output.detokenizer import StopStrings
from srb.engine.request import CompletionRequest, Resumed

if TYPE_CHECKING:
    from srb.engine.sequence import ActiveRequest


class SamplingInput:
    """The input of the sampler for one token. Constraints may change it.

    Attributes:
        logits: Those that the sampler gets. Shape `(n_vocab,)`.
        model_logits: Those of the model, from which log-probabilities are reported.
        negative_logits: Those of the negative sequences.
        excluded: Tokens that aren't sampled unless no other is left.
        biases: What is added to the logits of tokens. A token with -inf is sampled only if no other can be.
    """

    __slots__ = ("biases", "excluded", "logits", "model_logits", "negative_logits")

    def __init__(self, logits: Logits, negative_logits: Sequence[Logits]) -> None:
        self.logits = self.model_logits = logits
        self.negative_logits = negative_logits
        self.excluded: Collection[int] = ()
        self.biases: dict[int, float] = {}

    def add(self, token: int, bias: float) -> None:
        """Add to a token's logit, on top of what other constraints add."""
        self.biases[token] = self.biases.get(token, 0.0) + bias

    def ban(self, tokens: Iterable[int]) -> None:
        """Let these tokens be sampled only if no other can be."""
        self.biases |= dict.fromkeys(tokens, -math.inf)


class Constraint:
    """A logits processor that may also take tokens back. There is one for each alternative and feature.

    Only the engine's thread calls it. For each token it calls `before_sampling` of all constraints of an alternative,
    samples, and calls `after_sampling` of all, in the order of `srb.engine.constraints.builders.BUILDERS`.
    """

    may_roll_back = False
    """Whether it may take tokens back."""

    rollback_window = 0
    """How many of the last tokens it may still take back. They aren't reported before that is decided."""

    def before_step(self) -> None:
        """Prepare a step. What it learns of siblings here is the same for all of them."""

    def push_prompt(self, data: bytes) -> None:
        """Process the bytes of text that come before the first token."""

    def push_resumed(self, piece: bytes) -> None:
        """Process the bytes of a token that was reported before the request was interrupted."""

    def before_sampling(self, inputs: SamplingInput) -> None:
        """Change the input of the sampler. Raises `BackendError`."""

    def after_sampling(self, inputs: SamplingInput, token: int, piece: bytes, *, is_last: bool) -> int:
        """Process the token that was sampled. Raises `BackendError`.

        Returns:
            How many of the last tokens are taken back, this one included.
        """
        return 0

    def rolled_back(self) -> None:
        """Process a rollback: tokens of the alternative were taken back, by this or another constraint."""

    def stop_event(self, event: StopEvent) -> StopEvent:
        """Return the event of the alternative's end, with what this constraint adds to it."""
        return event


@dataclass(frozen=True, slots=True)
class ConstraintSetup:
    """A request whose prompts and sequences were just made, and have no constraints yet.

    Attributes:
        active: The request.
        backend: The model.
        asked: The tokens of each prompt, and the bytes that its first sampled token repeats (`Prompt.repeated`).
        resumed: What each alternative has already.
        stops: The stop strings, by their tuple.
    """

    active: ActiveRequest
    backend: Backend
    asked: list[tuple[tuple[int, ...], bytes]]
    resumed: tuple[Resumed, ...]
    stops: dict[tuple[str, ...], StopStrings]

    @property
    def request(self) -> CompletionRequest:
        """The request's fields."""
        return self.active.request
