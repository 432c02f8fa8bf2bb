"""How llama.cpp's threads wait for each other: spinning, or asleep where other programs want the cores, too.

They wait some hundred times in a step. libgomp, the usual OpenMP, has them spin first, which is fastest. But where
another program has taken a core, they spin until the thread without one has its turn again: steps of 50 ms then take
seconds. libgomp reads how long they spin (GOMP_SPINCOUNT) when it is loaded. Its manual names one thing that changes
it later: they hardly spin while there are more of its threads than CPUs. So more threads are what puts them to sleep.
Results don't change, as they would with another number of threads that compute.
"""

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import llama_cpp

_WINDOW = 0.2
"""Seconds of decoding that are judged at once."""
_LOST = 0.25
"""Of so many cores others have had the use, where threads that spin are put to sleep. Threads that spin use all."""
_PAUSE = 20
"""They sleep for so many times as long as it took to see that they should. So looking again costs 5% at most."""


class Waiting:
    """Watches decodes, and has threads sleep while others want their cores.

    n_threads, n_threads_batch: how many there are in decodes of one row, and in all others.
    crowd: makes them sleep; None where they can't be made to.
    """

    def __init__(
        self,
        n_threads: int,
        n_threads_batch: int,
        crowd: "Crowd | None",
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._n_threads, self._n_threads_batch = n_threads, n_threads_batch
        self._crowd = crowd
        self._clock, self._cpu_clock = clock, cpu_clock
        self._seconds = self._lost = 0.0
        self._asleep_until: float | None = None

    @contextmanager
    def watched(self, n_rows: int) -> Iterator[None]:
        """Around each decode."""
        n_threads = self._n_threads if n_rows == 1 else self._n_threads_batch
        if not self._crowd or n_threads == 1:
            yield
            return
        began, cpu_began = self._clock(), self._cpu_clock()
        if self._asleep_until is not None and began >= self._asleep_until:
            self._asleep_until = None
            self._crowd.leave()
        try:
            yield
        finally:
            if self._asleep_until is None:
                now = self._clock()
                self._judge(now, now - began, n_threads * (now - began) - (self._cpu_clock() - cpu_began))

    def _judge(self, now: float, seconds: float, lost: float) -> None:
        self._seconds += seconds
        self._lost += lost
        if self._seconds < _WINDOW:
            return
        if self._lost > _LOST * self._seconds:
            assert self._crowd
            self._crowd.gather()
            self._asleep_until = now + _PAUSE * self._seconds
        self._seconds = self._lost = 0.0

    def close(self) -> None:
        """Lets the threads go that were there to be many."""
        if self._crowd:
            self._crowd.leave()


class Crowd:
    """More threads of libgomp than there are CPUs: they do nothing, and while they are there, the others hardly spin.

    parallel: libgomp's GOMP_parallel(function, data, n_threads, flags). A thread that has called it keeps a team of so
    many threads for its next call, until it ends.
    """

    def __init__(self, parallel: Any) -> None:
        self._parallel = parallel
        self._leave: threading.Event | None = None

    @classmethod
    def of_libgomp(cls) -> "Crowd | None":
        """None where llama.cpp's OpenMP is another one or none, or somebody has said how it is to wait."""
        parallel = getattr(llama_cpp.llama_cpp._lib, "GOMP_parallel", None)
        if not parallel or {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
            return None
        parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
        return cls(parallel)

    def gather(self) -> None:
        """Has the threads sleep."""
        if self._leave:
            return
        self._leave = threading.Event()
        threading.Thread(target=self._stay, args=(self._leave,), name="srb crowd", daemon=True).start()

    def leave(self) -> None:
        """Has the threads spin again."""
        if self._leave:
            self._leave.set()
            self._leave = None

    def _stay(self, leave: threading.Event) -> None:
        # Each thread of the team has to call something, and free(NULL) does nothing.
        nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)
        self._parallel(nothing, None, (os.cpu_count() or 1) + 1, 0)
        leave.wait()
