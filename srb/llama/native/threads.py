"""Makes llama.cpp's threads sleep instead of spin while they wait for each other, if other programs want the cores.

The threads wait for each other some hundred times in a step. libgomp, the usual OpenMP, lets them spin first, which is
fastest on a free machine. But if another program has taken a core, all threads spin until the thread without a core has
its turn again. Steps of 50 ms then take seconds.

libgomp reads how long threads spin (GOMP_SPINCOUNT) when it is loaded. Its manual names one thing that changes this
later: the threads hardly spin while libgomp has more threads than there are CPUs. So this module starts more threads,
which do nothing, to put the others to sleep. Results stay the same; with another number of threads that compute they
would change.
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

_WINDOW = 0.2
"""After so many seconds of decoding, `Waiting` decides anew whether the threads spin or sleep."""
_DELAYED = 0.25
"""If on average more threads than this wait for a CPU, all threads are to sleep. Beside a busy loop the average is 0.5
or more, whether the threads spin or sleep. If only another virtual machine takes the time, the average is 0, and
sleeping wouldn't help."""


def delayed_seconds() -> float:
    """How many seconds all threads of this process together have waited for a CPU. Linux counts per thread."""
    nanoseconds = 0
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError), open(f"/proc/self/task/{thread}/schedstat") as file:  # a thread may have ended
            nanoseconds += int(file.read().split()[1])
    return nanoseconds / 1e9


class Waiting:
    """Watches decodes, and makes the threads sleep while other programs want the cores.

    Thread-safe. The threads also sleep at first, until the first decodes have shown whether others want the cores.

    crowd: makes the threads sleep; None if this isn't possible here.
    """

    def __init__(
        self,
        crowd: "Crowd | None",
        clock: Callable[[], float] = time.perf_counter,
        delayed: Callable[[], float] = delayed_seconds,
    ) -> None:
        self._crowd = crowd
        self._clock, self._delayed = clock, delayed
        self._lock = threading.Lock()  # an image or an embedding may be computed beside a decode
        self._seconds = 0.0
        self._before = delayed() if crowd else 0.0
        if crowd:
            crowd.gather()  # `_judge` comes after a decode, and beside other programs one that spins takes seconds

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A context manager for each decode. It times the decode, and decides anew every `_WINDOW` seconds."""
        began = self._clock()
        try:
            yield
        finally:
            with self._lock:
                self._seconds += self._clock() - began
                if self._crowd and self._seconds >= _WINDOW:
                    self._judge(self._crowd)

    def _judge(self, crowd: "Crowd") -> None:
        seconds, self._seconds = self._seconds, 0.0
        try:
            delayed = self._delayed()
            if delayed - self._before > _DELAYED * seconds:
                crowd.gather()
            else:
                crowd.leave()
            self._before = delayed
        except (OSError, RuntimeError):  # no file descriptor is left, or no thread: it stays as it is
            self._before = math.inf

    def close(self) -> None:
        """Ends the threads of the crowd."""
        if self._crowd:
            self._crowd.leave()


class Crowd:
    """More threads of libgomp than there are CPUs. They do nothing, but while they exist, the others hardly spin.

    parallel: libgomp's GOMP_parallel(function, data, n_threads, flags). A thread that has called it keeps a team of
        n_threads for its next call. The team lives until this thread ends.
    """

    def __init__(self, parallel: Any) -> None:
        self._parallel = parallel
        self._leave: threading.Event | None = None

    @classmethod
    def of_libgomp(cls) -> "Crowd | None":
        """A crowd for the libgomp that llama.cpp uses.

        None if llama.cpp uses another OpenMP or none, if Linux doesn't count how long threads wait for a CPU, or if the
        environment already says how threads are to wait for each other.
        """
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
        """Makes llama.cpp's threads sleep while they wait."""
        if self._leave:
            return
        leave = threading.Event()
        threading.Thread(target=self._stay, args=(leave,), name="srb crowd", daemon=True).start()
        self._leave = leave

    def leave(self) -> None:
        """Makes llama.cpp's threads spin again."""
        if self._leave:
            self._leave.set()
            self._leave = None

    def _stay(self, leave: threading.Event) -> None:
        # Each thread of the team has to call something, and free(NULL) does nothing.
        nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)
        self._parallel(nothing, None, (os.cpu_count() or 1) + 1, 0)
        leave.wait()
