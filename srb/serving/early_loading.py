"""`EarlyLoading`: a model is loaded in a thread, while Python imports what will use it.

    with EarlyLoading(load) as early:    # the thread begins
        from srb.server... import serve  # takes longer than to load a small model
        serve(early)                     # whoever calls `early(progress)` gets the backend

So `early` stands for `load` itself: `AsyncEngine` takes either. If the block ends before anybody has asked for the
backend, because of a wrong option, loading stops, and nothing is left.
"""

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Self

from srb.engine.backend import Backend

Progress = Callable[[float], bool]
"""Is called with the fraction that is loaded, from 0 to 1. When it returns False, loading should stop."""

Load = Callable[[Progress], Backend]
"""Makes a backend. Raises what makes this impossible, as `ModelLoadError`."""


class EarlyLoading:
    """Calls `load` in a thread of its own as soon as its block begins. The block belongs to the main thread.

    SIGTERM ends the process at once with 0, and SIGINT with 130, until the block gives them another meaning. As
    exceptions, they could come within an import, and leave a lock of Python's behind for which the thread would wait
    for ever.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._progress: Progress = lambda _fraction: True
        self._made: Future[Backend] = Future()
        self._is_taken = False
        self._thread = threading.Thread(target=self._run, name="srb-loading", daemon=True)

    def __call__(self, progress: Progress) -> Backend:
        """The backend, which the caller has to close. Waits for it, and raises what `load` raises."""
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
        except BaseException as error:  # whoever waits must hear of it
            self._made.set_exception(error)


def _leave(number: int, _frame: object) -> None:
    os._exit(0 if number == signal.SIGTERM else 130)
