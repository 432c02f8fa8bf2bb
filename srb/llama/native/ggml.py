"""Functions of ggml that llama_cpp doesn't bind, and the devices that ggml computes on."""

import ctypes
from dataclasses import dataclass
from typing import Any

from llama_cpp import _ggml


def function(name: str, result: Any, *arguments: Any) -> Any:
    """A function of ggml, with the ctypes of its result and its arguments."""
    found = getattr(_ggml.libggml, name)
    found.restype, found.argtypes = result, arguments
    return found


_count = function("ggml_backend_dev_count", ctypes.c_size_t)
_get = function("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
_name = function("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
_kind = function("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
_memory = function(
    "ggml_backend_dev_memory",
    None,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_size_t),
    ctypes.POINTER(ctypes.c_size_t),
)
_buffer_type = function("ggml_backend_dev_buffer_type", ctypes.c_void_p, ctypes.c_void_p)
_buffer_name = function("ggml_backend_buft_name", ctypes.c_char_p, ctypes.c_void_p)

_CPU, _GPU, _IGPU = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Device:
    """A device that ggml can compute on. address: of its `ggml_backend_dev`."""

    address: int
    name: str
    kind: int

    @property
    def is_cpu(self) -> bool:
        """Whether the device is the processor itself. It is always there, so options don't choose it."""
        return self.kind == _CPU

    @property
    def is_gpu(self) -> bool:
        """Whether the device can hold layers."""
        return self.kind in (_GPU, _IGPU)

    @property
    def buffer_type(self) -> tuple[str, int]:
        """The name and the address of the `ggml_backend_buffer_type` for memory of this device."""
        address = _buffer_type(self.address)
        return _buffer_name(address).decode(), address

    def free(self) -> int:
        """How many bytes of the device's memory are free now; 0 if it doesn't tell."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        _memory(self.address, ctypes.byref(free), ctypes.byref(total))
        return free.value


def devices() -> list[Device]:
    """All devices that llama.cpp has found, of the kinds that it was built for."""
    found = [_get(number) for number in range(_count())]
    return [Device(each, _name(each).decode(), _kind(each)) for each in found]
