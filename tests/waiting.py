"""Waiting for what another thread brings about."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool]) -> None:
    """Returns when that is so. Raises `TimeoutError` after a minute."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  the other thread can't set an asyncio.Event
            await asyncio.sleep(0.001)
