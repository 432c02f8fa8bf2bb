"""Streams, of server-sent events or of lines: what has happened in one step is one write."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from aiohttp import web

logger = logging.getLogger("srb")

PING_SECONDS = 15.0
STALL_SECONDS = 60.0
"""How long a reader may keep a write waiting."""

PIECE_BYTES = 16 << 10
"""How much is written at once, so that a slow reader of much isn't taken for one that stands still."""

HEADERS = {
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # nginx would hold the stream back
}


Chunk = dict[str, Any] | str
"""An object, or a text that is sent as it is."""

Item = Chunk | tuple[int, Chunk]
"""A chunk, or one behind its id."""

Batch = TypeVar("Batch")


class Batches(Generic[Batch]):
    """What `read` returns, as JSON. Waiting for the next may be cancelled, as for a ping.

    read: waits for the next; raises `StopAsyncIteration` behind the last.
    """

    def __init__(self, read: Callable[[], Awaitable[Batch]], to_json: Callable[[Batch], Iterable[Item]]) -> None:
        self._read = read
        self._to_json = to_json

    def __aiter__(self) -> AsyncIterator[Iterable[Item]]:
        return self

    async def __anext__(self) -> Iterable[Item]:
        return self._to_json(await self._read())


@dataclass(frozen=True)
class Frame:
    """How a chunk is sent: what stands before its JSON, and behind it. ping: what is sent while nothing comes."""

    before: Callable[[Chunk], str]
    after: str = "\n\n"
    ping: bytes = b": ping\n\n"
    content_type: str = "text/event-stream"


DATA = Frame(lambda _chunk: "data: ")
MESSAGE = Frame(lambda _chunk: "event: message\ndata: ")
TYPED = Frame(lambda chunk: f"event: {chunk['type']}\ndata: " if isinstance(chunk, dict) else "data: ")
"""An event has the name that its `type` has."""

LINES = Frame(lambda _chunk: "", "\n", b"", "application/x-ndjson")
"""A line of JSON for each; its readers would take a ping for one."""


async def respond(
    request: web.Request,
    batches: AsyncIterator[Iterable[Item]],
    *,
    headers: dict[str, str],
    frame: Frame = DATA,
) -> web.StreamResponse:
    """Answers with a stream of JSON objects, and with a comment whenever nothing has come for PING_SECONDS.

    The response begins at once, and ends early when the reader is gone, or has taken nothing for STALL_SECONDS.
    """
    response = web.StreamResponse(headers=HEADERS | headers | {"Content-Type": frame.content_type})
    try:
        await response.prepare(request)
        await _write(request, response, batches, frame)
        async with _patience(request):
            await response.write_eof()
    except ConnectionError:
        pass  # nobody is there to be told
    return response


async def _write(
    request: web.Request,
    response: web.StreamResponse,
    batches: AsyncIterator[Iterable[Item]],
    frame: Frame,
) -> None:
    while True:
        try:
            async with asyncio.timeout(PING_SECONDS):
                objects = await anext(batches)
        except TimeoutError:
            pieces = iter([frame.ping] if frame.ping else [])
        except StopAsyncIteration:
            return
        else:
            pieces = _pieces(objects, frame)
        for piece in pieces:
            async with _patience(request):
                await response.write(piece)
            if len(piece) == PIECE_BYTES:  # there is more, and it's made here; it may be seconds of work
                await asyncio.sleep(0)


def _pieces(objects: Iterable[Item], frame: Frame) -> Iterator[bytes]:
    """The objects in their frames, PIECE_BYTES at a time."""
    data = b""
    for each in objects:
        # backslashreplace: half a surrogate pair, in a label say, goes back the way JSON brought it: as \\ud800.
        data += _framed(each, frame).encode(errors="backslashreplace")
        while len(data) >= PIECE_BYTES:
            yield data[:PIECE_BYTES]
            data = data[PIECE_BYTES:]
    if data:
        yield data


@asynccontextmanager
async def _patience(request: web.Request) -> AsyncIterator[None]:
    """Ends the connection, with a `ConnectionResetError`, when the reader takes too long."""
    try:
        async with asyncio.timeout(STALL_SECONDS):
            yield
    except TimeoutError:
        logger.warning("the connection to %s is ended: it took nothing for %g s", request.remote, STALL_SECONDS)
        if request.transport:
            request.transport.abort()  # closing it would wait for the reader to take what is buffered
        raise ConnectionResetError("the reader stands still") from None


def _framed(item: Item, frame: Frame) -> str:
    if isinstance(item, tuple):
        return f"id: {item[0]}\n{_framed(item[1], frame)}"
    text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
    return f"{frame.before(item)}{text}{frame.after}"
