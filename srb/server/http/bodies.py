"""Receives the bodies of requests, and drains those that nobody wants."""

import asyncio
from contextlib import suppress

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from srb.errors import InvalidRequestError, PayloadTooLargeError, UnsupportedMediaTypeError
from srb.wire.request.read import show

MAX_BODY_BYTES = 4 << 20

DRAIN_BYTES = 64 << 20
DRAIN_SECONDS = 10.0
"""How many bytes of a body that no handler read are still read, and for how many seconds; see `drain_body`."""

BODY = web.RequestKey("body", bytes)
"""The body of a request that `read_body` has read."""


async def read_body(request: web.Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """The body of a request, of `limit` bytes at most.

    Raises `PayloadTooLargeError`, and `UnsupportedMediaTypeError` if it is compressed.
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
    body = bytearray()
    try:
        while piece := await request.content.readany():
            body += piece
            if len(body) > limit:
                raise too_large
    except web.RequestPayloadError:
        raise InvalidRequestError("the body is not in its Transfer-Encoding") from None
    request[BODY] = bytes(body)
    return request[BODY]


@web.middleware
async def drain_body(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Sends the answer, and then reads some of the request's body if no handler has read it.

    Closing the connection at once would reset it, and the client might never see the answer. aiohttp's own
    `lingering_time` does the same, but without a limit on the bytes.
    """
    response, body = await handler(request), request.content
    if not body.is_eof():
        await response.prepare(request)
        await response.write_eof()
        left = DRAIN_BYTES
        with suppress(TimeoutError, web.RequestPayloadError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while left > 0 and not body.at_eof():
                    left -= len(await body.readany())
    return response
