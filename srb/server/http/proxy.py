"""Forwards what names a request that this server doesn't have to its peers: other servers of the same engines."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar
from urllib.parse import quote

import aiohttp
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from srb.errors import NotFoundError, SrbError, UnavailableError
from srb.server.http.bodies import BODY, read_body
from srb.server.http.errors import route_of
from srb.server.http.exchange import ENGINE
from srb.server.http.sse import WRITE_BYTES, stall_timeout, stream_to

HEADER = "X-Srb-Asked-By"
"""The header of what a server forwards. A server that receives it doesn't forward it again."""

SESSION = web.AppKey("session", aiohttp.ClientSession)

ANSWER_SECONDS = 5.0
"""How long a peer may take to connect, to list its requests, or to confirm that it still has a request."""

_HOP_BY_HOP = (hdrs.HOST, hdrs.CONNECTION, hdrs.TRANSFER_ENCODING, hdrs.CONTENT_LENGTH, hdrs.KEEP_ALIVE, hdrs.UPGRADE)
_NOT_FORWARDED = (*_HOP_BY_HOP, hdrs.ORIGIN)  # this server has checked the origin

_NOT_FOUND = (401, 404, 501)
"""The statuses of a peer that doesn't have a request. It may not know the key, or have no history."""

logger = logging.getLogger("srb")

Result = TypeVar("Result")


class _PeerLostError(Exception):
    """A peer can't be reached, hangs, or ended in the middle of its response."""


async def session(app: web.Application) -> AsyncIterator[None]:
    """The client session for the peers. Certificates aren't checked, because the peers' addresses have no names."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(ssl=False)) as app[SESSION]:
        yield


@web.middleware
async def forward_to_peers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware: if this server doesn't have the request that a path names, forwards it to the peers.

    Raises `UnavailableError` if no peer has the request, and one of them can't be reached.
    """
    try:
        return await handler(request)
    except NotFoundError as error:
        if "id" not in request.match_info or HEADER in request.headers:
            raise
        failure: SrbError = error
        for url in request.app[ENGINE].others:
            try:
                if answer := await _forward(request, url):
                    return answer
            except _PeerLostError as lost:
                logger.warning("the server at %s can't be reached for %s: %s", url, route_of(request), lost)
                failure = UnavailableError(
                    f"{error.message} on this server, and another one that may have it can't be reached; try again soon"
                )
        raise failure from None


async def lists_of_peers(request: web.Request) -> list[Any]:
    """The items of the peers' lists for the same GET."""
    if HEADER in request.headers:
        return []
    answers = await asyncio.gather(*(_fetch(request, url) for url in request.app[ENGINE].others))
    return [each for answer in answers for each in answer]


async def _fetch(request: web.Request, url: str) -> list[Any]:
    with suppress(aiohttp.ClientError, TimeoutError, json.JSONDecodeError):
        async with asyncio.timeout(ANSWER_SECONDS), _ask(request, request.method, url + request.raw_path) as answer:
            if answer.status == 200:
                value = await answer.json()
                found: list[Any] = value["data"] if isinstance(value, dict) else value
                return found
    return []


def _ask(request: web.Request, method: str, url: str, body: bytes | None = None) -> Any:
    headers = {name: value for name, value in request.headers.items() if name.title() not in _NOT_FORWARDED}
    return request.app[SESSION].request(method, url, headers=headers | {HEADER: "srb"}, data=body)


async def _forward(request: web.Request, url: str) -> web.StreamResponse | None:
    """Streams a peer's response. Returns None if the peer doesn't have the request.

    Raises `_PeerLostError` if the peer is lost before its response begins. If it is lost later, the connection is cut.
    """
    body = await read_body(request) if BODY in request or request.can_read_body else None
    async with AsyncExitStack() as stack:
        pending = stack.enter_async_context(_ask(request, request.method, url + request.raw_path, body))
        answer = await _while_alive(request, url, pending)
        if answer.status in _NOT_FOUND:
            return None
        if answer.status >= 500 and not await _is_alive(request, url):
            raise _PeerLostError(f"its status was {answer.status}")
        headers = {name: value for name, value in answer.headers.items() if name.title() not in _HOP_BY_HOP}
        response = stream_to(request, answer.status, headers)
        await response.prepare(request)
        try:
            while data := await _while_alive(request, url, answer.content.read(WRITE_BYTES)):
                async with stall_timeout(request):
                    await response.write(data)
            await response.write_eof()
        except _PeerLostError as lost:
            logger.warning("the server at %s was lost during its response to %s: %s", url, route_of(request), lost)
            if request.transport:  # so that the client sees that something is missing, and reconnects
                request.transport.close()
        except ConnectionError:
            pass  # the client has disconnected
        return response


async def _while_alive(request: web.Request, url: str, waiting: Awaitable[Result]) -> Result:
    """Waits for a peer while it confirms that it has the request. Raises `_PeerLostError`.

    There is no timeout for the wait itself, because an object arrives only when the request has ended.
    """
    task = asyncio.ensure_future(waiting)
    try:
        while not (await asyncio.wait({task}, timeout=ANSWER_SECONDS))[0]:
            if not await _is_alive(request, url) and not task.done():
                raise _PeerLostError("it stopped answering")
        return task.result()
    except aiohttp.ClientError as error:
        # The error's text may quote what was sent, which must not be logged.
        raise _PeerLostError(type(error).__name__) from None
    finally:
        task.cancel()


async def _is_alive(request: web.Request, url: str) -> bool:
    """Whether a peer confirms that it has the request that the path names."""
    path = f"/v1/completions/{quote(request.match_info['id'], safe='')}"
    with suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(ANSWER_SECONDS), _ask(request, hdrs.METH_GET, url + path) as answer:
            return bool(answer.status == 200)
    return False
