"""Access middleware: API keys, `Host` names (against DNS rebinding), and origins of web pages (CORS).

A browser believes that it has reached this server under the name in `Host`. While a page of evil.example is open, its
owner can let that name resolve to 127.0.0.1 (DNS rebinding). The browser then takes this server for the page's own, and
lets the page read the responses. Neither Origin nor CORS stops this, because the origins are the same. But `Host` still
is evil.example, so such a request is refused.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from srb.errors import AuthenticationError, MisdirectedRequestError, OriginError, SettingsError
from srb.options.settings import Settings
from srb.server.http.sse import is_websocket
from srb.wire.request.read import show

logger = logging.getLogger("srb")

API_KEYS = web.AppKey("api_keys", tuple[bytes, ...])

SHARES_PROMPTS = web.AppKey("shares_prompts", bool)
"""Whether prefix caching works across API keys (`--share-prompts all`)."""

OPEN = {"/", "/web/{file}", "/health", "/v1/health", "/openapi.json", "/docs"}
"""Paths that may be read without a key: the page, health checks, and the description of the API."""

HEADER = "x-api-key"

KEY_PROTOCOL = "srb.key."
"""A page can't set headers of a WebSocket. It names this as a protocol, followed by its key in hexadecimal."""

_OWNER = web.RequestKey("owner", str)


def is_open(request: web.Request) -> bool:
    """Whether a request reads a path that needs no key."""
    resource = request.match_info.route.resource
    reads = request.method in (hdrs.METH_GET, hdrs.METH_HEAD)
    return reads and resource is not None and resource.canonical in OPEN


@web.middleware
async def check_key(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Raises `AuthenticationError` if a request needs a key and has none of the server's keys."""
    keys = request.app[API_KEYS]
    if keys and not is_open(request):
        sent = _sent_keys(request)
        # Every pair is compared, in constant time, so that the time of the response reveals nothing about the keys.
        matching = [key for each in sent for key in keys if hmac.compare_digest(each, key)]
        if not matching:
            problem = "is not one of this server's" if sent else "is missing"
            raise AuthenticationError(
                f"the API key {problem}; send one as 'Authorization: Bearer KEY' or '{HEADER}: KEY'"
            )
        request[_OWNER] = hashlib.sha256(matching[0]).hexdigest()
    return await handler(request)


def owner_of(request: web.Request) -> str | None:
    """The owner of a request: the hash of its API key, or None if the server has none. Other owners can't see it."""
    return request.get(_OWNER)


async def shared_within(request: web.Request) -> str:
    """`CompletionRequest.shared_within` for this request's key; empty if all keys share their prefixes."""
    owner = owner_of(request)
    # In a thread, because the first call takes a while.
    return "" if owner is None or request.app[SHARES_PROMPTS] else await asyncio.to_thread(_name_of, owner)


@cache
def _name_of(owner: str) -> str:
    """A stable name of an owner, for files that outlive the key. Each attempt to guess its key takes some 0.01 s."""
    return hashlib.pbkdf2_hmac("sha256", owner.encode(), b"srb: shared_within", 100_000, 16).hex()


def _sent_keys(request: web.Request) -> list[bytes]:
    scheme, _, credentials = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    sent = [credentials.strip()] if scheme.lower() == "bearer" else []
    sent += request.headers.getall(HEADER, [])
    protocols = request.headers.get(hdrs.SEC_WEBSOCKET_PROTOCOL, "").replace(",", " ").split()
    named = [each.removeprefix(KEY_PROTOCOL) for each in protocols if each.startswith(KEY_PROTOCOL)]
    with suppress(ValueError):
        sent += [bytes.fromhex(each).decode() for each in named]
    return [key.encode(errors="surrogateescape") for key in sent if key]


ANY_HOST = "*"

_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.IGNORECASE)
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Hosts:
    """Allowed host names, besides localhost and IP addresses, in lower case. `*` stands for all.

    everywhere: whether names are checked on every connection, and not only on those to a loopback address.
    """

    names: frozenset[str] = frozenset()
    everywhere: bool = False


LOCAL_HOSTS = Hosts()

HOSTS = web.AppKey("hosts", Hosts)


def read_hosts(settings: Settings) -> Hosts:
    """The names of `--allowed-hosts` and `--host`, and this machine's own. Raises `SettingsError`."""
    given = (settings.allowed_hosts or "").lower().split(",")
    names = {name.strip().removesuffix(".") for name in given if name.strip()}
    for name in names - {ANY_HOST}:
        if not _NAME.fullmatch(name):
            raise SettingsError(
                f"--allowed-hosts takes {ANY_HOST} and host names such as srb.example, without scheme and port, "
                f"separated by commas; localhost and IP addresses are always allowed; got {name!r}"
            )
    own = {*settings.host.lower().split(","), socket.gethostname().lower()}
    return Hosts(frozenset(names | own), everywhere=bool(names))


@web.middleware
async def check_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Raises `MisdirectedRequestError` if the Host isn't allowed. Without a Host, no browser sent the request."""
    hosts, host = request.app[HOSTS], request.headers.get(hdrs.HOST, "")
    if (hosts.everywhere or is_loopback(request)) and not _is_known(host, hosts.names):
        raise MisdirectedRequestError(
            f"the Host {show(host)} isn't one of this server's names; if it should be, start the server with "
            "--allowed-hosts and that name, or use localhost or an IP address"
        )
    return await handler(request)


def split_address(address: str, scheme: str = "") -> tuple[str, int | None]:
    """The host in lower case and the port, of an address as in Host, or in Origin after its scheme."""
    try:
        parts = urlsplit(f"//{address}")
        return (parts.hostname or "").removesuffix("."), parts.port or _PORTS.get(scheme)
    except ValueError:
        return address, None


def _is_known(host: str, names: frozenset[str]) -> bool:
    name, _ = split_address(host)
    if not host or name == "localhost" or name.endswith(".localhost") or name in names or ANY_HOST in names:
        return True
    try:
        ipaddress.ip_address(name)  # an IP address isn't resolved, so DNS rebinding is impossible
    except ValueError:
        return False
    return True


def is_loopback(request: web.Request) -> bool:
    address = request.transport.get_extra_info("sockname") if request.transport else None
    return isinstance(address, tuple) and ipaddress.ip_address(address[0]).is_loopback


LOCAL_ORIGINS = "localhost"
ANY_ORIGIN = "*"

ORIGINS = web.AppKey("origins", frozenset[str])
LOGGED = web.AppKey("logged_origins", set[str])
"""Refused origins that were logged already; at most MAX_LOGGED."""

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
    for origin in origins - {ANY_ORIGIN, LOCAL_ORIGINS}:
        if not _ORIGIN.fullmatch(origin):
            raise SettingsError(
                f"--cors-origins takes {ANY_ORIGIN}, {LOCAL_ORIGINS} and origins such as https://example.com:8080, "
                f"without a path, separated by commas; got {origin!r}"
            )
    return origins


def _allows(origins: frozenset[str], origin: str) -> bool:
    local = LOCAL_ORIGINS in origins and _LOCAL_ORIGIN.fullmatch(origin)
    return bool(local) or ANY_ORIGIN in origins or origin.lower() in origins


async def add_cors_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Adds the headers that let the page read this response, or logs that it may not.

    This is a signal of aiohttp and not a middleware, because a stream begins before its handler returns.
    """
    response.headers.add(hdrs.VARY, "Origin")
    origin = request.headers.get(hdrs.ORIGIN)
    origins = request.app[ORIGINS]
    if origin is not None and _allows(origins, origin):
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = ANY_ORIGIN if ANY_ORIGIN in origins else origin
        response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = "X-Request-Id, x-srb-ignored, Retry-After"
    elif origin is not None and not _is_own(request, origin):
        _log(origin, request.app)


def _log(origin: str, app: web.Application) -> None:
    """Logs a refused origin once, with the option that allows it. The page itself only sees a failed connection."""
    logged, origins = app[LOGGED], app[ORIGINS]
    if origin in logged or len(logged) >= MAX_LOGGED or not _ORIGIN.fullmatch(origin):
        return
    logged.add(origin)
    allowed = ",".join([*sorted(origins), origin])
    logger.warning("a page of the origin %s can't use this server; to allow it, add --cors-origins %s", origin, allowed)


@web.middleware
async def answer_preflight(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers a browser's preflight request, in the same way for every path and method."""
    headers = request.headers
    if request.method != hdrs.METH_OPTIONS or hdrs.ACCESS_CONTROL_REQUEST_METHOD not in headers:
        return await handler(request)
    response = web.Response()
    if _allows(request.app[ORIGINS], headers.get(hdrs.ORIGIN, "")):
        response.headers.update(_PREFLIGHT)
        # A public page wants to use a server in a private network.
        if "Access-Control-Request-Private-Network" in headers:
            response.headers["Access-Control-Allow-Private-Network"] = "true"
    return response


@web.middleware
async def check_origin(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Raises `OriginError` if a page of an origin that isn't allowed tries to change or run something.

    CORS only keeps such a page from reading the response: a browser sends a plain POST without a preflight request.
    It doesn't keep it from reading a WebSocket. Other clients send no Origin.
    """
    origin = request.headers.get(hdrs.ORIGIN)
    only_reads = request.method in _READS and not is_websocket(request)
    if not (origin is None or only_reads or _allows(request.app[ORIGINS], origin) or _is_own(request, origin)):
        raise OriginError(
            f"pages of the origin {show(origin)} may not use this server; to allow them, add it to --cors-origins"
        )
    return await handler(request)


def _is_own(request: web.Request, origin: str) -> bool:
    """Whether the request comes from this server's own page, or from no page at all.

    Sec-Fetch-Site can be trusted, because no page can set it. A browser doesn't send it over plain HTTP to another
    machine; then hosts and ports are compared, but not schemes, because a proxy may terminate TLS.
    """
    if request.headers.get("Sec-Fetch-Site") in ("same-origin", "none"):
        return True
    scheme, _, address = origin.lower().partition("://")
    return bool(address) and split_address(address, scheme) == split_address(request.headers.get(hdrs.HOST, ""), scheme)
