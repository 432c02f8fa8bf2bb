"""Asks the other servers in front of the same engines about requests that this server doesn't have."""

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
from srb.server.http.exchange import ENGINE
from srb.server.http.refusals import route_of
from srb.server.http.sse import PIECE_BYTES, patience

HEADER = "X-Srb-Asked-By"
"""The header of what one server asks another one. A server that gets it asks no further servers."""

SESSION = web.AppKey("session", aiohttp.ClientSession)

ANSWER_SECONDS = 5.0
"""How long another server may take to connect, to list its requests, or to say that it still has a request."""

_OF_THE_CONNECTION = (hdrs.HOST, hdrs.CONNECTION, hdrs.TRANSFER_ENCODING, hdrs.CONTENT_LENGTH, hdrs.KEEP_ALIVE)
_NOT_PASSED_ON = (*_OF_THE_CONNECTION, hdrs.ORIGIN)  # this server has checked the origin, under a name of its own

_NOT_THERE = (401, 404, 501)
"""The answers of a server that doesn't have a request: it may not even know the key, or have no history."""

logger = logging.getLogger("srb")

Result = TypeVar("Result")


class _LostError(Exception):
    """Another server can't be reached, or hangs, or has ended in the middle of its answer."""


async def session(app: web.Application) -> AsyncIterator[None]:
    """Makes the client session for the other servers, and closes it at the end.

    Their certificates are not checked, because their addresses have no names.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(ssl=False)) as app[SESSION]:
        yield


@web.middleware
async def ask_others(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware: when this server doesn't have the request that a path names, it asks the other servers.

    Raises `UnavailableError` if no server says that it has the request, and one of them can't be asked.
    """
    try:
        return await handler(request)
    except NotFoundError as error:
        if "id" not in request.match_info or HEADER in request.headers:
            raise
        refusal: SrbError = error
        for url in request.app[ENGINE].others:
            try:
                if answer := await _pass_on(request, url):
                    return answer
            except _LostError as lost:
                logger.warning("the server at %s can't be asked for %s: %s", url, route_of(request), lost)
                refusal = UnavailableError(
                    f"{error.message} on this server, and another one, which may have it, can't be asked now; "
                    "try again soon"
                )
        raise refusal from None


async def lists_of_others(request: web.Request) -> list[Any]:
    """The items of the lists that the other servers answer to the same GET."""
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
    headers = {name: value for name, value in request.headers.items() if name.title() not in _NOT_PASSED_ON}
    return request.app[SESSION].request(method, url, headers=headers | {HEADER: "srb"}, data=body)


async def _pass_on(request: web.Request, url: str) -> web.StreamResponse | None:
    """Passes another server's answer on, as it comes. Returns None if that server doesn't have the request.

    Raises `_LostError` if that server is lost before its answer begins. If it is lost later, the connection is cut.
    """
    body = await read_body(request) if BODY in request or request.can_read_body else None
    async with AsyncExitStack() as stack:
        asking = stack.enter_async_context(_ask(request, request.method, url + request.raw_path, body))
        answer = await _while_there(request, url, asking)
        if answer.status in _NOT_THERE:
            return None
        if answer.status >= 500 and not await _is_there(request, url):
            raise _LostError(f"it answers with {answer.status}")
        headers = {name: value for name, value in answer.headers.items() if name.title() not in _OF_THE_CONNECTION}
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        try:
            while piece := await _while_there(request, url, answer.content.read(PIECE_BYTES)):
                async with patience(request):
                    await response.write(piece)
            await response.write_eof()
        except _LostError as lost:
            logger.warning("the server at %s was lost while it answered %s: %s", url, route_of(request), lost)
            if request.transport:  # so that the reader sees that something is missing, and comes again
                request.transport.close()
        except ConnectionError:
            pass  # the reader has left
        return response


async def _while_there(request: web.Request, url: str, waiting: Awaitable[Result]) -> Result:
    """Waits for another server as long as it says that it has the request. Raises `_LostError`.

    An answer may come late: an object comes when the request has ended. So there is no limit for the wait itself.
    """
    task = asyncio.ensure_future(waiting)
    try:
        while not (await asyncio.wait({task}, timeout=ANSWER_SECONDS))[0]:
            if not await _is_there(request, url) and not task.done():
                raise _LostError("it doesn't answer any more")
        return task.result()
    except aiohttp.ClientError as error:
        # The error's own text may quote what was sent, and the log has nothing of that.
        raise _LostError(type(error).__name__) from None
    finally:
        task.cancel()


async def _is_there(request: web.Request, url: str) -> bool:
    """Whether another server says that it has the request that the path names."""
    path = f"/v1/completions/{quote(request.match_info['id'], safe='')}"
    with suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(ANSWER_SECONDS), _ask(request, hdrs.METH_GET, url + path) as answer:
            return bool(answer.status == 200)
    return False
