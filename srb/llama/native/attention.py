"""Decides when to turn flash attention off on a CPU, by comparing how long the work takes with it and without it.

`srb/llama/layouts.py` asks for the choice when a request finds the engine idle. A context can't change, so it is made
anew, which takes 0.1 s; two at once would double the memory. Each kind has the type of keys and values that suits it:
bf16 may be the fastest without flash attention, and is slow with it. Saved states of the other kind are converted
(`state.py`); what isn't understood there is evaluated again.
"""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import llama_cpp

from srb.engine.backend import NEVER, Costs
from srb.llama.native.params import is_on_gpu
from srb.options.settings import Settings

# Estimates how long decodes take, for models that `srb tune` hasn't measured.

# What one thread of a server processor with AVX2 or better does in a second: bench/kernels/pieces.py on two of them.
_WEIGHTS_OF_ROWS = 1.3e10  # weights multiplied with a row
_WEIGHTS_OF_PROMPTS = 2e10
_CELLS_OF_ROWS = 1e10  # multiplications with numbers that cells hold
_CELLS_OF_PROMPTS = 2.5e10
_BYTES = 1e10  # bytes of weights that all threads read together

_LONE = 0.7  # a decode with one row takes so much of what a line through the times of several rows says

_APART = 64  # from so many rows on, llama.cpp's flash attention takes them through the cells together

_ON_A_GPU = Costs(step=0.005, row=1e-4, prompt_token=2e-4, row_cell=0.0, prompt_cell=0.0, apart=NEVER)
"""On a GPU, rows are nearly free. These costs make pieces that fill whole batches."""


def estimated(model: Any, n_threads: int, *, is_on_gpu: bool) -> Costs:
    """The costs of a model, by its size: a guess that is right within a factor of about 2. `srb tune` measures them."""
    if is_on_gpu:
        return _ON_A_GPU
    weights: int = llama_cpp.llama_model_n_params(model)
    cell: int = 4 * llama_cpp.llama_model_n_layer(model) * llama_cpp.llama_model_n_embd(model)
    step, row = llama_cpp.llama_model_size(model) / _BYTES, weights / n_threads / _WEIGHTS_OF_ROWS
    return Costs(
        step=step,
        row=row,
        prompt_token=weights / n_threads / _WEIGHTS_OF_PROMPTS,
        row_cell=cell / n_threads / _CELLS_OF_ROWS,
        prompt_cell=cell / n_threads / _CELLS_OF_PROMPTS,
        apart=_APART,
        lone_step=_LONE * (step + row),
    )


Work = Collection[tuple[int, int, int]]
"""Prompts: the tokens of each, how many sequences continue it, and how many tokens these may generate."""

# How streams compare with a unified cache where that wasn't measured (bench/kernels/layouts.py).
_ALONE = 4.75  # without flash attention, a row's cells cost this many times as much if no other row has them
_MASKED_BY_ROWS = 0.07  # with flash attention, a row that skips a cell of others takes this share of the time
_MASKED_BY_PROMPTS = 0.45  # the same for a token of a prompt

# How SmolLM2's measured times compare with those that `costs.estimated` gives.
_OF_ESTIMATED_ROW = 0.77
_OF_ESTIMATED_PROMPT = 0.43

ANY_CONTEXT, MAKING = 0.02, 0.0005
"""The seconds that it takes to make a context, and more of them for each MiB of cells: all pages are touched."""

FEW = 4  # with fewer rows of one prompt than this, both kinds of attention have a faster way to compute


def can_choose(window: int | None, settings: Settings) -> bool:
    """Whether the context may change its kind: only on a CPU, and only if saved states can be laid out anew for it."""
    return window is None and "q" not in str(settings.cache_type_v) and not is_on_gpu(settings)


@dataclass(frozen=True, slots=True)
class Pace(Costs):
    """The costs of one kind of context, with flash attention or without it, in seconds.

    row_cell: of a row, for each cell: with flash attention the cells of its own sequence, without it all cells in use.
    lone_row_cell: the row_cell of prompts that fewer than `FEW` rows continue. A line through the steps of many rows
        would be far from this, and from `lone_step`.
    cache_type: of the keys and values of such a context. Empty: as in the settings.
    stream_row_cell, stream_prompt_cell: the same as `row_cell` and `prompt_cell` in streams, for the cells of the own
        sequence; 0: they weren't measured.
    """

    lone_row_cell: float = 0.0
    cache_type: str = ""
    stream_row_cell: float = 0.0
    stream_prompt_cell: float = 0.0

    def row_cells(self, *, is_unified: bool) -> tuple[float, float]:
        """The seconds of a row for each cell of its own sequence, and for each cell of others."""
        if is_unified:
            return self.row_cell, self.row_cell * (1 if self.walks_all else _MASKED_BY_ROWS)
        return self.stream_row_cell or self.row_cell * (_ALONE if self.walks_all else 1), 0.0

    def prompt_cells(self, *, is_unified: bool) -> tuple[float, float]:
        """The seconds of a prompt's token for each cell of its own sequence, and for each cell of others."""
        if is_unified:
            return self.prompt_cell, self.prompt_cell * (1 if self.walks_all else _MASKED_BY_PROMPTS)
        return self.stream_prompt_cell or self.prompt_cell, 0.0

    def in_streams(self) -> "Pace":
        """The costs of streams, in the form that the engine uses."""
        row_cell, prompt_cell = self.row_cells(is_unified=False)[0], self.prompt_cells(is_unified=False)[0]
        return dataclasses.replace(self, row_cell=row_cell, prompt_cell=prompt_cell, walks_all=False, apart=1)

    def seconds(self, work: Work) -> float:
        """How long prompts and the sequences that continue them take."""
        in_use = sum(tokens + n * length // 2 for tokens, n, length in work)
        return sum(
            tokens * (self.prompt_token + tokens / 2 * self.prompt_cell)
            + length * self._step(n, in_use if self.walks_all else tokens + length / 2)
            for tokens, n, length in work
        )

    def _step(self, n: int, cells: float) -> float:
        """The seconds of a step of n rows, each of which walks so many cells."""
        if n < FEW:
            return self.lone_step + (n - 1) * self.row + n * cells * self.lone_row_cell
        return self.step + n * (self.row + cells * self.row_cell)


@dataclass(frozen=True, slots=True)
class Paces:
    """The costs of both kinds of context: with flash attention (`on`), and without it (`off`).

    change: how many seconds it takes to change from one kind to the other and back.
    usual: the kind that suits most work, `auto` or `off`. The context has this kind unless a change saves time.
    making: how many seconds it takes to make a context, for each MiB of its cells.
    """

    on: Pace
    off: Pace
    change: float
    usual: str = "auto"
    making: float = MAKING

    def of(self, flash_attn: str) -> Pace:
        """The costs of a context with this kind of attention: on, off or auto."""
        return self.off if flash_attn == "off" else self.on

    def of_any_cache(self) -> "Paces":
        """The same costs, for contexts whose types of keys and values are those of the settings."""
        on, off = (dataclasses.replace(each, cache_type="") for each in (self.on, self.off))
        return dataclasses.replace(self, on=on, off=off)

    def with_streams(self) -> "Paces":
        """The same costs. If those of streams weren't measured, a row alone costs as much in both kinds of context."""
        if self.off.stream_row_cell or not self.on.row_cell:
            return self
        return dataclasses.replace(self, off=dataclasses.replace(self.off, stream_row_cell=self.on.row_cell))

    def of_model(self, estimated: Costs) -> "Paces":
        """The costs of a model that wasn't measured. These costs only say how the kinds of attention differ."""
        both = Pace(
            step=estimated.step,
            row=estimated.row,
            prompt_token=estimated.prompt_token,
            row_cell=_OF_ESTIMATED_ROW * estimated.row_cell,
            prompt_cell=_OF_ESTIMATED_PROMPT * estimated.prompt_cell,
            lone_step=estimated.lone_step,
        )
        row_cell = both.row_cell * self.off.row_cell / self.on.row_cell if self.on.row_cell else both.row_cell
        off = dataclasses.replace(both, row_cell=row_cell, stream_row_cell=both.row_cell, walks_all=True)
        return dataclasses.replace(self, on=both, off=off)

    def best(self, work: Work) -> str:
        """`auto` or `off`: the kind that takes less time for all of the work, including a change."""
        seconds = {"auto": self.on.seconds(work), "off": self.off.seconds(work)}
        return min(seconds, key=lambda kind: seconds[kind] + (self.change if kind != self.usual else 0))


def _differences(row_cell: float, prompt_token: float, *, walks_all: bool) -> Pace:
    return Pace(step=0, row=0, prompt_token=prompt_token, row_cell=row_cell, prompt_cell=0, walks_all=walks_all)


MEASURED = Paces(_differences(2.6e-6, 0, walks_all=False), _differences(1.3e-6, 0.325e-3, walks_all=True), 0.26)
"""How the two kinds differ on a CPU, for machines where nothing was measured.

The numbers are those of SmolLM2-135M with an f16 cache (docs/figures/older.md)."""
