"""Threads with large stacks, for calls into C that recurse. It doesn't import llama.cpp."""

import mmap
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from srb.errors import UnavailableError

Result = TypeVar("Result")

_STACK_BYTES = 16 << 20

_stack_size_lock = threading.Lock()  # threading.stack_size() is a setting of the whole process


def with_stack(call: Callable[[], Result], more: int) -> Result:
    """Make a call in a thread with a stack of 16 MiB and `more` bytes. Only the used part of a stack takes memory.

    For calls that recurse in C as deeply as their input is long. Raises `UnavailableError`.
    """
    result = Future[Result]()  # not of an executor, which takes no calls once the main thread has ended

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:
            result.set_exception(error)

    stack = _STACK_BYTES + more
    with _stack_size_lock:
        previous = threading.stack_size(stack + -stack % mmap.PAGESIZE)
        try:
            threading.Thread(target=run, name="srb-deep").start()
        except RuntimeError as error:
            raise UnavailableError(
                f"there is no memory for a thread with a stack of {stack} bytes, or there are as many threads as there "
                f"may be ({error}); try again soon"
            ) from None
        finally:
            threading.stack_size(previous)
    return result.result()
