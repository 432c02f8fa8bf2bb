"""How the log's lines look. Tracebacks have no values, because messages of exceptions quote prompts, texts and keys."""

import json
import logging
from traceback import TracebackException
from types import TracebackType

from srb.errors import SrbError

# The log line of a request, in logfmt: `key=value` with spaces between. Programs can read it. It has no texts.


def logfmt(**fields: object) -> str:
    """The fields in their order, without those that are None. A value that isn't one plain word is a JSON string."""
    return " ".join(f"{key}={_value(value)}" for key, value in fields.items() if value is not None)


def _value(value: object) -> str:
    text = f"{value:.1f}" if isinstance(value, float) else str(value)
    plain = text and text.isascii() and text.isprintable() and not set(text) & set(' "=\\')
    return text if plain else json.dumps(text)


_Raised = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def loggable(error: BaseException) -> str | None:
    """What the log may have of an error's message; None: nothing, because it may quote what somebody has sent."""
    if isinstance(error, SrbError):
        return error.message if error.status >= 500 and error.type != "invalid_request_error" else None
    return error.strerror if isinstance(error, OSError) else None


class LogFormatter(logging.Formatter):
    """Formats lines with their time and level, and tracebacks with the places and types of exceptions alone."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """A line, and the traceback that belongs to it."""
        message = record.getMessage()
        if record.name == "asyncio":  # its further lines show the tasks, and what these have raised
            message = message.partition("\n")[0]
        # Another handler may have left a traceback of its own in the record.
        changed = {"msg": message, "args": (), "exc_text": None}
        return super().format(logging.makeLogRecord(record.__dict__ | changed))

    def formatException(self, ei: _Raised) -> str:  # noqa: N802  # it is logging's name
        """A traceback."""
        if ei[1] is None:
            return ""
        lines: list[str] = []
        seen: BaseException | None = ei[1]
        while seen is not None:
            stack = "".join(TracebackException.from_exception(seen, compact=True, max_group_width=0).stack.format())
            said = loggable(seen)
            name = f"{type(seen).__name__}: {said}" if said else type(seen).__name__
            lines.insert(0, f"Traceback (most recent call last):\n{stack}{name}")
            seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
        return "\n\n".join(lines)
