"""Control vectors: directions that are added to the outputs of a model's layers, for every token that it evaluates.

The files are those that llama.cpp's cvector-generator and repeng write: a GGUF with a vector `direction.N` for each
layer N from 1 on; layer 0 has none. Source: Zou et al. 2023, "Representation Engineering".
"""

import ctypes
import hashlib
import re
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from srb.errors import ModelLoadError
from srb.llama.adapters import scaled_files
from srb.llama.files.tensors import read_vectors
from srb.llama.sampling.logprobs import Floats


def load_control_vectors(model: Any, option: str | None) -> Floats | None:
    """The sum of the vectors of `--control-vector` times their scales, of shape (layers - 1, embedding).

    None if the option names no file. Raises `SettingsError` and `ModelLoadError`.
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
                    f"and the model has layers 1 to {n_layers - 1} for one; it is for another model"
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


def identity_of(vectors: Floats) -> str:
    """A name for these vectors. Equal vectors have equal names, whatever files they come from."""
    return hashlib.sha256(vectors.tobytes()).hexdigest()[:16]


def set_control_vectors(context: Any, vectors: Floats) -> None:
    """Makes a context add these vectors in every decode. llama.cpp copies them. Raises `ModelLoadError`."""
    n_layers, size = vectors.shape
    pointer = vectors.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    if llama_cpp.llama_set_adapter_cvec(context, pointer, vectors.size, size, 1, n_layers):
        raise ModelLoadError("llama.cpp can't set the vectors of --control-vector: there is no memory for them")
