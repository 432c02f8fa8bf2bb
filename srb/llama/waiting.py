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
from contextlib import contextmanager, suppress
from typing import Any

import llama_cpp

_WINDOW = 0.2
"""Seconds of decoding that are judged at once."""
_DELAYED = 0.25
"""How many of the threads wait for a CPU on the average, where all are to sleep. Beside a busy loop it's 0.5 and more,
whether they spin or sleep. Where only another virtual machine takes the time, it's none, and sleeping wouldn't help."""


def delayed_seconds() -> float:
    """How long the threads of this process had to wait for a CPU so far, added up. Linux tells it for each thread."""
    nanoseconds = 0
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError), open(f"/proc/self/task/{thread}/schedstat") as file:  # or it has ended
            nanoseconds += int(file.read().split()[1])
    return nanoseconds / 1e9


class Waiting:
    """Watches decodes, and has threads sleep while others want their cores, and until it's known whether they do.

    crowd: makes them sleep; None where they can't be made to.
    """

    def __init__(
        self,
        crowd: "Crowd | None",
        clock: Callable[[], float] = time.perf_counter,
        delayed: Callable[[], float] = delayed_seconds,
    ) -> None:
        self._crowd = crowd
        self._clock, self._delayed = clock, delayed
        self._seconds = 0.0
        self._before = delayed() if crowd else 0.0
        if crowd:
            crowd.gather()  # beside others a first decode that spins takes seconds, and it's judged at its end only

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Around each decode."""
        began = self._clock()
        try:
            yield
        finally:
            self._seconds += self._clock() - began
            if self._crowd and self._seconds >= _WINDOW:
                self._judge(self._crowd)

    def _judge(self, crowd: "Crowd") -> None:
        delayed = self._delayed()
        if delayed - self._before > _DELAYED * self._seconds:
            crowd.gather()
        else:
            crowd.leave()
        self._seconds, self._before = 0.0, delayed

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
        """None where llama.cpp's OpenMP is another one or none, Linux doesn't tell who waits for a CPU, or somebody has
        said how threads are to wait for each other."""
        parallel = getattr(llama_cpp.llama_cpp._lib, "GOMP_parallel", None)
        if (
            not parallel
            or not os.path.exists("/proc/self/schedstat")
            or {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys()
        ):
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
