"""The interface of a constraint: what changes the draws of one alternative."""

from collections.abc import Collection, Sequence

from srb.engine.backend import Logits
from srb.engine.events import StopEvent


class SamplingInput:
    """One draw of an alternative, which its rules may change before it.

    logits: those that the sampler will see. model: those of the model, which are reported. beside: its companions'.
    excluded: tokens that aren't drawn, unless nothing else is left. biases: what is added to the logits of tokens;
    -inf: the token is drawn only if no other can be.
    """

    __slots__ = ("beside", "biases", "excluded", "logits", "model")

    def __init__(self, logits: Logits, beside: Sequence[Logits]) -> None:
        self.logits = self.model = logits
        self.beside = beside
        self.excluded: Collection[int] = ()
        self.biases: dict[int, float] = {}


class Constraint:
    """What changes the draws of one alternative. Only the engine's thread calls it, and its rules in their order."""

    goes_back = False
    """Whether it may take tokens back."""

    n_held = 0
    """How many of the last tokens it may still take back. They aren't told before that is decided."""

    def between_steps(self) -> None:
        """Called between two steps: what the rule then learns of siblings is the same for all of them."""

    def precede(self, data: bytes) -> None:
        """Takes the bytes of text that come before the first token."""

    def skip(self, piece: bytes) -> None:
        """Takes the bytes of a token that was told before the request was interrupted."""

    def before(self, draw: SamplingInput) -> None:
        """Changes the next draw. Raises `BackendError`."""

    def after(self, draw: SamplingInput, token: int, piece: bytes, *, is_last: bool) -> int:
        """Takes the token that was drawn; returns how many of the last tokens, this one included, are taken back.

        piece: the bytes that the token adds to the text. is_last: whether the text ends with it. Raises `BackendError`.
        """
        return 0

    def taken_back(self) -> None:
        """Called when tokens of the alternative were taken back, for whichever rule."""

    def ended(self, event: StopEvent) -> StopEvent:
        """The event of the alternative's end, with what there is to tell of this rule."""
        return event
