"""Receives the bodies of requests, and sends those of answers, as fast as the client can and no faster."""

import asyncio
from contextlib import suppress

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from srb.errors import InvalidRequestError, PayloadTooLargeError, RequestTimeoutError, UnsupportedMediaTypeError
from srb.server.http.connections import CONNECTIONS
from srb.server.http.sse import PIECE_BYTES, patience
from srb.wire.request.read import show

MAX_BODY_BYTES = 4 << 20

DRAIN_BYTES = 64 << 20
DRAIN_SECONDS = 10.0
"""How many bytes of a body that no handler read are still read, and for how many seconds; see `send_answer`."""

BODY = web.RequestKey("body", bytes)
"""The body of a request that `read_body` has read."""

EXPECTS_CONTINUE = web.RequestKey("expects_continue", bool)
"""True while the client waits for a `100 Continue` before it sends the body."""


async def read_body(request: web.Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """The body of a request, of `limit` bytes at most.

    Raises `PayloadTooLargeError`, `UnsupportedMediaTypeError` if it is compressed, and `RequestTimeoutError` if it
    makes no progress.
    """
    if BODY in request:
        return request[BODY]
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "").strip()
    if encoding.lower() not in ("", "identity"):
        raise UnsupportedMediaTypeError(
            f"the body has the Content-Encoding {show(encoding)}; this server reads no compressed bodies; send it as "
            f"it is, with at most {limit} bytes and without that header"
        )
    too_large = PayloadTooLargeError(f"the body is larger than {limit} bytes")
    if (request.content_length or 0) > limit:
        raise too_large
    if request.pop(EXPECTS_CONTINUE, False):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # nothing of the answer was sent yet
    body = bytearray()
    try:
        while piece := await _read_piece(request):
            body += piece
            if len(body) > limit:
                raise too_large
    except web.RequestPayloadError:
        raise InvalidRequestError("the body is not in its Transfer-Encoding") from None
    request[BODY] = bytes(body)
    return request[BODY]


async def _read_piece(request: web.Request) -> bytes:
    """What has come of the body; empty at its end. Raises `RequestTimeoutError`."""
    connections = request.app[CONNECTIONS]
    try:
        with connections.receiving(request):
            async with asyncio.timeout(connections.receive_seconds):
                return await request.content.readany()
    except TimeoutError:
        raise RequestTimeoutError(
            f"nothing of the body came for {connections.receive_seconds:g} s (--receive-timeout); send the request "
            "again"
        ) from None


@web.middleware
async def send_answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Sends the answer, and then reads some of the request's body if no handler has read it.

    It returns when the client has taken the answer, so that a client that doesn't read isn't taken for an idle one.

    Closing the connection before the body is read would reset it, and the client might never see the answer. aiohttp's
    own `lingering_time` does the same, but without a limit on the bytes.
    """
    connections = request.app[CONNECTIONS]
    with connections.handling(request):
        response, body = await handler(request), request.content
        if request.get(EXPECTS_CONTINUE):
            response.force_close()  # nobody knows whether the client will send the body
        with suppress(ConnectionError):  # the reader has left, which aiohttp notices, too
            await _send(request, response)
        if not body.is_eof():
            left = DRAIN_BYTES
            with suppress(TimeoutError, web.RequestPayloadError), connections.receiving(request):
                async with asyncio.timeout(DRAIN_SECONDS):
                    while left > 0 and not body.at_eof():
                        left -= len(await body.readany())
    return response


async def _send(request: web.Request, response: web.StreamResponse) -> None:
    """Sends what isn't sent yet. Of a large body, no more is in memory twice than a reader takes at once."""
    connections = request.app[CONNECTIONS]
    await response.prepare(request)
    if isinstance(response, web.Response) and request.method != hdrs.METH_HEAD:
        body = response.body
        if isinstance(body, bytes) and len(body) > PIECE_BYTES:
            response.body = None
            for start in range(0, len(body), PIECE_BYTES):
                with connections.sending(request):
                    async with patience(request):
                        await response.write(body[start : start + PIECE_BYTES])
    with connections.sending(request):
        async with patience(request):
            await response.write_eof()
    while (transport := request.transport) and (size := transport.get_write_buffer_size()):
        limit = max(size - PIECE_BYTES, 0)  # so that a slow reader doesn't look like one that takes nothing
        transport.set_write_buffer_limits(limit, limit)
        with connections.sending(request):
            async with patience(request):
                await request.writer.drain()
    if transport:
        transport.set_write_buffer_limits()
