"""`ConstraintSetup`: a request as its rules see it when it comes."""

from dataclasses import dataclass

from srb.engine.backend import Backend
from srb.engine.output.detokenizer import StopStrings
from srb.engine.request import CompletionRequest, Resumed
from srb.engine.sequence import ActiveRequest


@dataclass(frozen=True, slots=True)
class ConstraintSetup:
    """A request whose prompts and sequences were just made, and have no rules yet.

    asked: the tokens of each prompt, and the bytes that its first drawn token repeats; see `Prompt.repeated`.
    resumed: what each alternative has already. stops: the stop strings, by their tuple.
    """

    active: ActiveRequest
    backend: Backend
    asked: list[tuple[tuple[int, ...], bytes]]
    resumed: tuple[Resumed, ...]
    stops: dict[tuple[str, ...], StopStrings]

    @property
    def request(self) -> CompletionRequest:
        """The request."""
        return self.active.request
