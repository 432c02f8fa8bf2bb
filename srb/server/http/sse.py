"""Sends streams of server-sent events, or of lines of JSON. The events of one step are one write."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from aiohttp import web

from srb.server.http.connections import CONNECTIONS
from srb.wire.reply import DATA, Chunk, Frame

PING_SECONDS = 15.0
STALL_SECONDS = 60.0
"""A reader that takes nothing for so long loses its connection."""

PIECE_BYTES = 16 << 10
"""Bytes that are written at once. With larger pieces, a slow reader would look like one that takes nothing."""

HEADERS = {
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # without this, nginx would collect the stream before it passes it on
}


Item = Chunk | tuple[int, Chunk]
"""A chunk, or the id of an event with its chunk."""

Batch = TypeVar("Batch")


class Batches(Generic[Batch]):
    """An iterator over the batches that `read` returns, as objects for JSON.

    Waiting for the next batch may be cancelled, to send a ping for example, and no batch is lost.

    read: waits for the next batch; raises `StopAsyncIteration` behind the last one. to_json: makes objects of a batch.
    """

    def __init__(self, read: Callable[[], Awaitable[Batch]], to_json: Callable[[Batch], Iterable[Item]]) -> None:
        self._read = read
        self._to_json = to_json

    def __aiter__(self) -> AsyncIterator[Iterable[Item]]:
        return self

    async def __anext__(self) -> Iterable[Item]:
        return self._to_json(await self._read())


@asynccontextmanager
async def batches_of(generator: AsyncGenerator[Iterable[Item], None]) -> AsyncIterator[Batches[Iterable[Item]]]:
    """The batches that a generator yields, as long as the block runs. At its end the generator is closed.

    If waiting for a generator is cancelled, the generator ends. So a task waits for it, which goes on meanwhile.
    """
    task: asyncio.Task[Iterable[Item]] | None = None

    async def read() -> Iterable[Item]:
        nonlocal task
        task = task or asyncio.create_task(_next(generator))
        await asyncio.wait({task})
        ended, task = task, None
        return ended.result()

    try:
        yield Batches(read, lambda items: items)
    finally:
        if task:
            task.cancel()
            await asyncio.wait({task})
        await generator.aclose()


async def _next(generator: AsyncGenerator[Iterable[Item], None]) -> Iterable[Item]:
    return await anext(generator)


async def respond(
    request: web.Request,
    batches: Batches[Any],
    *,
    headers: dict[str, str],
    frame: Frame = DATA,
) -> web.StreamResponse:
    """Answers with a stream of JSON objects, and sends a ping whenever no object has come for PING_SECONDS.

    The response begins at once. It ends early if the reader has left, or has taken nothing for STALL_SECONDS.
    """
    response = web.StreamResponse(headers=HEADERS | headers | {"Content-Type": frame.content_type})
    try:
        await response.prepare(request)
        await _write(request, response, batches, frame)
        async with patience(request):
            await response.write_eof()
    except ConnectionError:
        pass  # the reader has left
    return response


async def _write(
    request: web.Request,
    response: web.StreamResponse,
    batches: Batches[Any],
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
            async with patience(request):
                await response.write(piece)
            if len(piece) == PIECE_BYTES:  # more pieces follow; making them may take seconds, so others get a turn
                await asyncio.sleep(0)


def _pieces(objects: Iterable[Item], frame: Frame) -> Iterator[bytes]:
    """The objects in their frames, PIECE_BYTES at a time."""
    data = b""
    for each in objects:
        # Half a surrogate pair, in a label for example, is sent as JSON brought it: as \\ud800.
        data += _framed(each, frame).encode(errors="backslashreplace")
        while len(data) >= PIECE_BYTES:
            yield data[:PIECE_BYTES]
            data = data[PIECE_BYTES:]
    if data:
        yield data


@asynccontextmanager
async def patience(request: web.Request) -> AsyncIterator[None]:
    """Ends the connection and raises `ConnectionResetError` if the block takes longer than STALL_SECONDS."""
    try:
        async with asyncio.timeout(STALL_SECONDS):
            yield
    except TimeoutError:
        text = "the connection to %s is ended: it took nothing for %g s"
        request.app[CONNECTIONS].log.log(logging.WARNING, text, request.remote, STALL_SECONDS)
        if request.transport:
            request.transport.abort()  # closing it would wait for the reader to take what is buffered
        raise ConnectionResetError("the reader stands still") from None


def _framed(item: Item, frame: Frame) -> str:
    if isinstance(item, tuple):
        return f"id: {item[0]}\n{_framed(item[1], frame)}"
    text = item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
    return f"{frame.before(item)}{text}{frame.after}"
