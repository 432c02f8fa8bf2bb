"""Waits for what another thread does."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool]) -> None:
    """Returns when the condition is true. Raises `TimeoutError` after a minute."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  the other thread can't set an asyncio.Event
            await asyncio.sleep(0.001)
