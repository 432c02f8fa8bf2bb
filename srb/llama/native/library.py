"""Calls into llama.cpp's libraries: its log, functions of ggml, CPU kernels, and devices."""

import ctypes
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import llama_cpp
import numpy as np
from llama_cpp import _ggml

from srb.errors import ModelLoadError

Result = TypeVar("Result")

logger = logging.getLogger("srb.llama")

# The ggml_log_level values. llama.cpp's "info" is for its own developers, so it becomes debug here.
_LEVELS = {2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}

_EXPECTED = (
    "using full-size SWA cache",  # srb asks for it, unless --no-swa-full is given: a warning would alarm people
    "possible training context overflow",  # srb itself warns of a large --ctx-size
)


class LogMessages:
    """What llama.cpp logged during one call, oldest first.

    Attributes:
        lines: all lines.
        warnings: the levels and texts of warnings and errors.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.warnings: list[tuple[int, str]] = []

    def log(self) -> None:
        """Write the warnings and errors to the log."""
        for severity, line in self.warnings:
            logger.log(severity, "%s", line)

    @property
    def reason(self) -> str:
        """The first error, without the name of the function that logged it."""
        errors = [line for severity, line in self.warnings if severity == logging.ERROR]
        return errors[0].split(": ", 1)[-1] if errors else "llama.cpp gave no reason"


# llama.cpp has one log callback per process, and logs in the thread that called it.
class _Thread(threading.local):
    collecting: LogMessages | None = None


_thread = _Thread()


def _log(level: int, text: bytes, _user_data: ctypes.c_void_p) -> None:
    line = text.decode(errors="replace").strip()
    severity = logging.DEBUG if any(each in line for each in _EXPECTED) else _LEVELS.get(level, logging.DEBUG)
    if not line.strip("."):  # a progress bar
        return
    messages = _thread.collecting
    if messages:
        messages.lines.append(line)
    if messages and severity >= logging.WARNING:
        messages.warnings.append((severity, line))
    else:
        logger.log(severity, "%s", line)


callback = llama_cpp.llama_log_callback(_log)
"""The function that llama.cpp calls with each line of its log."""


def redirect() -> None:
    """Send llama.cpp's log to the logger `srb.llama`."""
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))


@contextmanager
def collected() -> Iterator[LogMessages]:
    """Collect this thread's warnings and errors instead of logging them. The caller decides what they mean."""
    _thread.collecting = messages = LogMessages()
    try:
        yield messages
    finally:
        _thread.collecting = None


def function(name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of ggml that llama_cpp doesn't bind, with the ctypes of its result and arguments."""
    found = getattr(_ggml.libggml, name)
    found.restype, found.argtypes = result, arguments
    return found


def pointer_to(data: bytes | bytearray | memoryview) -> Any:
    """Return a pointer to bytes, for C."""
    return np.frombuffer(data, np.uint8).ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


NATIVE = "native"
"""The `cpu_variant` of a build for one kind of processor."""

_LOADED = re.compile(r"loaded CPU backend from .*libggml-cpu-(.+)\.so$")


@cache
def cpu_variant() -> str:
    """Load the kernels that suit this processor, unless libllama contains them, and return their name.

    A portable build has one library of kernels for each kind of processor, such as `haswell` and `zen4`. ggml loads the
    best one that runs here. It must be told where they are: it would search beside Python and in the working folder.
    Raises `ModelLoadError`.
    """
    folder = Path(llama_cpp.llama_cpp._base_path)
    variants = sorted(path.stem.removeprefix("libggml-cpu-") for path in folder.glob("libggml-cpu-*.so"))
    if not variants:
        return NATIVE
    redirect()
    with collected() as messages:
        _load_all(bytes(folder))
    found = [match[1] for line in messages.lines if (match := _LOADED.search(line))]
    if not found:
        raise ModelLoadError(
            f"this llama-cpp-python has kernels for {', '.join(variants)}, and this processor runs none of them; "
            "compile it for this machine: pip install --no-binary llama-cpp-python llama-cpp-python"
        )
    return found[0]


def build() -> str:
    """Return the version of llama-cpp-python, and the kernels of a portable build, which affect the last bits."""
    variant = cpu_variant()
    return str(llama_cpp.__version__) + ("" if variant == NATIVE else f" {variant}")


_load_all = function("ggml_backend_load_all_from_path", None, ctypes.c_char_p)
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
    """A device that ggml can compute on. address: that of its `ggml_backend_dev`."""

    address: int
    name: str
    kind: int

    @property
    def is_cpu(self) -> bool:
        """Whether the device is the processor, which is always used, so no option names it."""
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
        """Return how many bytes of the device's memory are free now; 0 if unknown."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        _memory(self.address, ctypes.byref(free), ctypes.byref(total))
        return free.value


def devices() -> list[Device]:
    """Return all devices that llama.cpp has found."""
    found = [_get(number) for number in range(_count())]
    return [Device(each, _name(each).decode(), _kind(each)) for each in found]
