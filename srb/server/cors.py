"""CORS: the web pages of which origins may read what this server answers."""

import re
from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web

from srb.errors import SettingsError

LOCAL = "localhost"
ANY = "*"

ORIGINS = web.AppKey("origins", frozenset[str])

_LOCAL_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", re.IGNORECASE)
_ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://[^\s/?#@,]+", re.IGNORECASE)

_PREFLIGHT = {
    "Access-Control-Allow-Methods": "*",
    "Access-Control-Allow-Headers": "*, Authorization",  # which the star leaves out
    "Access-Control-Max-Age": "600",
}


def read_origins(text: str) -> frozenset[str]:
    """The origins of `--cors-origins`. Raises `SettingsError`."""
    origins = frozenset(origin.strip().lower() for origin in text.split(",") if origin.strip())
    for origin in origins - {ANY, LOCAL}:
        if not _ORIGIN.fullmatch(origin):
            raise SettingsError(
                f"--cors-origins takes {ANY}, {LOCAL} and origins such as https://example.com:8080, without a path "
                f"and with commas between; got {origin!r}"
            )
    return origins


def _allows(origins: frozenset[str], origin: str) -> bool:
    local = LOCAL in origins and _LOCAL_ORIGIN.fullmatch(origin)
    return bool(local) or ANY in origins or origin.lower() in origins


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Tells the browser that the page may read this. A signal and not a middleware, because streams are under way
    before their handler returns."""
    response.headers.add(hdrs.VARY, "Origin")
    origin = request.headers.get(hdrs.ORIGIN)
    origins = request.app[ORIGINS]
    if origin is not None and _allows(origins, origin):
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = ANY if ANY in origins else origin
        response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = "X-Request-Id, x-srb-ignored, Retry-After"


@web.middleware
async def answer_preflight(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answers a browser that asks if its page may send a request. The answer is the same for every path and method."""
    headers = request.headers
    if request.method != hdrs.METH_OPTIONS or hdrs.ACCESS_CONTROL_REQUEST_METHOD not in headers:
        return await handler(request)
    response = web.Response()
    if _allows(request.app[ORIGINS], headers.get(hdrs.ORIGIN, "")):
        response.headers.update(_PREFLIGHT)
        if "Access-Control-Request-Private-Network" in headers:  # a public page that asks for a server at home
            response.headers["Access-Control-Allow-Private-Network"] = "true"
    return response
