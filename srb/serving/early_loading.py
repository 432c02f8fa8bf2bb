"""`EarlyLoading`: loads a model in a thread while Python imports the server.

    with EarlyLoading(load) as early:    # the thread begins
        from srb.server... import serve  # takes longer than loading a small model
        serve(early)                     # `early(progress)` returns the backend

`early` replaces `load`: `AsyncEngine` takes either. If the block ends before `early` was called, because of a wrong
option for example, loading stops, and the backend is closed.
"""

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Self

from srb.engine.backend import Backend

Progress = Callable[[float], bool]
"""Gets the loaded fraction, 0 to 1. Returns False to stop loading."""

Load = Callable[[Progress], Backend]
"""Makes a backend. Raises `ModelLoadError`."""


class EarlyLoading:
    """Calls `load` in a thread of its own when its block begins. The block belongs to the main thread.

    Until the block gives them other handlers, SIGTERM ends the process at once with 0, and SIGINT with 130. As
    exceptions, they could come within an import and leave one of Python's locks taken, which the thread would wait for.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._progress: Progress = lambda _fraction: True
        self._made: Future[Backend] = Future()
        self._is_taken = False
        self._thread = threading.Thread(target=self._run, name="srb-loading", daemon=True)

    def __call__(self, progress: Progress) -> Backend:
        """Waits for the backend, which the caller has to close. Raises what `load` raises."""
        self._is_taken, self._progress = True, progress
        return self._made.result()

    def __enter__(self) -> Self:
        self._handlers = {number: signal.signal(number, _leave) for number in (signal.SIGINT, signal.SIGTERM)}
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if not self._is_taken:
            self._progress = lambda _fraction: False
            self._thread.join()
            if not self._made.exception():
                self._made.result().close()
        for number, handler in self._handlers.items():
            if signal.getsignal(number) is _leave:
                signal.signal(number, handler)

    def _run(self) -> None:
        try:
            self._made.set_result(self._load(lambda fraction: self._progress(fraction)))
        except BaseException as error:  # `__call__` raises it
            self._made.set_exception(error)


def _leave(number: int, _frame: object) -> None:
    os._exit(0 if number == signal.SIGTERM else 130)
