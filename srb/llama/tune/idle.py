"""Measures again while a server is idle, if `srb tune` could only guess. The next start uses the result.

A process of its own does this, because it loads other weights and uses all processors. It is killed when a request
comes. What each try of about a second has measured is kept, so the next process goes on there.
"""

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from srb.errors import SrbError
from srb.llama.files.model_file import find_model
from srb.llama.native import log
from srb.llama.tune.tuned import keep, read_tuned, tries_path
from srb.options.settings import EVALUATION, PLACEMENT, Settings

logger = logging.getLogger("srb.tuned")

_PATIENCE, _PAUSE = 20.0, 300.0  # seconds of idleness before the first process, and between two processes
_BUDGET = 60.0
_MOST = 3  # so many results that are guesses, too, and this server doesn't try again
_COMMAND = (sys.executable, "-m", "srb.llama.tune.idle")


class IdleTuning:
    """Measures again between `begin` and `end`, which one thread calls in turn. `end` takes less than a millisecond.

    settings: those of the server; they must name a model file that is here. patience: see `_PATIENCE`.
    command: what is run; it gets the settings through its standard input.
    """

    def __init__(self, settings: Settings, *, patience: float = _PATIENCE, command: Sequence[str] = _COMMAND) -> None:
        given = settings.given((*EVALUATION, *PLACEMENT, "n_gpu_layers"))
        self._settings = Settings(model=find_model(settings.model), **given)
        self._patience = patience
        self._command = command
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._n_left = _MOST

    def begin(self) -> None:
        """Says that nothing is to be done now."""
        if self._n_left:
            self._over = threading.Event()
            threading.Thread(target=self._run, args=(self._over,), name="srb tune", daemon=True).start()

    def end(self) -> None:
        """Says that there is work. The process is killed."""
        self._over.set()
        with self._lock:
            if self._process:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)  # also the one that converts weights

    def _run(self, over: threading.Event) -> None:
        pause = self._patience
        while self._n_left and not over.wait(pause):
            if not self._is_guess():
                self._n_left = 0
                return
            with self._lock:
                if over.is_set():
                    return
                self._process = process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            with suppress(BrokenPipeError):
                process.communicate(pickle.dumps(self._settings))
            process.wait()
            with self._lock:
                self._process = None
            if process.returncode == 0:
                self._n_left -= 1
                logger.info("what `srb tune` could only guess was measured while idle; the next start uses it")
            pause = _PAUSE

    def _is_guess(self) -> bool:
        assert self._settings.model
        tuned = read_tuned(self._settings.model, self._settings)
        return tuned is not None and tuned.is_guess


def measure_again(settings: Settings) -> None:
    """Searches on an idle machine, beginning with the tries that are kept, and keeps the result.

    Raises `DisturbedError` if other programs work, and what `Search.run` raises.
    """
    from srb.llama.tune.search import Search  # a server that starts doesn't need it

    path = find_model(settings.model)
    tries, server = tries_path(path, settings), os.getppid()

    def told(_what: str, _share: float) -> None:
        if os.getppid() != server:  # the server has ended without a chance to end this process
            sys.exit(1)

    search = Search(path, settings, _BUDGET, told, tries=tries)
    search.run()
    keep(search.found.result, search.made, path, settings)
    tries.unlink(missing_ok=True)


def _main() -> int:
    from srb.llama.tune.search import DisturbedError

    log.redirect()
    os.nice(10)
    try:
        measure_again(pickle.load(sys.stdin.buffer))
    except (SrbError, DisturbedError, OSError):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
