"""Counts and sizes: what an engine has now, and what it has done."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from srb.engine.events import AbortReason
from srb.engine.kv_cache.state_store import StoreStats
from srb.engine.media import MediaReader

Measure = Literal["first_token", "next_token", "decode", "overhead"]
"""A time that is measured.

first_token: from a request's arrival to its first token. next_token: from a sequence's token to its next. decode: the
decode of a step. overhead: everything else in a step.
"""


@dataclass(slots=True)
class Totals:
    """What an engine has done since it was made; `EngineStats` documents each number."""

    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    prompt_tokens_evaluated: int = 0
    tokens_generated: int = 0
    prompt_seconds: float = 0.0
    predicted_seconds: float = 0.0
    forks: int = 0
    steps: int = 0
    rows: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    layout_changes: int = 0
    preemptions: int = 0
    swapped_bytes: int = 0
    swap_seconds: float = 0.0
    aborts: dict[AbortReason, int] = field(default_factory=dict)
    last_error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """What the engine has now, and what it has done since it was made.

    Attributes:
        sequences: alternatives, or beams of searches, that have cells now. If they are more than `max_sequences`, they
            take turns.
        cells: those in use now, of the `max_cells` of the present layout.
        cells_shared: how many of these belong to prompts that several alternatives continue.
        retained_bytes: the states that are cached in memory for later requests; at most `max_retained_bytes`.
        media_encoded: images and sounds, or parts of them, that were encoded for the model, since the start.
        disk_bytes: the files of `--cache-disk` now, of all servers and models that use it; at most `max_disk_bytes`.
        disk_reads, disk_bytes_read, disk_bytes_written: entries that were read, and bytes, since the start.
        disk_faults: entries that couldn't be read or written.
        prompt_tokens: the prompts' tokens of all requests that were admitted. Of these, prompt_tokens_cached came from
            other requests, and prompt_tokens_evaluated were computed.
        prompt_seconds, predicted_seconds: the time for computing prompts, and generated tokens.
        tokens_generated, forks, steps, rows (of sequences, in all steps), aborts (by reason): counted since the start.
        n_drafted, n_accepted: draft tokens that were computed, and how many of them were accepted.
        layout: how the cells are laid out now, unified or streams.
        n_preempted: alternatives that were preempted, and wait for cells now.
        layout_changes: changes of the layout, of its size, or of the kind of attention, since the start.
        preemptions: how often sequences were preempted, since the start.
        swapped_bytes, swap_seconds: the states that both have swapped out, and the time for swapping out and in.
        last_error: the message of the last decode that failed.
    """

    sequences: int
    max_sequences: int
    cells: int
    cells_shared: int
    max_cells: int
    retained_bytes: int
    max_retained_bytes: int
    media_encoded: int
    disk_bytes: int
    max_disk_bytes: int
    disk_reads: int
    disk_bytes_read: int
    disk_bytes_written: int
    disk_faults: int
    prompt_tokens: int
    prompt_tokens_cached: int
    prompt_tokens_evaluated: int
    tokens_generated: int
    prompt_seconds: float
    predicted_seconds: float
    forks: int
    steps: int
    rows: int
    n_drafted: int
    n_accepted: int
    layout: str
    n_preempted: int
    layout_changes: int
    preemptions: int
    swapped_bytes: int
    swap_seconds: float
    aborts: dict[AbortReason, int]
    last_error: str | None

    @classmethod
    def of(cls, totals: Totals, store: StoreStats, media: MediaReader | None, **sizes: Any) -> "EngineStats":
        """Returns the totals with the present sizes."""
        # This is made in each step. asdict would copy the value of each field, and take three times as long.
        done = {each.name: getattr(totals, each.name) for each in fields(totals)}
        stored = {each.name: getattr(store, each.name) for each in fields(store)}
        encoded = media.n_encoded if media else 0
        return cls(**done | {"aborts": dict(totals.aborts)}, media_encoded=encoded, **stored, **sizes)

    @classmethod
    def sum(cls, stats: "Sequence[EngineStats]") -> "EngineStats":
        """Returns the sums of several engines, at least one."""
        values: dict[str, Any] = {
            each.name: sum(getattr(one, each.name) for one in stats)
            for each in fields(cls)
            if each.name not in ("aborts", "last_error", "layout")
        }
        aborts: Counter[AbortReason] = Counter()
        for one in stats:
            aborts.update(one.aborts)
        last_error = next((one.last_error for one in stats if one.last_error), None)
        layout = " and ".join(dict.fromkeys(one.layout for one in stats))
        return cls(**values, layout=layout, aborts=dict(aborts), last_error=last_error)
