"""Brings the images and sounds in the bodies of requests into prompts."""

from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from srb.engine.prompts.media import Media
from srb.errors import InvalidRequestError
from srb.server.http.bodies import MAX_BODY_BYTES
from srb.server.http.exchange import ENGINE
from srb.server.http.lookups import known
from srb.wire.request.media import File, Part, Take

_MAX_BODY_BYTES = 32 << 20
"""The largest body for a model that takes images: two photographs in base64, for example."""

Fetch = Callable[[tuple[str, ...]], Awaitable[list[bytes]]]

FETCH: web.AppKey[Fetch | None] = web.AppKey("fetch")
"""Fetches the files at the addresses that requests name; None if this isn't allowed."""


def body_limit(app: web.Application) -> int:
    """How many bytes the body of a request that generates may have. Raises `UnavailableError`."""
    return _MAX_BODY_BYTES if app[ENGINE].media_kinds else MAX_BODY_BYTES


def media_taker(app: web.Application) -> Take:
    """A function that makes a prompt of texts and files. Only functions that `lookups.read` calls may use it."""
    engine, allowed = app[ENGINE], app[FETCH]
    fetch = known(allowed) if allowed else None

    def take(parts: Sequence[Part]) -> tuple[tuple[int, ...], tuple[Media, ...]]:
        fetched: dict[str, bytes] = {}
        if urls := tuple(dict.fromkeys(part.url for part in parts if isinstance(part, File) and part.url is not None)):
            if not engine.media_kinds:
                return engine.tokenize_parts(())  # raises the error that says why the model takes no files
            if fetch is None:
                raise InvalidRequestError(
                    "this server fetches no images and sounds from elsewhere; send a URL that begins with data:, or "
                    "start it with --allow-remote-media",
                    code="unsupported_media",
                )
            fetched = dict(zip(urls, fetch(urls), strict=True))
        return engine.tokenize_parts(
            [part if isinstance(part, str) else part.data if part.url is None else fetched[part.url] for part in parts]
        )

    return take
