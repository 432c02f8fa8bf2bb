"""Loads a model from its file, and refuses models that srb can't run."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp

from srb.errors import ModelLoadError
from srb.llama.native import log
from srb.llama.native.params import model_params, overridden
from srb.options.settings import Settings

Progress = Callable[[float], bool]
"""Called with the fraction of the model that is loaded, from 0 to 1. If it returns False, the loading ends."""


def load_model(path: Path, settings: Settings, progress: Progress, *, vocab_only: bool = False) -> Any:
    """A `llama_model` that srb can run. vocab_only: only its vocabulary. Raises `ModelLoadError`."""
    params = model_params(settings)
    params.vocab_only = vocab_only
    params.progress_callback = on_progress = llama_cpp.llama_progress_callback(
        lambda fraction, _data: progress(fraction)
    )
    with log.collected() as complaints:
        model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    del on_progress
    if not model:
        raise ModelLoadError(f"the model {path} can't be loaded: {complaints.reason}")
    problem = None if vocab_only else _unheeded(settings, complaints)
    complaints.log()
    if problem:
        pass
    elif llama_cpp.llama_model_has_encoder(model) or not llama_cpp.llama_model_has_decoder(model):
        problem = "it isn't a decoder-only model, and srb runs no others"
    elif llama_cpp.llama_vocab_type(llama_cpp.llama_model_get_vocab(model)) == llama_cpp.LLAMA_VOCAB_TYPE_NONE:
        problem = "it has no vocabulary"
    if problem:
        llama_cpp.llama_model_free(model)
        raise ModelLoadError(f"the model {path} can't be used: {problem}")
    return model


def _unheeded(settings: Settings, complaints: log.Complaints) -> str | None:
    """Why an entry of `--override-kv` has no effect on this model. None if all have."""
    for key in overridden(settings):
        if not any("Using metadata override" in line and f"'{key}'" in line for line in complaints.told):
            wrong = [line for line in complaints.told if "Bad metadata override" in line and f"'{key}'" in line]
            expected = wrong[0].partition("expected ")[2] if wrong else ""
            return f"--override-kv {key}: " + (
                f"it is {expected}" if expected else "llama.cpp doesn't ask for this key"
            )
    return None
