"""LoRA adapters and control vectors, which are loaded with a model and set on its contexts.

Control vectors are directions that are added to the outputs of a model's layers, for every token. Their files are those
of llama.cpp's cvector-generator and of repeng: a GGUF with a vector `direction.N` for each layer N from 1 on. Source:
Zou et al. 2023, "Representation Engineering".
"""

import ctypes
import hashlib
import os
import re
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from srb.engine.lora import Adapter, Lora
from srb.errors import ModelLoadError, SettingsError
from srb.llama.model.metadata import read_vectors
from srb.llama.model.model_file import fingerprint
from srb.llama.native import library as log
from srb.llama.sampling.candidates import Floats

Pointers = dict[str, Any]
"""llama.cpp's LoRA adapters, by their identities."""


def load_control_vectors(model: Any, option: str | None) -> Floats | None:
    """Load the vectors of `--control-vector`.

    Returns the sum of the vectors times their scales, of shape (layers - 1, embedding); None if the option names no
    file. Raises `SettingsError` and `ModelLoadError`.
    """
    files = scaled_files("--control-vector", option)
    if not files:
        return None
    n_layers, size = llama_cpp.llama_model_n_layer(model), llama_cpp.llama_model_n_embd(model)
    total = np.zeros((n_layers - 1, size), np.float32)
    for path, scale in files:
        for layer, direction in _directions(path, size).items():
            if layer >= n_layers:
                raise ModelLoadError(
                    f"--control-vector {path} can't be used: it has a direction for layer {layer}, "
                    f"and this model takes directions for layers 1 to {n_layers - 1}; it is for another model"
                )
            total[layer - 1] += np.float32(scale) * direction
    return total


def _directions(path: Path, size: int) -> dict[int, Floats]:
    found = {}
    for name, vector in read_vectors(path, "--control-vector").items():
        numbered = re.fullmatch(r"direction\.([1-9]\d{0,5})", name)
        if not numbered:
            raise ModelLoadError(
                f"--control-vector {path} can't be used: it has a tensor {name!r:.60}, where direction.1 and so on "
                "are expected; it isn't a control vector"
            )
        if vector is None or vector.shape != (size,):
            raise ModelLoadError(
                f"--control-vector {path} can't be used: {name} isn't {size} numbers of type f32, as the model needs; "
                "it is for another model"
            )
        found[int(numbered[1])] = vector
    return found


def vectors_identity(vectors: Floats) -> str:
    """Return a hash of these vectors."""
    return hashlib.sha256(vectors.tobytes()).hexdigest()[:16]


def set_control_vectors(context: Any, vectors: Floats) -> None:
    """Make a context add these vectors in every decode. llama.cpp copies them. Raises `ModelLoadError`."""
    n_layers, size = vectors.shape
    pointer = vectors.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    if llama_cpp.llama_set_adapter_cvec(context, pointer, vectors.size, size, 1, n_layers):
        raise ModelLoadError("llama.cpp has no memory for the vectors of --control-vector")


def scaled_files(option: str, value: str | None) -> list[tuple[Path, float]]:
    """Return the files that an option names as `FILE[:SCALE],...`, with their scales. The default scale is 1.

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
            raise SettingsError(f"{option}: there is no file {path}; it takes FILE or FILE:SCALE, separated by commas")
        found.append((path, number))
    return found


def load_adapters(model: Any, option: str | None) -> tuple[tuple[Adapter, ...], Pointers]:
    """Load the adapters of `--lora`, which are freed with the model. Raises `SettingsError` and `ModelLoadError`."""
    adapters: list[Adapter] = []
    pointers: Pointers = {}
    for path, scale in scaled_files("--lora", option):
        identity = fingerprint(path)[:16]
        if identity not in pointers:
            with log.collected() as messages:
                pointer = llama_cpp.llama_adapter_lora_init(model, os.fsencode(path))
            if not pointer:
                raise ModelLoadError(f"--lora {path} can't be loaded: {messages.reason}")
            messages.log()
            if llama_cpp.llama_adapter_get_alora_n_invocation_tokens(pointer):
                raise ModelLoadError(f"--lora {path} can't be used: it applies only after certain tokens (aLoRA)")
            pointers[identity] = pointer
        adapters.append(Adapter(path.stem, str(path), identity, scale))
    return tuple(adapters), pointers


def set_adapters(context: Any, pointers: Pointers, lora: Lora) -> None:
    """Make a context decode its next batches with these adapters and no others."""
    n = len(lora)
    chosen = (llama_cpp.llama_adapter_lora_p_ctypes * n)(*(pointers[identity] for identity, _ in lora))
    scales = (ctypes.c_float * n)(*(scale for _, scale in lora))
    llama_cpp.llama_set_adapters_lora(context, chosen, n, scales)
