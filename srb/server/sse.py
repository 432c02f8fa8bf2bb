"""Server-sent events: what has happened in one step is one write."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

from aiohttp import web

PING_SECONDS = 15.0
HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # nginx would hold the stream back
}


async def respond(
    request: web.Request,
    batches: AsyncIterator[Iterable[dict[str, Any] | str]],
    *,
    headers: dict[str, str],
) -> web.StreamResponse:
    """Answers with a stream of JSON objects, and with a comment whenever nothing has come for PING_SECONDS.

    A string among them is sent as it is. The response begins at once, and ends early when the reader is gone.
    """
    response = web.StreamResponse(headers=HEADERS | headers)
    try:
        await response.prepare(request)
        await _write(response, batches)
        await response.write_eof()
    except ConnectionError:
        pass  # nobody is there to be told
    return response


async def _write(response: web.StreamResponse, batches: AsyncIterator[Iterable[dict[str, Any] | str]]) -> None:
    while True:
        try:
            async with asyncio.timeout(PING_SECONDS):
                objects = await anext(batches)
        except TimeoutError:
            await response.write(b": ping\n\n")
        except StopAsyncIteration:
            return
        else:
            # backslashreplace: half a surrogate pair, in a label say, goes back the way JSON brought it: as \\ud800.
            await response.write("".join(map(_event, objects)).encode(errors="backslashreplace"))


def _event(data: dict[str, Any] | str) -> str:
    return f"data: {data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)}\n\n"
