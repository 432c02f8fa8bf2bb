"""Passes llama.cpp's log on to Python's logging, or collects what it says during one call."""

import ctypes
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import llama_cpp

logger = logging.getLogger("srb.llama")

# The ggml_log_level values. llama.cpp's "info" is for its own developers, so it becomes debug here.
_LEVELS = {2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}

_EXPECTED = (
    "using full-size SWA cache",  # srb asks for it, unless --no-swa-full is given: a warning would alarm people
    "possible training context overflow",  # srb itself warns of a large --ctx-size
)


class Complaints:
    """The warnings and errors that llama.cpp logged during one call, oldest first.

    told: all lines, also those of lower levels.
    """

    def __init__(self) -> None:
        self._lines: list[tuple[int, str]] = []
        self.told: list[str] = []

    def add(self, severity: int, line: str) -> None:
        """Adds a line."""
        self._lines.append((severity, line))

    def log(self) -> None:
        """Writes the collected lines to the log after all."""
        for severity, line in self._lines:
            logger.log(severity, "%s", line)

    @property
    def reason(self) -> str:
        """What went wrong: the first error, without the name of the function that logged it."""
        errors = [line for severity, line in self._lines if severity == logging.ERROR]
        return errors[0].split(": ", 1)[-1] if errors else "llama.cpp gave no reason"


# llama.cpp has one log callback per process, so the collection can't belong to an object. It can belong to a thread,
# because llama.cpp logs in the thread that called it.
class _Thread(threading.local):
    collecting: Complaints | None = None


_thread = _Thread()


def _log(level: int, text: bytes, _user_data: ctypes.c_void_p) -> None:
    line = text.decode(errors="replace").strip()
    severity = logging.DEBUG if any(each in line for each in _EXPECTED) else _LEVELS.get(level, logging.DEBUG)
    if not line.strip("."):  # a progress bar
        return
    if _thread.collecting is not None:
        _thread.collecting.told.append(line)
    if _thread.collecting is not None and severity >= logging.WARNING:
        _thread.collecting.add(severity, line)
    else:
        logger.log(severity, "%s", line)


callback = llama_cpp.llama_log_callback(_log)
"""The function that llama.cpp calls with each line of its log."""


def redirect() -> None:
    """Sends llama.cpp's log to the logger `srb.llama`."""
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))


@contextmanager
def collected() -> Iterator[Complaints]:
    """Collects this thread's warnings and errors instead of logging them. The caller decides what they mean."""
    _thread.collecting = complaints = Complaints()
    try:
        yield complaints
    finally:
        _thread.collecting = None
