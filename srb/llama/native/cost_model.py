"""Predicts how long decodes take, with flash attention and without it.

`srb tune` measures the costs. Without measurements they are estimated from the model's size.

On a CPU, some work is faster without flash attention. `srb/llama/layouts.py` therefore compares both kinds of context.
A context can't change its kind, so a new one is made, which takes 0.1 s; the old one is freed first, because two would
take twice the memory. Each kind has the cache type that suits it: bf16 may be the fastest without flash attention, and
is slow with it. Saved states of the other kind are converted (`state.py`); a state that can't be converted is computed
again.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import llama_cpp

from srb.engine.backend import Costs
from srb.llama.native.params import is_on_gpu
from srb.options.settings import Settings

CONTEXT_SECONDS, SECONDS_PER_MIB = 0.02, 0.0005
"""The time to make a context: a constant, and a part per MiB of cells, because all pages are touched."""

FEW_ROWS = 4  # both kinds of attention have faster kernels for fewer rows than this

# The cells of other sequences in a unified cache (bench/kernels/layouts.py).
_MASKED_CELL_OF_ROW = 0.07  # with flash attention, skipping another sequence's cell takes this share of the time
_MASKED_CELL_OF_PROMPT = 0.45  # the same for a prompt token

# SmolLM2's measured times, divided by those that `estimated` gives.
_MEASURED_ROW_CELL = 0.77
_MEASURED_PROMPT_CELL = 0.43

# What one thread of a server processor with AVX2 or better does per second (bench/kernels/prefill_chunks.py).
_ROW_WEIGHTS = 1.3e10  # weights multiplied with a row
_PROMPT_WEIGHTS = 2e10
_ROW_CELLS = 1e10  # multiplications with numbers that cells hold
_PROMPT_CELLS = 2.5e10
_WEIGHT_BYTES = 1e10  # bytes of weights that all threads read together

_LONE_STEP = 0.7  # the time of a decode with one row, as a share of what a line through several rows predicts

_GPU_COSTS = Costs(step=0.005, row=1e-4, prompt_token=2e-4, row_cell=0.0, prompt_cell=0.0)
"""On a GPU, rows are nearly free. With these costs, prefill chunks fill whole batches."""


def estimated(model: Any, n_threads: int, *, is_on_gpu: bool) -> Costs:
    """Estimate the costs of a model from its size, within a factor of about 2."""
    if is_on_gpu:
        return _GPU_COSTS
    weights: int = llama_cpp.llama_model_n_params(model)
    cell: int = 4 * llama_cpp.llama_model_n_layer(model) * llama_cpp.llama_model_n_embd(model)
    step, row = llama_cpp.llama_model_size(model) / _WEIGHT_BYTES, weights / n_threads / _ROW_WEIGHTS
    return Costs(
        step=step,
        row=row,
        prompt_token=weights / n_threads / _PROMPT_WEIGHTS,
        row_cell=cell / n_threads / _ROW_CELLS,
        prompt_cell=cell / n_threads / _PROMPT_CELLS,
        in_turn=True,
        lone_step=_LONE_STEP * (step + row),
    )


def can_choose_attention(window: int | None, settings: Settings) -> bool:
    """Return whether contexts may change their kind: only on a CPU, and only if saved states can be converted."""
    return window is None and "q" not in str(settings.cache_type_v) and not is_on_gpu(settings)


@dataclass(frozen=True, slots=True)
class AttentionCosts(Costs):
    """The costs of contexts with flash attention, or without it, in seconds. They are those of a processor.

    Args:
        row_cell: of a row, per cell. With flash attention the cells of its own sequence count, without it all cells in
            use.
        lone_row_cell: `row_cell` in steps of fewer than `FEW_ROWS` rows, and in streams, where each row has cells of
            its own. A line through the steps of many rows would be far from this, and from `lone_step`.
        cache_type: of the keys and values. Empty: as in the settings.
    """

    in_turn: bool = True
    lone_row_cell: float = 0.0
    cache_type: str = ""

    def row_cells(self, n_rows: int, *, is_unified: bool) -> tuple[float, float]:
        """Return a row's seconds per cell of its own sequence, and per cell of others, in steps of `n_rows`."""
        is_lone = not is_unified or n_rows < FEW_ROWS
        cell = self.lone_row_cell if is_lone and self.lone_row_cell else self.row_cell
        return cell, cell * (1 if self.walks_all else _MASKED_CELL_OF_ROW) if is_unified else 0.0

    def prompt_cells(self, *, is_unified: bool) -> tuple[float, float]:
        """Return a prompt token's seconds per cell of its own sequence, and per cell of other sequences."""
        others = self.prompt_cell * (1 if self.walks_all else _MASKED_CELL_OF_PROMPT)
        return self.prompt_cell, others if is_unified else 0.0

    def in_streams(self) -> "AttentionCosts":
        """Return the costs of streams, in the form that the engine uses."""
        return dataclasses.replace(self, row_cell=self.lone_row_cell or self.row_cell, walks_all=False)


@dataclass(frozen=True, slots=True)
class CostModel:
    """The costs of both kinds of context.

    Args:
        on: with flash attention.
        off: without flash attention.
        preferred: the kind that suits most work, `auto` or `off`. The first context has this kind.
        seconds_per_mib: the time to make a context, per MiB of its cells.
    """

    on: AttentionCosts
    off: AttentionCosts
    preferred: str = "auto"
    seconds_per_mib: float = SECONDS_PER_MIB

    def of(self, flash_attn: str) -> AttentionCosts:
        """Return the costs of contexts with this `--flash-attn`: on, off or auto."""
        return self.off if flash_attn == "off" else self.on

    def with_any_cache_type(self) -> "CostModel":
        """Return the same costs for contexts with the cache types of the settings."""
        on, off = (dataclasses.replace(each, cache_type="") for each in (self.on, self.off))
        return dataclasses.replace(self, on=on, off=off)

    def scaled_to(self, estimated: Costs) -> "CostModel":
        """Return the costs of a model that wasn't measured: its estimated ones, and how the kinds differ here."""
        scale = _MEASURED_ROW_CELL * estimated.row_cell / self.on.row_cell if self.on.row_cell else 0.0

        def scaled(kind: AttentionCosts) -> AttentionCosts:
            return dataclasses.replace(
                kind,
                step=estimated.step,
                row=estimated.row,
                prompt_token=estimated.prompt_token + scale * max(0.0, kind.prompt_token - self.on.prompt_token),
                row_cell=scale * kind.row_cell,
                prompt_cell=_MEASURED_PROMPT_CELL * estimated.prompt_cell,
                in_turn=estimated.in_turn,
                lone_step=estimated.lone_step,
                lone_row_cell=scale * kind.lone_row_cell,
            )

        return dataclasses.replace(self, on=scaled(self.on), off=scaled(self.off))


DEFAULT_COST_MODEL = CostModel(
    on=AttentionCosts(step=0, row=0, prompt_token=0, row_cell=2.6e-6, prompt_cell=0, lone_row_cell=2.6e-6),
    off=AttentionCosts(
        step=0, row=0, prompt_token=0.325e-3, row_cell=1.3e-6, prompt_cell=0, walks_all=True, lone_row_cell=2.6e-6
    ),
)
"""How the two kinds differ on a CPU, for machines where nothing was measured.

The numbers are those of SmolLM2-135M with an f16 cache (docs/figures/benchmarks.md)."""
