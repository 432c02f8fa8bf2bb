"""The web pages of which origins may use this server: read what it answers (CORS), and change or run something."""

import logging
import re
from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web

from srb.errors import OriginError, SettingsError
from srb.server.hosts import split_address
from srb.wire.read import show

logger = logging.getLogger("srb")

LOCAL = "localhost"
ANY = "*"

ORIGINS = web.AppKey("origins", frozenset[str])
LOGGED = web.AppKey("logged_origins", set[str])
"""The refused origins that the log has by now; at most MAX_LOGGED."""

MAX_LOGGED = 100

_LOCAL_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?", re.IGNORECASE)
_ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://[^\s/?#@,]+", re.IGNORECASE)

_READS = {hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS}

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
    """Tells the browser that the page may read this, or the log that it may not. A signal and not a middleware, because
    streams are under way before their handler returns."""
    response.headers.add(hdrs.VARY, "Origin")
    origin = request.headers.get(hdrs.ORIGIN)
    origins = request.app[ORIGINS]
    if origin is not None and _allows(origins, origin):
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = ANY if ANY in origins else origin
        response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = "X-Request-Id, x-srb-ignored, Retry-After"
    elif origin is not None and not _is_own(request, origin):
        _log(origin, request.app)


def _log(origin: str, app: web.Application) -> None:
    """Logs a refused origin once, with the option that lets it in: people see only that their page can't connect."""
    logged, origins = app[LOGGED], app[ORIGINS]
    if origin in logged or len(logged) >= MAX_LOGGED or not _ORIGIN.fullmatch(origin):
        return
    logged.add(origin)
    allowed = ",".join([*sorted(origins), origin])
    logger.warning("a page of the origin %s can't use this server; --cors-origins %s lets it in", origin, allowed)


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


@web.middleware
async def check_origin(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuses what a page of an origin that isn't allowed would change or run. Raises `OriginError`.

    CORS only keeps such a page from reading the answer: a browser sends its plain POST without asking first. Clients
    other than browsers send no Origin.
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

    A browser that says so is right: no page can set this header. Over plain HTTP to another machine it says nothing;
    there the hosts and ports are compared. The schemes are not, since a proxy may have taken TLS off.
    """
    if request.headers.get("Sec-Fetch-Site") in ("same-origin", "none"):
        return True
    scheme, _, address = origin.lower().partition("://")
    return bool(address) and split_address(address, scheme) == split_address(request.headers.get(hdrs.HOST, ""), scheme)
