"""Reads tensors and metadata of GGUF files without loading the model, and the sampling defaults in them."""

import ctypes
import logging
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from srb.engine.model import ModelInfo
from srb.engine.samplers import SAMPLERS
from srb.engine.sampling_params import SamplingParams
from srb.errors import InvalidRequestError, ModelLoadError
from srb.llama.model.model_file import files_of, find_model, fingerprint
from srb.llama.native import library as log
from srb.llama.native.library import function
from srb.llama.sampling.candidates import Floats
from srb.options.settings import Settings

logger = logging.getLogger("srb")

_F32 = 0  # ggml_type

_SAMPLING = "general.sampling."
_OTHER_NAMES = {"temp": "temperature", "penalty_last_n": "repeat_last_n", "penalty_repeat": "repeat_penalty"}
_KEYS = (
    *("top_k", "top_p", "min_p", "xtc_probability", "xtc_threshold", "mirostat", "mirostat_tau", "mirostat_eta"),
    *_OTHER_NAMES,
)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a model file, of at least one dimension. type: ggml's name of its type, in small letters."""

    name: str
    type: str
    type_number: int
    shape: tuple[int, ...]
    n_bytes: int

    @property
    def is_matrix(self) -> bool:
        """Whether conversions change this tensor. They leave tensors of one dimension as they are."""
        return len(self.shape) > 1


def read_tensors(path: Path) -> list[Tensor]:
    """Return the tensors of a GGUF file. Raises `ModelLoadError`."""
    with _opened(path) as gguf:
        return [_tensor(gguf, i) for i in range(_gguf_n_tensors(gguf))]


def read_metadata(path: Path, prefix: str = "") -> dict[str, Any]:
    """Return the keys of a GGUF file with this prefix, and their values: numbers, bools, texts, and lists of these.

    Raises `ModelLoadError`.
    """
    with _opened(path) as gguf:
        keys = (_gguf_key(gguf, i).decode(errors="replace") for i in range(_gguf_n_kv(gguf)))
        return {key: _value(gguf, i) for i, key in enumerate(keys) if key.startswith(prefix)}


def read_vectors(path: Path, called: str) -> dict[str, Floats | None]:
    """Return the tensors of a GGUF file that isn't a model. Tensors other than f32 vectors are None.

    Raises `ModelLoadError`.

    Args:
        called: the name of the file in error messages.
    """
    found: dict[str, Floats | None] = {}
    with _opened(path, called) as gguf:
        for i in range(_gguf_n_tensors(gguf)):
            tensor = _tensor(gguf, i)
            offset = _gguf_data_offset(gguf) + _gguf_offset(gguf, i)
            is_vector = tensor.type_number == _F32 and not tensor.is_matrix
            found[tensor.name] = np.fromfile(path, np.float32, tensor.shape[0], offset=offset) if is_vector else None
    return found


@contextmanager
def _opened(path: Path, called: str = "the model") -> Iterator[int]:
    with log.collected() as messages:
        gguf = _gguf_init(os.fsencode(path), _InitParams(True, None))
    if not gguf:
        raise ModelLoadError(f"{called} {path} can't be read: {messages.reason}")
    try:
        yield gguf
    finally:
        _gguf_free(gguf)


class _InitParams(ctypes.Structure):
    """`gguf_init_params`."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


_gguf_init = function("gguf_init_from_file", ctypes.c_void_p, ctypes.c_char_p, _InitParams)
_gguf_free = function("gguf_free", None, ctypes.c_void_p)
_gguf_n_tensors = function("gguf_get_n_tensors", ctypes.c_int64, ctypes.c_void_p)
_gguf_name = function("gguf_get_tensor_name", ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)
_gguf_type = function("gguf_get_tensor_type", ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_gguf_data_offset = function("gguf_get_data_offset", ctypes.c_size_t, ctypes.c_void_p)
_gguf_offset = function("gguf_get_tensor_offset", ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int64)
_gguf_size = function("gguf_get_tensor_size", ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int64)
_gguf_shape = function("gguf_get_tensor_ne", ctypes.POINTER(ctypes.c_int64), ctypes.c_void_p, ctypes.c_int64)
_gguf_n_kv = function("gguf_get_n_kv", ctypes.c_int64, ctypes.c_void_p)
_gguf_key = function("gguf_get_key", ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)
_gguf_kind = function("gguf_get_kv_type", ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_gguf_data = function("gguf_get_val_data", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_gguf_text = function("gguf_get_val_str", ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)
_gguf_list_kind = function("gguf_get_arr_type", ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_gguf_list_size = function("gguf_get_arr_n", ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int64)
_gguf_list = function("gguf_get_arr_data", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_gguf_list_text = function("gguf_get_arr_str", ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t)
_type_name = function("ggml_type_name", ctypes.c_char_p, ctypes.c_int)


_SMALL = (ctypes.c_uint8, ctypes.c_int8, ctypes.c_uint16, ctypes.c_int16, ctypes.c_uint32, ctypes.c_int32)
_NUMBERS: dict[int, Any] = dict(enumerate((*_SMALL, ctypes.c_float, ctypes.c_bool))) | dict(
    enumerate((ctypes.c_uint64, ctypes.c_int64, ctypes.c_double), 10)
)
_TEXT, _LIST = 8, 9  # gguf_type


def _value(gguf: int, i: int) -> Any:
    kind = _gguf_kind(gguf, i)
    if kind == _TEXT:
        return _gguf_text(gguf, i).decode(errors="replace")
    if kind != _LIST:
        return _NUMBERS[kind].from_address(_gguf_data(gguf, i)).value
    kind, size = _gguf_list_kind(gguf, i), _gguf_list_size(gguf, i)
    if kind == _TEXT:
        return [_gguf_list_text(gguf, i, k).decode(errors="replace") for k in range(size)]
    return list((_NUMBERS[kind] * size).from_address(_gguf_list(gguf, i))) if size else []


def _tensor(gguf: int, i: int) -> Tensor:
    shape = _gguf_shape(gguf, i)[:4]
    while len(shape) > 1 and shape[-1] == 1:
        shape.pop()
    number = _gguf_type(gguf, i)
    return Tensor(
        _gguf_name(gguf, i).decode(), _type_name(number).decode().lower(), number, tuple(shape), _gguf_size(gguf, i)
    )


def read_model_info(path: Path, gpu_layers: int = 0) -> ModelInfo:
    """Return what a model's file says about the model. Takes some tenths of a second for a large vocabulary.

    Args:
        gpu_layers: how many layers are on a GPU; negative: all.

    Raises `ModelLoadError` and `OSError`.
    """
    files = files_of(path)
    metadata = read_metadata(files[0])
    architecture = metadata["general.architecture"]
    pieces = metadata.get("tokenizer.ggml.tokens", [])
    special = {}
    for key, token in metadata.items():
        if (name := re.fullmatch(r"tokenizer\.ggml\.(\w+)_token_id", key)) and 0 <= token < len(pieces):
            special[name[1]] = (token, pieces[token])
    n_bytes = sum(file.stat().st_size for file in files)
    n_layers = metadata.get(f"{architecture}.block_count", 0) + 1  # the output counts as one
    return ModelInfo(
        name=metadata.get("general.name") or path.stem,
        architecture=architecture,
        n_bytes=n_bytes,
        n_params=sum(math.prod(tensor.shape) for file in files for tensor in read_tensors(file)),
        n_trained=metadata.get(f"{architecture}.context_length"),
        n_vocab=len(pieces),
        chat_template=metadata.get("tokenizer.chat_template"),
        special_tokens=special,
        metadata=metadata,
        digest=fingerprint(path),
        n_bytes_gpu=n_bytes if gpu_layers < 0 else n_bytes * min(gpu_layers, n_layers) // n_layers,
    )


def sampling_of(settings: Settings) -> dict[str, Any]:
    """Return the defaults of `SamplingParams` in the model's file: llama.cpp's keys `general.sampling.*`.

    The log lists them, and those that are ignored because their values are invalid. Raises `ModelLoadError`.
    """
    found: dict[str, Any] = {}
    for key, value in read_metadata(files_of(find_model(settings.model))[0], _SAMPLING).items():
        name = key.removeprefix(_SAMPLING)
        try:
            given = _as_field(name, value)
            SamplingParams(**given)
        except InvalidRequestError as error:
            logger.warning("the model's file has %s = %r, which is ignored: %s", key, value, error.message)
        else:
            found |= given
    if found:
        listed = ", ".join(f"{name} {value}" for name, value in found.items())
        logger.info("sampling defaults of the model's file: %s", listed)
    return found


def _as_field(name: str, value: Any) -> dict[str, Any]:
    """Return a key of the file, without its prefix, as a field of `SamplingParams`. Raises `InvalidRequestError`."""
    if name in _KEYS:
        # The file has floats of 32 bits; 0.6 is meant, not 0.6000000238418579.
        return {_OTHER_NAMES.get(name, name): float(f"{value:.7g}") if isinstance(value, float) else value}
    if name == "sequence":
        names = tuple(_OTHER_NAMES.get(each, each) for each in str(value).split(";"))
        if unknown := [each for each in names if each not in SAMPLERS]:
            raise InvalidRequestError(f"there is no sampler {unknown[0]!r}", param="samplers")
        return {"samplers": names}
    raise InvalidRequestError("srb doesn't know this key", param=name)
