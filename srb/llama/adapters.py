"""LoRA adapters: files beside the model. They are loaded with it, and set on a context before decodes that use them."""

import ctypes
import os
from pathlib import Path
from typing import Any

import llama_cpp

from srb.engine.prompts.adapters import Adapter, Lora
from srb.errors import ModelLoadError, SettingsError
from srb.llama.files.model_file import fingerprint
from srb.llama.native import log

Pointers = dict[str, Any]
"""llama.cpp's adapters, by their identities."""


def scaled_files(option: str, value: str | None) -> list[tuple[Path, float]]:
    """The files that an option names as `FILE[:SCALE],...`, with their scales. Without SCALE it is 1.

    Raises `SettingsError`.
    """
    found = []
    for each in value.split(",") if value else ():
        name, colon, scale = each.rpartition(":")
        try:
            path, number = (Path(name), float(scale)) if colon else (Path(each), 1.0)
        except ValueError:  # the colon is a part of the file's name
            path, number = Path(each), 1.0
        if not path.is_file():
            raise SettingsError(f"{option}: there is no file {path}; it takes FILE or FILE:SCALE, with commas between")
        found.append((path, number))
    return found


def load_adapters(model: Any, option: str | None) -> tuple[tuple[Adapter, ...], Pointers]:
    """The adapters of `--lora`, which live as long as the model. Raises `SettingsError` and `ModelLoadError`."""
    adapters: list[Adapter] = []
    pointers: Pointers = {}
    for path, scale in scaled_files("--lora", option):
        identity = fingerprint(path)[:16]
        if identity not in pointers:
            with log.collected() as complaints:
                pointer = llama_cpp.llama_adapter_lora_init(model, os.fsencode(path))
            if not pointer:
                raise ModelLoadError(f"--lora {path} can't be loaded: {complaints.reason}")
            complaints.log()
            if llama_cpp.llama_adapter_get_alora_n_invocation_tokens(pointer):
                raise ModelLoadError(
                    f"--lora {path} can't be used: it is for what comes only behind some tokens (aLoRA)"
                )
            pointers[identity] = pointer
        adapters.append(Adapter(path.stem, str(path), identity, scale))
    return tuple(adapters), pointers


def set_adapters(context: Any, pointers: Pointers, lora: Lora) -> None:
    """Makes the context evaluate its next batches with these adapters and no others."""
    n = len(lora)
    chosen = (llama_cpp.llama_adapter_lora_p_ctypes * n)(*(pointers[identity] for identity, _ in lora))
    scales = (ctypes.c_float * n)(*(scale for _, scale in lora))
    llama_cpp.llama_set_adapters_lora(context, chosen, n, scales)
