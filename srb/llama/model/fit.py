"""Finds the sizes of a context that fit into the free memory, before the model is loaded.

Without this check, a model that doesn't fit may end the process without a message. llama.cpp is asked for the sizes: it
can make models and contexts that allocate nothing, and logs how much memory they would take. The pinned version fixes
the lines of that log. The size of the weights is that of the file's tensors. The check takes as long as reading the
vocabulary, so it is skipped if the model fits by far.
"""

import dataclasses
import os
import re
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import llama_cpp

from srb.errors import ModelLoadError
from srb.llama.draft import draft_layout, draft_settings
from srb.llama.layouts import CELLS_PER_ROW, first_layout
from srb.llama.model.metadata import Tensor, read_tensors
from srb.llama.model.model_file import files_of
from srb.llama.model.weights import available_memory
from srb.llama.native import library as log
from srb.llama.native.context import cells_bytes, window_of
from srb.llama.native.cost_model import can_choose_attention
from srb.llama.native.library import Device, devices
from srb.llama.native.params import (
    device_names,
    engine_params,
    is_on_gpu,
    model_params,
    tensor_placements,
    ubatch_size,
)
from srb.llama.tune.result import Choice
from srb.options.settings import Settings

PROMPT_OUTPUTS = 128  # smaller chunks take longer; from chunks of 64 tokens on, logits are the same to the last bit

_MAX_SEQS = 255  # llama.cpp has 256, and `Context` needs one to save and restore states

_MARGIN = 1 << 30
"""Bytes that `auto` leaves free, as llama-server does."""

_STEP = 256  # cells
_FEWEST = 4096
"""`--ctx-size auto` gives at least this many cells, if the model was trained for that many. If they don't fit on the
GPU, layers leave it before the number of cells goes lower."""

_LARGE_CELL, _LARGE_MODEL = 1 << 20, 1.5
"""Upper bounds for nearly all models: bytes per cell, and bytes of memory per byte of the model's files."""

_OUTPUT = "output.weight"

_BUFFERS = re.compile(r"(\S+) +(?:compute|output) buffer size = +([\d.]+) MiB")


def n_seqs(settings: Settings) -> int:
    """Return how many sequences the context has, without the one that saves and restores states."""
    if settings.reproducible:  # each takes memory: those that run, a prompt, and one for a negative prompt
        return min(settings.parallel + 2, _MAX_SEQS)
    # Each of the `parallel` sequences may need a second seq_id for its checkpoint, and two prompts have one each. For
    # example, an alternative with a negative prompt takes 6 on a model with a window: the alternative, its negative
    # sequence, their checkpoints, and both prompts. One more makes the total even, including the context's own: with
    # 131, llama.cpp lays its buffers out so that a step of 32 rows without flash attention takes 6 to 10 % longer than
    # with 130 or 132.
    return min(2 * settings.parallel + 3, _MAX_SEQS)


def max_cells(model: Any, settings: Settings, n_cells: int, cell_bytes: int, free: int) -> int:
    """Return how many cells the cache may have, in all layouts; at least `n_cells`.

    The cells, and the buffers for attention over them, take up to half of the free memory. On a GPU there are no more
    than `n_cells`, because its memory is planned for these.
    """
    if is_on_gpu(settings):
        return n_cells
    per_cell = cell_bytes
    if settings.flash_attn != "on":  # without it, each token of a ubatch takes a number per cell and head
        per_cell += 4 * ubatch_size(settings, "off") * int(llama_cpp.llama_model_n_head(model))
    affordable = free // 2 // per_cell
    return max(n_cells, min(settings.parallel * CELLS_PER_ROW, affordable) // 256 * 256)


def fitted(choice: Choice) -> Choice:
    """Return the choice with sizes that fit into the free memory. Raises `ModelLoadError` if given sizes don't fit."""
    settings = choice.settings
    try:
        settings = _fit(choice.weights, settings)
    except ModelLoadError:
        if settings.flash_attn != "auto":
            raise
        settings = _fit(choice.weights, dataclasses.replace(settings, flash_attn="on"))
        log.logger.info("flash attention is always on, because the model wouldn't fit without it")
    return dataclasses.replace(choice, settings=settings)


def _fit(path: Path, settings: Settings) -> Settings:
    """Replace `auto` in `ctx_size` and `n_gpu_layers` with numbers that fit into the free memory.

    Raises `ModelLoadError`.
    """
    draft = draft_settings(settings)
    draft_path = draft.model if draft else None
    if settings.fit == "off" or _is_plain(path, settings, draft_path):
        return settings
    with ExitStack() as stack:
        small = stack.enter_context(_DryRun(draft_path, draft, is_draft=True)) if draft and draft_path else None
        large = stack.enter_context(_DryRun(path, settings, small))
        return large.fit() if large.model else settings  # loading the model then says what is wrong with it


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The bytes that a model takes in one place: main memory or the GPUs. draft: all of the draft model."""

    weights: int = 0
    cells: int = 0
    buffers: int = 0
    projector: int = 0
    draft: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.cells + self.buffers + self.projector + self.draft


def cells_of(model: Any, settings: Settings) -> int:
    """Return the number of cells in the settings. `auto` is as many as the model was trained for."""
    return settings.ctx_size if settings.ctx_size > 0 else _trained_cells(model, settings)


def _trained_cells(model: Any, settings: Settings) -> int:
    """Return the cells of a text of the length that the model was trained for, or of `parallel` such texts."""
    n_tokens = int(llama_cpp.llama_model_n_ctx_train(model))
    return n_tokens * settings.parallel if settings.reproducible else n_tokens


def wanted_cells(model: Any, settings: Settings) -> int:
    """Return the number of cells in the settings, with a warning if the model was trained for fewer."""
    cells = cells_of(model, settings)
    if cells > _trained_cells(model, settings):
        log.logger.warning(
            "with --ctx-size %d texts may be longer than the %d tokens that the model was trained for, and get worse",
            cells,
            llama_cpp.llama_model_n_ctx_train(model),
        )
    return cells


def _is_plain(path: Path, settings: Settings, draft: Path | None) -> bool:
    """Return whether the models fit by far. Then the dry run is skipped, which takes some tenths of a second."""
    if settings.ctx_size <= 0:
        return False
    paths = [path, draft] if draft else [path]
    size = sum(file.stat().st_size for each in paths for file in files_of(each)) + _projector_bytes(settings)
    free = [available_memory(), *(gpu.free() - _MARGIN for gpu in gpus(settings))]
    return _LARGE_MODEL * size + len(paths) * settings.ctx_size * _LARGE_CELL < min(free)


def gpus(settings: Settings) -> list[Device]:
    """Return the GPUs that may hold layers."""
    if not is_on_gpu(settings):
        return []
    named = None if settings.device is None else device_names(settings.device)
    return [each for each in devices() if each.is_gpu and (named is None or each.name in named)]


def _projector_bytes(settings: Settings) -> int:
    """Return the size of the projector's file, which is nearly all weights; 0 without `--mmproj`."""
    # Its buffers aren't counted, because mtmd doesn't report their size before it has allocated them.
    return settings.mmproj.stat().st_size if settings.mmproj else 0


class _DryRun:
    """A model that is opened without allocating memory, and its draft model. model: None if it can't be loaded."""

    def __init__(
        self, path: Path, settings: Settings, draft: "_DryRun | None" = None, *, is_draft: bool = False
    ) -> None:
        self._path = path
        self._settings = settings
        self._is_draft = is_draft
        params = model_params(settings)
        params.no_alloc, params.load_mode = True, llama_cpp.LLAMA_LOAD_MODE_NONE
        with log.collected():
            self.model: Any = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
        self._draft = draft if draft and draft.model else None
        self._gpus = gpus(settings)
        self._placed = [(re.compile(pattern.decode()), buffer) for pattern, buffer in tensor_placements(settings)]
        self._measured: dict[int, tuple[int, ...]] = {}
        self._copied: list[Tensor] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.model:
            llama_cpp.llama_model_free(self.model)

    def fit(self) -> Settings:
        settings = self._settings
        self._read()
        if self._draft:
            self._draft._read()
        self._free_here = available_memory()
        free = [each.free() for each in self._gpus]
        self._free_there = sum(free) if all(free) else sys.maxsize
        cells = cells_of(self.model, settings)
        layers = self._n_layers + 1 if settings.n_gpu_layers < 0 else settings.n_gpu_layers
        layers = layers if self._gpus else 0
        if not self._measure(cells):
            return settings
        if settings.ctx_size < 0 and not self._fits(cells, layers, spare=True):
            fewest = min(_FEWEST, cells)
            cells = _most(lambda n: self._fits(n * _STEP, layers, spare=True), cells // _STEP) * _STEP
            cells = max(cells, fewest)
        if settings.n_gpu_layers == -1 and not self._fits(cells, layers, spare=True):
            layers = _most(lambda n: self._fits(cells, n, spare=True), layers)
        if not self._fits(cells, layers, spare=False):
            raise ModelLoadError(self._explanation(cells, layers))
        if settings.ctx_size < 0 or (settings.n_gpu_layers == -1 and self._gpus):
            log.logger.info("auto: --ctx-size %d%s", cells, f" --n-gpu-layers {layers}" if self._gpus else "")
        n_gpu_layers = layers if self._gpus else settings.n_gpu_layers
        return dataclasses.replace(settings, ctx_size=cells, n_gpu_layers=n_gpu_layers)

    def _read(self) -> None:
        self._tensors = [tensor for file in files_of(self._path) for tensor in read_tensors(file)]
        if all(tensor.name != _OUTPUT for tensor in self._tensors):
            # Such a model's output uses the weights of its input. A GPU that holds the output gets a copy of them.
            inputs = [each for each in self._tensors if each.name == "token_embd.weight"]
            self._copied = [dataclasses.replace(each, name=_OUTPUT) for each in inputs]
        self._trained = _trained_cells(self.model, self._settings)
        self._n_layers: int = int(llama_cpp.llama_model_n_layer(self.model))

    def _fits(self, cells: int, layers: int, *, spare: bool) -> bool:
        here, there = self._memory_use(cells, layers)
        cache = self._settings.cache_ram << 20
        spare_here, spare_there = (_MARGIN + cache, _MARGIN * len(self._gpus)) if spare else (0, 0)
        return here.total + spare_here <= self._free_here and there.total + spare_there <= self._free_there

    def _memory_use(self, cells: int, layers: int) -> tuple[MemoryUse, MemoryUse]:
        """Return what the model takes in main memory, and on the GPUs if these hold `layers`."""
        of_cells, buffers_here, buffers_there = self._measure(cells) or (0, 0, 0)
        first = self._n_layers + 1 - layers
        weights = [0, 0]
        for tensor in self._tensors:
            weights[self._is_there(tensor, first)] += tensor.n_bytes
        weights[True] += sum(tensor.n_bytes for tensor in self._copied if self._is_there(tensor, first))
        there = of_cells * min(self._n_layers, max(0, layers - 1)) // self._n_layers if self._settings.kv_offload else 0
        projector = _projector_bytes(self._settings)  # it is on the GPU if any layer is
        draft_here, draft_there = self._draft._total(cells, on_gpu=layers > 0) if self._draft else (0, 0)
        return (
            MemoryUse(weights[False], of_cells - there, buffers_here, 0 if layers else projector, draft_here),
            MemoryUse(weights[True], there, buffers_there, projector, draft_there) if layers else MemoryUse(),
        )

    def _total(self, cells: int, *, on_gpu: bool) -> tuple[int, int]:
        """Return the bytes that this draft model takes in both places if the large model has `cells`."""
        here, there = self._memory_use(min(cells, self._trained), self._n_layers + 1 if on_gpu else 0)
        return here.total, there.total

    def _is_there(self, tensor: Tensor, first: int) -> bool:
        """Return whether a tensor goes to a GPU. GPUs hold the layers from `first` on, the output as the last one."""
        number = re.match(r"blk\.(\d+)\.", tensor.name)
        layer = int(number[1]) if number else self._n_layers if tensor.name.startswith("output") else -1
        if layer < first:
            return False
        cpu = next(each for each in devices() if each.is_cpu).buffer_type[1]
        found = next((buffer for pattern, buffer in self._placed if pattern.search(tensor.name)), None)
        return found != cpu

    def _measure(self, cells: int) -> tuple[int, ...] | None:
        """Return the bytes of the cells, of buffers in main memory, and of buffers on GPUs.

        Returns None if llama.cpp can't make such a context.
        """
        # Even a context that allocates nothing allocates its list of cells, so larger sizes are extrapolated.
        if cells > self._trained >= 2 * _STEP:
            half, whole = self._measure(self._trained // 2), self._measure(self._trained)
            if not half or not whole:
                return None
            more = (cells - self._trained) / (self._trained - self._trained // 2)
            return tuple(int(b + more * (b - a)) for a, b in zip(half, whole, strict=True))
        if cells not in self._measured:
            with log.collected() as messages:
                context = llama_cpp.llama_init_from_model(self.model, self._context_params(cells))
            if not context:
                return None
            llama_cpp.llama_free(context)
            buffers = [0.0, 0.0]
            names = {each.name for each in self._gpus}
            for line in messages.lines:
                if found := _BUFFERS.search(line):
                    buffers[found[1] in names] += float(found[2])
            self._measured[cells] = cells_bytes(messages.lines), int(buffers[0] * 2**20), int(buffers[1] * 2**20)
        return self._measured[cells]

    def _context_params(self, cells: int) -> Any:
        settings = self._settings
        if self._is_draft:
            return engine_params(self.model, settings, draft_layout(settings, cells), n_outputs=settings.parallel)
        chooses = settings.flash_attn == "auto" and can_choose_attention(window_of(self.model), settings)
        flash_attn = "off" if chooses else settings.flash_attn  # takes more memory, and may be chosen later
        layout = first_layout(settings, cells, n_seqs(settings), flash_attn)
        return engine_params(self.model, settings, layout, n_outputs=settings.parallel + PROMPT_OUTPUTS)

    def _explanation(self, cells: int, layers: int) -> str:
        here, there = self._memory_use(cells, layers)
        parts = []
        for place, use, free in (("memory", here, self._free_here), ("the GPU's memory", there, self._free_there)):
            if use.total > free:
                projector = f"its projector {_mib(use.projector)}, " if use.projector else ""
                draft = f"its draft model {_mib(use.draft)}, " if use.draft else ""
                parts.append(
                    f"its weights take {_mib(use.weights)}, {projector}{draft}{cells:,} cells {_mib(use.cells)} "
                    f"and buffers {_mib(use.buffers)} of {place}, and {_mib(free)} are free"
                )
        options = []
        if most := _most(lambda n: self._fits(n * _STEP, layers, spare=False), cells // _STEP) * _STEP:
            options.append(f"--ctx-size {most} or less")
        if there.total > self._free_there:
            if most := _most(lambda n: self._fits(cells, n, spare=False), layers):
                options.append(f"--n-gpu-layers {most} or less")
            elif self._fits(cells, 0, spare=False):
                options.append("--n-gpu-layers 0")
        advice = (
            f". {' or '.join(options)} fits" if options else "; use a smaller model, or one with fewer bits per weight"
        )
        return f"the model {self._path} doesn't fit: {'; '.join(parts)}{advice}; --fit off loads it anyway"


def _most(fits: Callable[[int], bool], limit: int) -> int:
    """Return the largest number up to the limit for which `fits` is true; 0 if there is none."""
    low, high = 0, limit + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _mib(n_bytes: int) -> str:
    return f"{n_bytes >> 20:,} MiB"
