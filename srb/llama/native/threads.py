"""Chooses whether llama.cpp's threads spin or sleep while they wait for each other.

llama.cpp computes with several threads (OpenMP, in GNU's libgomp), which wait for each other some hundred times per
step. By default a waiting thread spins, which is fastest on a free machine. If another program takes one core, though,
all threads spin until the thread without a core runs again, and steps of 50 ms take seconds. Sleeping is better then.

`GOMP_SPINCOUNT` sets how long libgomp's threads spin, but libgomp reads it only once, when it is loaded. Later there is
one way to change it: libgomp hardly spins while it has more threads than there are CPUs. So `IdleTeam` starts a team of
threads that do nothing, and `ThreadWaiting` decides when. The number of threads that compute stays the same, and so do
the results.
"""

import ctypes
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import llama_cpp

_INTERVAL = 0.2  # seconds of decoding between two decisions

_CPU_WAIT = 0.25
"""Sleep if on average more threads than this wait for a CPU.

Next to a busy loop the average is 0.5 or more, whether the threads spin or sleep. If only another virtual machine takes
the time, the average is 0, and sleeping wouldn't help."""


def cpu_wait_seconds() -> float:
    """Return how many seconds all threads of this process have waited for a CPU, in total. Linux counts per thread."""
    nanoseconds = 0
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError), open(f"/proc/self/task/{thread}/schedstat") as file:  # a thread may have ended
            nanoseconds += int(file.read().split()[1])
    return nanoseconds / 1e9


class IdleTeam:
    """A libgomp team of more threads than there are CPUs. It does nothing, but libgomp hardly spins while it exists.

    Args:
        parallel: libgomp's `GOMP_parallel(function, data, n_threads, flags)`. The calling thread keeps the team for its
            next call, until the calling thread ends.
    """

    def __init__(self, parallel: Any) -> None:
        self._parallel = parallel
        self._ended: threading.Event | None = None

    @classmethod
    def of_libgomp(cls) -> "IdleTeam | None":
        """Return a team in the libgomp that llama.cpp uses.

        Returns:
            None if llama.cpp uses another OpenMP or none, if Linux doesn't count CPU wait times, or if the environment
            already sets how threads wait.
        """
        parallel = getattr(llama_cpp.llama_cpp._lib, "GOMP_parallel", None)
        is_set = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys()
        if not parallel or is_set or not os.path.exists("/proc/self/schedstat"):
            return None
        parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
        return cls(parallel)

    def start(self) -> None:
        """Start the team, unless it runs: waiting threads of llama.cpp sleep from now on."""
        if self._ended:
            return
        ended = threading.Event()
        threading.Thread(target=self._run, args=(ended,), name="srb idle team", daemon=True).start()
        self._ended = ended

    def stop(self) -> None:
        """Stop the team, if it runs: waiting threads of llama.cpp spin from now on."""
        if self._ended:
            self._ended.set()
            self._ended = None

    def _run(self, ended: threading.Event) -> None:
        # Each thread of the team has to call something, and free(NULL) does nothing.
        nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)
        self._parallel(nothing, None, (os.cpu_count() or 1) + 1, 0)
        ended.wait()


class ThreadWaiting:
    """Watches decodes, and lets threads sleep while other programs want the cores. Thread-safe.

    Threads also sleep at first: next to another program, the first decode would take seconds if they spun.

    Args:
        team: None if threads can't be made to sleep here.
    """

    def __init__(
        self,
        team: IdleTeam | None,
        clock: Callable[[], float] = time.perf_counter,
        cpu_wait: Callable[[], float] = cpu_wait_seconds,
    ) -> None:
        self._team = team
        self._clock, self._cpu_wait = clock, cpu_wait
        self._lock = threading.Lock()  # an image or an embedding may be computed during a decode
        self._seconds = 0.0  # of decoding since the last decision
        self._last_wait = cpu_wait() if team else 0.0
        if team:
            team.start()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Time the decode in the block, and decide anew after each `_INTERVAL` of decoding."""
        start = self._clock()
        try:
            yield
        finally:
            with self._lock:
                self._seconds += self._clock() - start
                if self._team and self._seconds >= _INTERVAL:
                    self._decide(self._team)

    def _decide(self, team: IdleTeam) -> None:
        seconds, self._seconds = self._seconds, 0.0
        try:
            wait = self._cpu_wait()
            if wait - self._last_wait > _CPU_WAIT * seconds:
                team.start()
            else:
                team.stop()
            self._last_wait = wait
        except (OSError, RuntimeError):  # no file descriptor or thread is left: keep the present state
            self._last_wait = math.inf

    def close(self) -> None:
        """Stop the idle team."""
        if self._team:
            self._team.stop()
