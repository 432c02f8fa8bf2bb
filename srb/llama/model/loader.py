"""Loads models, and refuses those that srb can't run."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp

from srb.engine.lora import Adapter
from srb.errors import ModelLoadError
from srb.llama.adapters import Pointers, load_adapters, load_control_vectors
from srb.llama.model.model_file import fingerprint
from srb.llama.native import library as log
from srb.llama.native.params import model_params, overridden_keys
from srb.llama.sampling.candidates import Floats
from srb.options.settings import Settings

Progress = Callable[[float], bool]
"""Called with the fraction of the model that is loaded, from 0 to 1. Loading ends if it returns False."""


def load_model(
    path: Path, settings: Settings, progress: Progress = lambda _fraction: True, *, vocab_only: bool = False
) -> Any:
    """Load a `llama_model`, or only its vocabulary. Raises `ModelLoadError`."""
    params = model_params(settings)
    params.vocab_only = vocab_only
    params.progress_callback = on_progress = llama_cpp.llama_progress_callback(
        lambda fraction, _data: progress(fraction)
    )
    with log.collected() as messages:
        model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    del on_progress
    if not model:
        raise ModelLoadError(f"the model {path} can't be loaded: {messages.reason}")
    problem = None if vocab_only else _ignored_override(settings, messages)
    messages.log()
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


def _ignored_override(settings: Settings, messages: log.LogMessages) -> str | None:
    """Return why an entry of `--override-kv` has no effect on this model; None if all have one."""
    for key in overridden_keys(settings):
        if not any("Using metadata override" in line and f"'{key}'" in line for line in messages.lines):
            wrong = [line for line in messages.lines if "Bad metadata override" in line and f"'{key}'" in line]
            expected = wrong[0].partition("expected ")[2] if wrong else ""
            return f"--override-kv {key}: " + (
                f"it is {expected}" if expected else "llama.cpp doesn't ask for this key"
            )
    return None


class LoadedModel:
    """A model's weights with its LoRA adapters and control vectors. They can be freed and loaded again.

    Raises `ModelLoadError`.

    Attributes:
        path: the file of the weights.
        pointer: the `llama_model`; None while it is freed.
        adapters: the LoRA adapters, and `adapter_pointers` those of llama.cpp by their identities.
        control_vectors: of shape (layers - 1, embedding); None without `--control-vector`.
    """

    def __init__(self, path: Path, settings: Settings, progress: Progress) -> None:
        self.path, self._settings = path, settings
        self.fingerprint = fingerprint(path)
        self.pointer = load_model(path, settings, progress)
        self.adapters: tuple[Adapter, ...] = ()
        self.adapter_pointers: Pointers = {}
        self.control_vectors: Floats | None = None

    def load_adapters(self) -> None:
        """Load the files of `--lora` and `--control-vector`. Raises `SettingsError` and `ModelLoadError`."""
        self.adapters, self.adapter_pointers = load_adapters(self.pointer, self._settings.lora)
        self.control_vectors = load_control_vectors(self.pointer, self._settings.control_vector)

    def free(self) -> None:
        """Free the model, and the adapters with it. May be called again."""
        model, self.pointer = self.pointer, None
        if model:
            llama_cpp.llama_model_free(model)

    def load_again(self) -> None:
        """Load the model, unless it is loaded. Raises `ModelLoadError`."""
        if self.pointer:
            return
        try:
            if not self.path.exists() or fingerprint(self.path) != self.fingerprint:
                raise ModelLoadError(f"the model {self.path} has changed while it was asleep; restart the server")
            self.pointer = load_model(self.path, self._settings)
            adapters, self.adapter_pointers = load_adapters(self.pointer, self._settings.lora)
            if adapters != self.adapters:
                raise ModelLoadError("a file of --lora has changed while the model was asleep; restart the server")
        except BaseException as error:
            self.free()  # so that the next call checks again
            if isinstance(error, OSError):
                raise ModelLoadError(f"the model {self.path} can't be read again: {error}") from None
            raise
