"""The sizes of an engine's context: how many sequences and rows of logits it has, and the cells that fit."""

import dataclasses
from pathlib import Path
from typing import Any

import llama_cpp

from srb.errors import ModelLoadError
from srb.llama.draft import draft_sizes
from srb.llama.files.fit import fit
from srb.llama.layouts import CELLS_PER_ROW, first_layout
from srb.llama.native import log
from srb.llama.native.context import window_of
from srb.llama.native.flash_attn import can_choose
from srb.llama.native.params import engine_params, is_on_gpu
from srb.llama.tune.tuned import Choice
from srb.options.settings import Settings

_MAX_SEQS = 255  # llama.cpp has 256, and `Context` needs one to save and restore states
PROMPT_OUTPUTS = 128  # smaller pieces take longer; from pieces of 64 tokens on, logits are the same to the last bit


def n_seqs(settings: Settings) -> int:
    """How many sequences the context has, beside the one that saves and restores states."""
    if settings.reproducible:  # each takes memory: those that run, a prompt, and one for a negative prompt
        return min(settings.parallel + 2, _MAX_SEQS)
    # Each of the `parallel` sequences may need a second seq_id for its mark, and two prompts have one each. Example: an
    # alternative with a negative prompt, on a model that forgets, takes 6. These are the alternative, its companion,
    # their marks, and both prompts. One more makes an even number with the context's own: with 131, llama.cpp lays its
    # buffers out so that a step of 32 rows without flash attention takes 6 to 10 % longer than with 130 or 132.
    return min(2 * settings.parallel + 3, _MAX_SEQS)


def max_cells(model: Any, settings: Settings, n_cells: int, cell_bytes: int, free: int) -> int:
    """How many cells the cache may have, in all layouts.

    The cells, and the buffers in which rows attend to them, take up to half of the free memory. There are never fewer
    than `n_cells`. On a GPU there are no more either, because its memory is planned for these.
    """
    if is_on_gpu(settings):
        return n_cells
    # Without flash attention, each token of a ubatch has a number for each cell and each head.
    attention = 0 if settings.flash_attn == "on" else 4 * settings.ubatch_size * llama_cpp.llama_model_n_head(model)
    affordable: int = free // 2 // (cell_bytes + attention)
    return max(n_cells, min(settings.parallel * CELLS_PER_ROW, affordable) // 256 * 256)


def fitted(choice: Choice) -> Choice:
    """The choice, with sizes that fit into the free memory. Raises `ModelLoadError` if the given sizes don't fit."""
    settings = choice.settings
    try:
        settings = _fit(choice.weights, settings)
    except ModelLoadError:
        if settings.flash_attn != "auto":
            raise
        settings = _fit(choice.weights, dataclasses.replace(settings, flash_attn="on"))
        log.logger.info("flash attention is always on: without it the model wouldn't fit")
    return dataclasses.replace(choice, settings=settings)


def _fit(weights: Path, settings: Settings) -> Settings:
    def context_params(model: Any, n_cells: int) -> Any:
        chooses = settings.flash_attn == "auto" and can_choose(window_of(model), settings)
        flash_attn = "off" if chooses else settings.flash_attn  # takes more memory, and may be chosen later
        layout = first_layout(settings, n_cells, n_seqs(settings), flash_attn)
        return engine_params(model, settings, layout, n_outputs=settings.parallel + PROMPT_OUTPUTS)

    return fit(weights, settings, context_params, draft_sizes(settings))
