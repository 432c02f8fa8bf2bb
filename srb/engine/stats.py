"""What an engine can tell about itself."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from srb.engine.events import AbortReason

Measure = Literal["first_token", "next_token", "decode", "overhead"]
"""What is measured: from a request's arrival to its first token, from a sequence's token to its next, the evaluation in
a step, and all else in a step."""


@dataclass(slots=True)
class Totals:
    """What an engine has done since it was made. `EngineStats` says what each number is."""

    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    prompt_tokens_evaluated: int = 0
    tokens_generated: int = 0
    prompt_seconds: float = 0.0
    predicted_seconds: float = 0.0
    forks: int = 0
    steps: int = 0
    rows: int = 0
    aborts: dict[AbortReason, int] = field(default_factory=dict)
    last_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """What the engine holds now, and what it has done since it was made.

    sequences: alternatives that hold cells now, of at most `max_sequences`.
    cells: leased now, of `max_cells`; cells_shared: of these, the prompts' that several alternatives continue.
    retained_bytes: kept of finished requests, of at most `max_retained_bytes`.
    prompt_tokens: of all requests that were admitted; prompt_tokens_cached of these were known from others, and
        prompt_tokens_evaluated were evaluated.
    prompt_seconds, predicted_seconds: for evaluating these, and the generated ones.
    tokens_generated, forks, steps, rows (of sequences, in all steps), aborts (by reason): counted since the start.
    last_error: the message of the last decode that failed.
    """

    sequences: int
    max_sequences: int
    cells: int
    cells_shared: int
    max_cells: int
    retained_bytes: int
    max_retained_bytes: int
    prompt_tokens: int
    prompt_tokens_cached: int
    prompt_tokens_evaluated: int
    tokens_generated: int
    prompt_seconds: float
    predicted_seconds: float
    forks: int
    steps: int
    rows: int
    aborts: dict[AbortReason, int]
    last_error: str | None

    @classmethod
    def of(cls, totals: Totals, **held: Any) -> "EngineStats":
        """The totals with what is held now."""
        return cls(**asdict(totals), **held)
