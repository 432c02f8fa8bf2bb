"""Asks the other servers in front of the same engines about requests that this server doesn't have."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import aiohttp
from aiohttp import hdrs, web

from srb.errors import NotFoundError
from srb.server.exchange import ENGINE
from srb.server.refusals import Handler

HEADER = "X-Srb-Asked-By"
"""The header of what one server asks another one. A server that gets it asks no further servers."""

SESSION = web.AppKey("session", aiohttp.ClientSession)

ANSWER_SECONDS = 5.0
"""How long another server may take to begin its answer."""

_OF_THE_CONNECTION = (hdrs.HOST, hdrs.CONNECTION, hdrs.TRANSFER_ENCODING, hdrs.CONTENT_LENGTH, hdrs.KEEP_ALIVE)


async def session(app: web.Application) -> AsyncIterator[None]:
    """Makes the client session for the other servers, and closes it at the end.

    Their certificates are not checked, because their addresses have no names.
    """
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=ANSWER_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(ssl=False)) as app[SESSION]:
        yield


@web.middleware
async def ask_others(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Middleware: when this server doesn't have the request that a path names, it asks the other servers."""
    try:
        return await handler(request)
    except NotFoundError:
        if "id" not in request.match_info or HEADER in request.headers:
            raise
        for url in request.app[ENGINE].others:
            if answer := await _pass_on(request, url):
                return answer
        raise


async def lists_of_others(request: web.Request) -> list[Any]:
    """The items of the lists that the other servers answer to the same GET."""
    if HEADER in request.headers:
        return []
    answers = await asyncio.gather(*(_fetch(request, url) for url in request.app[ENGINE].others))
    return [each for answer in answers for each in answer]


async def _fetch(request: web.Request, url: str) -> list[Any]:
    with suppress(aiohttp.ClientError, TimeoutError, json.JSONDecodeError):
        async with asyncio.timeout(ANSWER_SECONDS), _ask(request, url) as answer:
            if answer.status == 200:
                value = await answer.json()
                found: list[Any] = value["data"] if isinstance(value, dict) else value
                return found
    return []


def _ask(request: web.Request, url: str, body: bytes | None = None) -> Any:
    headers = {name: value for name, value in request.headers.items() if name.title() not in _OF_THE_CONNECTION}
    return request.app[SESSION].request(
        request.method, url + request.raw_path, headers=headers | {HEADER: "srb"}, data=body
    )


async def _pass_on(request: web.Request, url: str) -> web.StreamResponse | None:
    """Passes another server's answer on, as it comes. Returns None if that server answers 404 or can't be reached."""
    body = await request.read() if request.can_read_body else None
    try:
        async with _ask(request, url, body) as answer:
            if answer.status == 404:
                return None
            headers = {name: value for name, value in answer.headers.items() if name.title() not in _OF_THE_CONNECTION}
            response = web.StreamResponse(status=answer.status, headers=headers)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            await response.write_eof()
            return response
    except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError):
        return None
