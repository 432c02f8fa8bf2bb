"""`RateLimitedLog`: what a crowd of clients can cause is logged in few lines."""

import asyncio
import logging

logger = logging.getLogger("srb")

LOG_SECONDS = 10.0
"""A message that comes again within this time is counted, and one line says at its end how often it came."""


class RateLimitedLog:
    """Logs each message at once, and then its repetitions in one line every LOG_SECONDS. It belongs to the event loop.

    Two lines repeat each other if they have the same message, whatever its arguments are.
    """

    def __init__(self) -> None:
        self._repeated: dict[str, tuple[int, tuple[object, ...]]] = {}  # by message: how often, and the last arguments

    def log(self, level: int, message: str, *args: object) -> None:
        """Logs a message, or counts it."""
        if message in self._repeated:
            self._repeated[message] = self._repeated[message][0] + 1, args
        else:
            logger.log(level, message, *args)
            self._begin(level, message)

    def _begin(self, level: int, message: str) -> None:
        self._repeated[message] = 0, ()
        asyncio.get_running_loop().call_later(LOG_SECONDS, self._end, level, message)

    def _end(self, level: int, message: str) -> None:
        n_times, args = self._repeated.pop(message)
        if n_times:
            logger.log(level, f"{message} (%d such lines in %g s)", *args, n_times, LOG_SECONDS)
            self._begin(level, message)
