"""Waits for what another thread does, and for a time to be up without waiting."""

import asyncio
import time
from collections.abc import Callable


async def until(condition: Callable[[], bool]) -> None:
    """Returns when the condition is true. Raises `TimeoutError` after a minute."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  the other thread can't set an asyncio.Event
            await asyncio.sleep(0.001)


class Clock:
    """The clock of the running event loop, which a test puts forward: what waits for a time to be up waits no longer.

    A test with this clock may take its seconds as long as they are outside of tests, so no busy machine is too slow.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._time = loop.time
        self._ahead = 0.0
        loop.time = lambda: self._time() + self._ahead  # type: ignore[method-assign]

    async def forward(self, seconds: float, *, by: float = 0.1) -> None:
        """Lets so many seconds pass, `by` at a time: between two of these steps happens what is due."""
        end = self._ahead + seconds
        while self._ahead < end:
            await self._step(by)

    async def until(self, condition: Callable[[], bool], *, by: float = 0.1) -> None:
        """Lets time pass until the condition is true. Raises `TimeoutError` after a real minute."""
        end = time.monotonic() + 60
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError
            await self._step(by)

    async def _step(self, seconds: float) -> None:
        self._ahead += seconds
        for _ in range(10):  # a message goes from task to task
            await asyncio.sleep(0)
        await asyncio.sleep(0.001)  # other threads do their part
