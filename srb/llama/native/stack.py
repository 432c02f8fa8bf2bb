"""Threads with large stacks, for calls into C that recurse. It doesn't import llama.cpp."""

import mmap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from srb.errors import UnavailableError

Result = TypeVar("Result")

_STACK_BYTES = 16 << 20

_stack_size_lock = threading.Lock()  # threading.stack_size() is a setting of the whole process


def with_stack(call: Callable[[], Result], more: int) -> Result:
    """Make a call in a thread with a stack of 16 MiB and `more` bytes. Only the used part of a stack takes memory.

    For calls that recurse in C as deeply as their input is long. Raises `UnavailableError`.
    """
    stack = _STACK_BYTES + more
    with ThreadPoolExecutor(1, "srb-deep") as pool:
        with _stack_size_lock:
            previous = threading.stack_size(stack + -stack % mmap.PAGESIZE)
            try:
                result = pool.submit(call)  # starts the thread
            except RuntimeError as error:
                raise UnavailableError(
                    f"there is no memory for a thread with a stack of {stack} bytes, or there are as many threads as "
                    f"there may be ({error}); try again soon"
                ) from None
            finally:
                threading.stack_size(previous)
        return result.result()
