"""What a caller asks: `SamplingParams` for each alternative, `CompletionRequest` for all of them.

Values are checked here, once, for the library and for every wire format, before C can see them.
"""

import dataclasses
import math
import secrets
import uuid
from dataclasses import dataclass, field

from srb.errors import InvalidRequestError

MAX_SEED = 2**32 - 1
MAX_STOP_STRINGS = 64
MAX_STOP_CHARS = 1_000

RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_k": (-1, 2**31 - 1),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "max_tokens": (-1, 2**31 - 1),
    "seed": (-1, MAX_SEED),
}
"""The lowest and the highest value of each number in `SamplingParams`, both allowed."""


def new_request_id() -> str:
    """A fresh `cmpl-...` id."""
    return f"cmpl-{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one alternative is drawn, and when it ends. The defaults are llama-server's.

    temperature: 0 always takes the likeliest token; higher is wilder.
    top_k: draw from the k likeliest tokens; 0 or -1: off.
    top_p: draw from the smallest set of tokens whose probabilities add up to p; 1: off.
    min_p: drop tokens less likely than min_p times the likeliest; 0: off.
    seed: of this alternative's own random stream; -1: drawn when the request is made.
    max_tokens: how many tokens may be generated. None: the engine's default, or less where the context
        has less room. -1: as many as the context has room for, shared between the alternatives.
        0: the prompt is evaluated and nothing is generated.
    stop: strings that end the alternative; they don't show in its text.
    ignore_eos: never draw an end-of-generation token.
    label: a name for this alternative; it comes back in `StartEvent`.

    Raises `InvalidRequestError` for a value out of range.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    seed: int = -1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    label: str | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and low <= value <= high):
                raise InvalidRequestError(f"{name} must be from {low:g} to {high:.10g}, got {value:.10g}", param=name)
        if len(self.stop) > MAX_STOP_STRINGS:
            raise InvalidRequestError(
                f"stop takes at most {MAX_STOP_STRINGS} strings, got {len(self.stop)}", param="stop"
            )
        for text in self.stop:
            if not 1 <= len(text) <= MAX_STOP_CHARS:
                raise InvalidRequestError(
                    f"stop strings must have 1 to {MAX_STOP_CHARS} characters, got {len(text)}", param="stop"
                )

    def with_seed(self) -> "SamplingParams":
        """Itself, with a drawn seed where it is -1."""
        return self if self.seed >= 0 else dataclasses.replace(self, seed=secrets.randbelow(MAX_SEED + 1))

    def alternatives(self, n: int) -> tuple["SamplingParams", ...]:
        """n copies with the seeds seed, seed + 1, ... (mod 2^32), from a drawn seed where it is -1."""
        first = self.with_seed().seed
        return tuple(dataclasses.replace(self, seed=(first + k) % (MAX_SEED + 1)) for k in range(n))


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """One or more prompts, each continued once for every branch.

    prompts: the token ids of each prompt; `Engine.tokenize` makes them from text.
    branches: the parameters of each alternative; `SamplingParams.alternatives` makes n of one kind. A seed of -1 is
        drawn here.
    id: unique among the requests of an engine.

    The alternative number k of prompt number p has the index p * len(branches) + k.
    """

    prompts: tuple[tuple[int, ...], ...]
    branches: tuple[SamplingParams, ...]
    id: str = field(default_factory=new_request_id)

    def __post_init__(self) -> None:
        if not self.branches:
            raise InvalidRequestError("n must be at least 1, got 0", param="n")
        if not self.prompts:
            raise InvalidRequestError("prompt must not be an empty list", param="prompt")
        if not all(self.prompts):
            raise InvalidRequestError("prompt must have at least one token", param="prompt")
        object.__setattr__(self, "branches", tuple(params.with_seed() for params in self.branches))

    @property
    def count(self) -> int:
        """How many alternatives there are in all."""
        return len(self.prompts) * len(self.branches)

    @property
    def prompt_tokens(self) -> int:
        """The length of all prompts together, in tokens."""
        return sum(map(len, self.prompts))
