"""Sends streams of server-sent events or JSON lines. The events of one step are one write.

A GET may ask for its events over a WebSocket, with the same path: the messages, joined, are what the response would
have been. Browsers open only six HTTP connections to a server, and count WebSockets separately.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

from aiohttp import hdrs, web
from aiohttp.abc import AbstractStreamWriter

from srb.server.http.connections import CONNECTIONS
from srb.wire.reply import SSE_DATA, Chunk, Frame

PING_SECONDS = 15.0
STALL_SECONDS = 60.0
"""How long a reader may take nothing before its connection is closed."""

WRITE_BYTES = 16 << 10
"""Bytes per write. With more, a slow reader would look like a stalled one."""

HEADERS = {
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # else nginx would buffer the stream
}


WEBSOCKET_PROTOCOL = "srb"
"""The protocol that a WebSocket has if its client names any. A browser must, to send an API key (`access`)."""


def is_websocket(request: web.Request) -> bool:
    """Whether the client asks for the response over a WebSocket."""
    return request.headers.get(hdrs.UPGRADE, "").strip().lower() == "websocket"


class _Socket(web.WebSocketResponse):
    """A stream over a WebSocket. Clients send nothing over it."""

    _listening: asyncio.Task[None]
    _was_prepared = False

    def __init__(self) -> None:
        # A ping keeps the connection open, and after half this time without an answer it is closed.
        super().__init__(protocols=(WEBSOCKET_PROTOCOL,), heartbeat=2 * PING_SECONDS, compress=False, max_msg_size=1024)

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter:
        # aiohttp prepares it again if the client left during the first time, and returns without a handshake.
        is_first, self._was_prepared = not self._was_prepared, True
        writer = await super().prepare(request)
        if is_first:
            self._listening = asyncio.create_task(self._listen())
        return writer

    async def _listen(self) -> None:
        """Takes pongs, and closes the connection when the client does, which ends the request's handler."""
        async for _ in self:
            pass

    async def write(self, data: "bytes | bytearray | memoryview[int] | memoryview[bytes]") -> None:
        await self.send_bytes(bytes(data))


def stream_to(request: web.Request, status: int, headers: Mapping[str, str]) -> web.StreamResponse:
    """The response for a stream, which the caller prepares and writes."""
    return _Socket() if is_websocket(request) else web.StreamResponse(status=status, headers=headers)


Item = Chunk | tuple[int, Chunk]
"""A chunk, or the id of an event with its chunk."""

Read = Callable[[], Awaitable[Iterable[Item]]]
"""Waits for the next chunks, or raises `StopAsyncIteration` after the last ones. Cancelling it loses none."""

Batch = TypeVar("Batch")


def chunks_of(read: Callable[[], Awaitable[Batch]], to_json: Callable[[Batch], Iterable[Item]]) -> Read:
    """The chunks of each batch that is read."""

    async def read_chunks() -> Iterable[Item]:
        return to_json(await read())

    return read_chunks


@asynccontextmanager
async def reading(generator: AsyncGenerator[Iterable[Item], None]) -> AsyncIterator[Read]:
    """Reads the chunks of a generator, which is closed at the end of the block.

    Cancelling the wait for a generator would end it. So a task waits for it, and isn't cancelled.
    """
    task: asyncio.Future[Iterable[Item]] | None = None

    async def read() -> Iterable[Item]:
        nonlocal task
        task = task or asyncio.ensure_future(anext(generator))
        await asyncio.wait({task})
        ended, task = task, None
        return ended.result()

    try:
        yield read
    finally:
        if task:
            task.cancel()
            await asyncio.wait({task})
        await generator.aclose()


async def respond(
    request: web.Request, read: Read, *, headers: dict[str, str], frame: Frame = SSE_DATA
) -> web.StreamResponse:
    """Streams JSON objects, with a ping after every PING_SECONDS without an object.

    The response begins at once. It ends early if the client disconnects, or takes nothing for STALL_SECONDS.
    """
    response = stream_to(request, 200, HEADERS | headers | {"Content-Type": frame.content_type})
    try:
        await response.prepare(request)
        await _write(request, response, read, frame)
        async with stall_timeout(request):
            await response.write_eof()
    except ConnectionError:
        pass  # the client has disconnected
    return response


async def _write(request: web.Request, response: web.StreamResponse, read: Read, frame: Frame) -> None:
    while True:
        try:
            async with asyncio.timeout(PING_SECONDS):
                objects = await read()
        except TimeoutError:
            writes = iter([frame.ping])
        except StopAsyncIteration:
            return
        else:
            writes = _writes(objects, frame)
        for data in writes:
            async with stall_timeout(request):
                await response.write(data)
            if len(data) == WRITE_BYTES:  # more follows; making it may take seconds, so other tasks run meanwhile
                await asyncio.sleep(0)


def _writes(objects: Iterable[Item], frame: Frame) -> Iterator[bytes]:
    """The framed objects, WRITE_BYTES at a time."""
    data = b""
    for each in objects:
        data += _framed(each, frame).encode()
        while len(data) >= WRITE_BYTES:
            yield data[:WRITE_BYTES]
            data = data[WRITE_BYTES:]
    if data:
        yield data


@asynccontextmanager
async def stall_timeout(request: web.Request) -> AsyncIterator[None]:
    """Closes the connection and raises `ConnectionResetError` if the block takes longer than STALL_SECONDS."""
    try:
        async with asyncio.timeout(STALL_SECONDS):
            yield
    except TimeoutError:
        text = "the connection to %s is closed: it took nothing for %g s"
        request.app[CONNECTIONS].log.log(logging.WARNING, text, request.remote, STALL_SECONDS)
        if request.transport:
            request.transport.abort()  # close() would wait until the buffer is sent
        raise ConnectionResetError("the reader has stalled") from None


def _framed(item: Item, frame: Frame) -> str:
    """An item as it is sent. It is ASCII: some clients also split lines at U+2028, U+2029 and U+0085."""
    if isinstance(item, tuple):
        return f"id: {item[0]}\n{_framed(item[1], frame)}"
    text = item if isinstance(item, str) else json.dumps(item)
    return f"{frame.prefix(item)}{text}{frame.suffix}"
