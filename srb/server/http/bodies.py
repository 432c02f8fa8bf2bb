"""Receives the bodies of requests and sends those of responses, with backpressure and time limits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from srb.errors import InvalidRequestError, PayloadTooLargeError, RequestTimeoutError, UnsupportedMediaTypeError
from srb.server.http.connections import CONNECTIONS
from srb.server.http.sse import WRITE_BYTES, stall_timeout
from srb.wire.request.read import show

MAX_BODY_BYTES = 4 << 20

DRAIN_BYTES = 64 << 20
DRAIN_SECONDS = 10.0
"""The most bytes and seconds for which an unread body is still read (`send_response`)."""

BODY = web.RequestKey("body", bytes)
"""The body of a request that `read_body` has read."""

EXPECTS_CONTINUE = web.RequestKey("expects_continue", bool)
"""True while the client waits for a `100 Continue` before it sends the body."""


async def read_body(request: web.Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """The body of a request, of at most `limit` bytes.

    Raises `PayloadTooLargeError`, `UnsupportedMediaTypeError` if it is compressed, and `RequestTimeoutError` if it made
    no progress for `--receive-timeout`.
    """
    if BODY in request:
        return request[BODY]
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "").strip()
    if encoding.lower() not in ("", "identity"):
        raise UnsupportedMediaTypeError(
            f"the body has the Content-Encoding {show(encoding)}, but this server reads no compressed bodies; send "
            f"at most {limit} bytes, uncompressed and without that header"
        )
    too_large = PayloadTooLargeError(f"the body is larger than {limit} bytes")
    if (request.content_length or 0) > limit:
        raise too_large
    if request.pop(EXPECTS_CONTINUE, False):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # nothing of the response was sent yet
    body = bytearray()
    try:
        while data := await _read_some(request):
            body += data
            if len(body) > limit:
                raise too_large
    except web.RequestPayloadError:
        raise InvalidRequestError(
            "the body ended before its end; send as many bytes as Content-Length says, or all chunks"
        ) from None
    request[BODY] = bytes(body)
    return request[BODY]


async def _read_some(request: web.Request) -> bytes:
    """The next bytes of the body; empty at its end. Raises `RequestTimeoutError`."""
    connections = request.app[CONNECTIONS]
    try:
        with connections.receiving(request):
            async with asyncio.timeout(connections.receive_seconds):
                return await request.content.readany()
    except TimeoutError:
        raise RequestTimeoutError(
            f"the body made no progress for {connections.receive_seconds:g} s (--receive-timeout); send the request "
            "again"
        ) from None


@web.middleware
async def send_response(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware: sends the response, and then reads some of the request's body if no handler has read it.

    It returns when the client has received the response, so that a client that doesn't read doesn't count as idle.

    Closing the connection before the body is read would reset it, and the client might never see the response.
    aiohttp's own `lingering_time` does the same, but without a limit on the bytes.
    """
    connections = request.app[CONNECTIONS]
    with connections.handling(request):
        response, body = await handler(request), request.content
        if request.get(EXPECTS_CONTINUE):
            response.force_close()  # it is unknown whether the client will send the body
        with suppress(ConnectionError):  # the client has disconnected, which aiohttp notices, too
            await _send(request, response)
        if not body.is_eof():
            left = DRAIN_BYTES
            with suppress(TimeoutError, web.RequestPayloadError), connections.receiving(request):
                async with asyncio.timeout(DRAIN_SECONDS):
                    while left > 0 and not body.at_eof():
                        left -= len(await body.readany())
    return response


async def _send(request: web.Request, response: web.StreamResponse) -> None:
    """Sends the rest of a response. A large body is written in parts, so that it isn't in memory twice."""

    @asynccontextmanager
    async def sending() -> AsyncIterator[None]:
        with request.app[CONNECTIONS].sending(request):
            async with stall_timeout(request):
                yield

    await response.prepare(request)
    if isinstance(response, web.Response) and request.method != hdrs.METH_HEAD:
        body = response.body
        if isinstance(body, bytes) and len(body) > WRITE_BYTES:
            response.body = None
            for start in range(0, len(body), WRITE_BYTES):
                async with sending():
                    await response.write(body[start : start + WRITE_BYTES])
    async with sending():
        await response.write_eof()
    while (transport := request.transport) and (size := transport.get_write_buffer_size()):
        limit = max(size - WRITE_BYTES, 0)  # so that a slow reader doesn't look like a stalled one
        transport.set_write_buffer_limits(limit, limit)
        async with sending():
            await request.writer.drain()
    if transport:
        transport.set_write_buffer_limits()
