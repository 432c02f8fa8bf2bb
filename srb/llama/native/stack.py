"""Threads with large stacks, for calls into C that recurse. It doesn't import llama.cpp."""

import mmap
import threading
from collections.abc import Callable
from typing import TypeVar

from srb.errors import UnavailableError

Result = TypeVar("Result")

_STACK_BYTES = 16 << 20

_stack_size_lock = threading.Lock()  # threading.stack_size() is a setting of the whole process


def with_stack(call: Callable[[], Result], more: int) -> Result:
    """Make a call in a thread with a stack of 16 MiB and `more` bytes. Only the used part of a stack takes memory.

    For calls that recurse in C as deeply as their input is long. Raises `UnavailableError`.
    """
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            errors.append(error)

    stack = _STACK_BYTES + more
    with _stack_size_lock:
        previous = threading.stack_size(stack + -stack % mmap.PAGESIZE)
        thread = threading.Thread(target=run, name="srb-deep")
        try:
            thread.start()
        except RuntimeError as error:
            raise UnavailableError(
                f"there is no memory for a thread with a stack of {stack} bytes, or there are as many threads as there "
                f"may be ({error}); try again soon"
            ) from None
        finally:
            threading.stack_size(previous)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
