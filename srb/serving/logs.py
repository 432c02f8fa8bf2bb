"""The format of the log: lines in logfmt, and tracebacks without values.

Messages of exceptions quote prompts, texts and keys, so the log has none of them.
"""

import json
import logging
from traceback import TracebackException
from types import TracebackType

from srb.errors import SrbError


def logfmt(**fields: object) -> str:
    """Formats fields as `key=value`, without those that are None. Values that aren't a plain word are JSON strings."""
    return " ".join(f"{key}={_value(value)}" for key, value in fields.items() if value is not None)


def _value(value: object) -> str:
    text = f"{value:.1f}" if isinstance(value, float) else str(value)
    plain = text and text.isascii() and text.isprintable() and not set(text) & set(' "=\\')
    return text if plain else json.dumps(text)


_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def loggable(error: BaseException) -> str | None:
    """Returns the message of an error for the log; None if it may quote a request."""
    if isinstance(error, SrbError):
        return error.message if error.status >= 500 and error.type != "invalid_request_error" else None
    return error.strerror if isinstance(error, OSError) else None


class LogFormatter(logging.Formatter):
    """Formats lines with their time and level, and tracebacks with only the places and types of exceptions."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Formats a line with its traceback."""
        message = record.getMessage()
        if record.name == "asyncio":  # its further lines have the messages of exceptions
            message = message.partition("\n")[0]
        # Another handler may have left a traceback of its own in the record.
        changed = {"msg": message, "args": (), "exc_text": None}
        return super().format(logging.makeLogRecord(record.__dict__ | changed))

    def formatException(self, ei: _ExcInfo) -> str:  # noqa: N802  # it is logging's name
        """Formats a traceback."""
        if ei[1] is None:
            return ""
        lines: list[str] = []
        seen: BaseException | None = ei[1]
        while seen is not None:
            stack = "".join(TracebackException.from_exception(seen, compact=True, max_group_width=0).stack.format())
            message = loggable(seen)
            name = f"{type(seen).__name__}: {message}" if message else type(seen).__name__
            lines.insert(0, f"Traceback (most recent call last):\n{stack}{name}")
            seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
        return "\n\n".join(lines)
