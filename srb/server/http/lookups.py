"""Looks up what bodies name: images and sounds at URLs, stored requests and responses.

Bodies are parsed in worker threads, of which there are few. A thread that waited for the event loop might wait forever:
the loop may need a worker thread itself while all of them wait. So parsing stops where a lookup is needed. The event
loop looks it up, and then the body is parsed again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import TypeVar

from aiohttp import web

from srb.engine.media import Media
from srb.errors import InvalidRequestError
from srb.server.http.bodies import MAX_BODY_BYTES
from srb.server.http.exchange import ENGINE
from srb.wire.request.media import File, Part, Take

Name = TypeVar("Name", bound=Hashable)
Found = TypeVar("Found")
Result = TypeVar("Result")


class _LookupNeededError(Exception):
    def __init__(self, look_up: Callable[[], Awaitable[None]]) -> None:
        self.look_up = look_up


def lookup(find: Callable[[Name], Awaitable[Found]]) -> Callable[[Name], Found]:
    """`find` as a function for worker threads, which never waits. Only functions that `with_lookups` calls may use it.

    It caches results, so make a new one for each body.
    """
    results: dict[Name, Found] = {}

    async def look_up(name: Name) -> None:
        results[name] = await find(name)

    def get(name: Name) -> Found:
        if name not in results:
            raise _LookupNeededError(lambda: look_up(name))
        return results[name]

    return get


async def with_lookups(function: Callable[[], Result]) -> Result:
    """Calls a function in a worker thread, and again after each lookup that it needs.

    Raises what the function raises, and what the `find` of a `lookup` raises.
    """
    while True:
        try:
            return await asyncio.to_thread(function)
        except _LookupNeededError as error:
            look_up = error.look_up
        await look_up()


_MAX_BODY_BYTES = 32 << 20
"""The largest body for a model that takes images: for example, two photographs in base64."""

Fetch = Callable[[tuple[str, ...]], Awaitable[list[bytes]]]

FETCH: web.AppKey[Fetch | None] = web.AppKey("fetch")
"""Downloads files by their URLs. None if this isn't allowed."""


def body_limit(app: web.Application) -> int:
    """The largest body of a request that generates, in bytes. Raises `UnavailableError`."""
    return _MAX_BODY_BYTES if app[ENGINE].model.media_kinds else MAX_BODY_BYTES


def media_taker(app: web.Application) -> Take:
    """A function that makes a prompt of texts and files. Only functions that `with_lookups` calls may use it."""
    engine, allowed = app[ENGINE], app[FETCH]
    fetch = lookup(allowed) if allowed else None

    def take(parts: Sequence[Part]) -> tuple[tuple[int, ...], tuple[Media, ...]]:
        fetched: dict[str, bytes] = {}
        if urls := tuple(dict.fromkeys(part.url for part in parts if isinstance(part, File) and part.url is not None)):
            if not engine.model.media_kinds:
                return engine.model.tokenize_parts(())  # raises the error
            if fetch is None:
                raise InvalidRequestError(
                    "this server downloads no images and sounds; send a URL that begins with data:, or start it with "
                    "--allow-remote-media",
                    code="unsupported_media",
                )
            fetched = dict(zip(urls, fetch(urls), strict=True))
        return engine.model.tokenize_parts(
            [part if isinstance(part, str) else part.data if part.url is None else fetched[part.url] for part in parts]
        )

    return take
