"""llama.cpp's log, passed on to Python's."""

import ctypes
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import llama_cpp

logger = logging.getLogger("srb.llama")

# The ggml_log_level values. llama.cpp's "info" is what a developer of it wants to see: debug here.
_LEVELS = {2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}

# llama.cpp has one log callback per process, so this can't belong to an object.
_captured: deque[str] | None = None


def _log(level: int, text: bytes, _user_data: ctypes.c_void_p) -> None:
    line = text.decode(errors="replace").strip()
    severity = _LEVELS.get(level, logging.DEBUG)
    if not line.strip("."):
        return
    if _captured is not None and severity == logging.ERROR:
        _captured.append(line)
    else:
        logger.log(severity, "%s", line)


_callback = llama_cpp.llama_log_callback(_log)


def redirect() -> None:
    """Sends llama.cpp's log to the logger `srb.llama`."""
    llama_cpp.llama_log_set(_callback, ctypes.c_void_p(0))


@contextmanager
def captured_errors() -> Iterator[deque[str]]:
    """Collects the lines that llama.cpp logs as errors, oldest first, instead of logging them."""
    global _captured
    lines: deque[str] = deque(maxlen=20)
    _captured = lines
    try:
        yield lines
    finally:
        _captured = None
