"""What tensors a model file has, read without loading it."""

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from srb.errors import ModelLoadError
from srb.llama import log
from srb.llama.ggml import function


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of a model file.

    type, type_number: ggml's name of its type, in small letters, and its number. shape: of at least one dimension.
    """

    name: str
    type: str
    type_number: int
    shape: tuple[int, ...]
    n_bytes: int

    @property
    def is_matrix(self) -> bool:
        """Whether it is converted; what has one dimension stays as it is."""
        return len(self.shape) > 1


def read_tensors(path: Path) -> list[Tensor]:
    """The tensors of a GGUF file. Raises `ModelLoadError`."""
    with log.collected() as complaints:
        gguf = _gguf_init(os.fsencode(path), _InitParams(True, None))
    if not gguf:
        raise ModelLoadError(f"the model {path} can't be read: {complaints.reason}")
    try:
        return [_tensor(gguf, i) for i in range(_gguf_n_tensors(gguf))]
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
_gguf_size = function("gguf_get_tensor_size", ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int64)
_gguf_shape = function("gguf_get_tensor_ne", ctypes.POINTER(ctypes.c_int64), ctypes.c_void_p, ctypes.c_int64)
_type_name = function("ggml_type_name", ctypes.c_char_p, ctypes.c_int)


def _tensor(gguf: int, i: int) -> Tensor:
    shape = _gguf_shape(gguf, i)[:4]
    while len(shape) > 1 and shape[-1] == 1:
        shape.pop()
    number = _gguf_type(gguf, i)
    return Tensor(
        _gguf_name(gguf, i).decode(), _type_name(number).decode().lower(), number, tuple(shape), _gguf_size(gguf, i)
    )
