"""The sizes of an engine's context: how many sequences and rows of logits it has, and the cells that fit."""

import dataclasses
from pathlib import Path
from typing import Any

from srb.errors import ModelLoadError
from srb.llama.draft import draft_sizes
from srb.llama.files.fit import fit
from srb.llama.native import log
from srb.llama.native.context import window_of
from srb.llama.native.flash_attn import can_choose
from srb.llama.native.params import engine_params
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
        return engine_params(
            model,
            settings,
            flash_attn="off" if chooses else settings.flash_attn,  # takes more memory, and may be chosen later
            n_cells=n_cells,
            n_seqs=n_seqs(settings),
            n_outputs=settings.parallel + PROMPT_OUTPUTS,
        )

    return fit(weights, settings, context_params, draft_sizes(settings))
