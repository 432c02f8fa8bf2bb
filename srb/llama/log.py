"""llama.cpp's log, passed on to Python's."""

import ctypes
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import llama_cpp

logger = logging.getLogger("srb.llama")

# The ggml_log_level values. llama.cpp's "info" is what a developer of it wants to see: debug here.
_LEVELS = {2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}


class Complaints:
    """The warnings and errors that llama.cpp logged during one call, oldest first.

    told: all lines, those that were no complaints, too.
    """

    def __init__(self) -> None:
        self._lines: list[tuple[int, str]] = []
        self.told: list[str] = []

    def add(self, severity: int, line: str) -> None:
        """Takes a line."""
        self._lines.append((severity, line))

    def log(self) -> None:
        """Passes them on to the log after all."""
        for severity, line in self._lines:
            logger.log(severity, "%s", line)

    @property
    def reason(self) -> str:
        """What went wrong: the first error, without the name of the function that logged it."""
        errors = [line for severity, line in self._lines if severity == logging.ERROR]
        return errors[0].split(": ", 1)[-1] if errors else "llama.cpp gave no reason"


# llama.cpp has one log callback per process, so this can't belong to an object. It logs in the thread that called it.
class _Thread(threading.local):
    collecting: Complaints | None = None


_thread = _Thread()


def _log(level: int, text: bytes, _user_data: ctypes.c_void_p) -> None:
    line = text.decode(errors="replace").strip()
    severity = _LEVELS.get(level, logging.DEBUG)
    if not line.strip("."):  # a progress bar
        return
    if _thread.collecting is not None:
        _thread.collecting.told.append(line)
    if _thread.collecting is not None and severity >= logging.WARNING:
        _thread.collecting.add(severity, line)
    else:
        logger.log(severity, "%s", line)


callback = llama_cpp.llama_log_callback(_log)
"""What takes a line of llama.cpp's log."""


def redirect() -> None:
    """Sends llama.cpp's log to the logger `srb.llama`."""
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))


@contextmanager
def collected() -> Iterator[Complaints]:
    """Collects this thread's warnings and errors instead of logging them; the caller knows what they mean."""
    _thread.collecting = complaints = Complaints()
    try:
        yield complaints
    finally:
        _thread.collecting = None
