"""Looks up what bodies name: kept requests, earlier responses, and files at other addresses.

Bodies are read in worker threads, of which there are few. A thread that waited there for the event loop might wait for
ever: what the loop does may need a worker thread itself, and all of them might wait. So reading a body stops where
something isn't known yet. The event loop looks it up, and then the body is read again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar

Name = TypeVar("Name", bound=Hashable)
Found = TypeVar("Found")
Result = TypeVar("Result")


class _UnknownError(Exception):
    def __init__(self, look_up: Callable[[], Awaitable[None]]) -> None:
        self.look_up = look_up


def known(find: Callable[[Name], Awaitable[Found]]) -> Callable[[Name], Found]:
    """What `find` returns for a name, as a function for worker threads, which waits for nothing.

    Only functions that are called by `read` may use it. It remembers what was found, so it is for one body.
    """
    there: dict[Name, Found] = {}

    async def look_up(name: Name) -> None:
        there[name] = await find(name)

    def get(name: Name) -> Found:
        if name not in there:
            raise _UnknownError(lambda: look_up(name))
        return there[name]

    return get


async def read(function: Callable[[], Result]) -> Result:
    """Calls a function that reads a body in a worker thread, and again whenever something was looked up for it.

    Raises what the function raises, and what the `find` of a `known` raises.
    """
    while True:
        try:
            return await asyncio.to_thread(function)
        except _UnknownError as unknown:
            look_up = unknown.look_up
        await look_up()
