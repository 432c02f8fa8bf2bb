"""Decides by their origin which web pages may read this server's answers (CORS), and may change or run something."""

import logging
import re

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from srb.errors import OriginError, SettingsError
from srb.server.guards.hosts import split_address
from srb.wire.request.read import show

logger = logging.getLogger("srb")

LOCAL = "localhost"
ANY = "*"

ORIGINS = web.AppKey("origins", frozenset[str])
LOGGED = web.AppKey("logged_origins", set[str])
"""The refused origins that were logged already; at most MAX_LOGGED."""

MAX_LOGGED = 100

_LOCAL_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", re.IGNORECASE)
_ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://[^\s/?#@,]+", re.IGNORECASE)

_READS = {hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS}

_PREFLIGHT = {
    "Access-Control-Allow-Methods": "*",
    "Access-Control-Allow-Headers": "*, Authorization",  # the star doesn't include Authorization
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
    """Adds the headers by which a browser lets the page read this answer. If the page may not, the log says so.

    This is a signal of aiohttp and not a middleware, because a stream begins before its handler returns.
    """
    response.headers.add(hdrs.VARY, "Origin")
    origin = request.headers.get(hdrs.ORIGIN)
    origins = request.app[ORIGINS]
    if origin is not None and _allows(origins, origin):
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = ANY if ANY in origins else origin
        response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = "X-Request-Id, x-srb-ignored, Retry-After"
    elif origin is not None and not _is_own(request, origin):
        _log(origin, request.app)


def _log(origin: str, app: web.Application) -> None:
    """Logs a refused origin once, with the option that allows it: the page itself shows only that it can't connect."""
    logged, origins = app[LOGGED], app[ORIGINS]
    if origin in logged or len(logged) >= MAX_LOGGED or not _ORIGIN.fullmatch(origin):
        return
    logged.add(origin)
    allowed = ",".join([*sorted(origins), origin])
    logger.warning("a page of the origin %s can't use this server; --cors-origins %s lets it in", origin, allowed)


@web.middleware
async def answer_preflight(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers a browser that asks if its page may send a request. The answer is the same for every path and method."""
    headers = request.headers
    if request.method != hdrs.METH_OPTIONS or hdrs.ACCESS_CONTROL_REQUEST_METHOD not in headers:
        return await handler(request)
    response = web.Response()
    if _allows(request.app[ORIGINS], headers.get(hdrs.ORIGIN, "")):
        response.headers.update(_PREFLIGHT)
        if "Access-Control-Request-Private-Network" in headers:  # a public page wants to use a server at home
            response.headers["Access-Control-Allow-Private-Network"] = "true"
    return response


@web.middleware
async def check_origin(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Raises `OriginError` if a page of an origin that isn't allowed tries to change or run something.

    CORS only keeps such a page from reading the answer. A browser sends the page's plain POST without asking first.
    Clients other than browsers send no Origin.
    """
    origin = request.headers.get(hdrs.ORIGIN)
    if not (
        origin is None or request.method in _READS or _allows(request.app[ORIGINS], origin) or _is_own(request, origin)
    ):
        raise OriginError(
            f"pages of the origin {show(origin)} may not use this server; name it in --cors-origins to let them"
        )
    return await handler(request)


def _is_own(request: web.Request, origin: str) -> bool:
    """Whether the request comes from this server's own page, or from no page at all.

    Sec-Fetch-Site can be trusted, because no page can set it. A browser doesn't send it over plain HTTP to another
    machine; then the hosts and ports are compared. The schemes are not compared, because a proxy may have removed TLS.
    """
    if request.headers.get("Sec-Fetch-Site") in ("same-origin", "none"):
        return True
    scheme, _, address = origin.lower().partition("://")
    return bool(address) and split_address(address, scheme) == split_address(request.headers.get(hdrs.HOST, ""), scheme)
