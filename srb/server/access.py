"""Decides by their origin which web pages may read this server's answers (CORS), and may change or run something."""

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import re
import socket
from dataclasses import dataclass
from functools import cache
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from srb.errors import AuthenticationError, MisdirectedRequestError, OriginError, SettingsError
from srb.options.settings import Settings
from srb.wire.request.read import show

# Checks API keys, which clients send as those of OpenAI and of llama-server do, and says what a key has for itself.

API_KEYS = web.AppKey("api_keys", tuple[bytes, ...])

SHARES_PROMPTS = web.AppKey("shares_prompts", bool)
"""Whether requests with different keys begin with what the others have evaluated (`--share-prompts all`)."""

OPEN = {"/", "/web/{file}", "/health", "/v1/health", "/openapi.json", "/docs"}
"""The paths that may be read without a key: the page, what supervisors ask for, and what says how to send a key."""

HEADER = "x-api-key"

_OWNER = web.RequestKey("owner", str)


def is_open(request: web.Request) -> bool:
    """Whether a request needs no key, because it reads a path of `OPEN`."""
    resource = request.match_info.route.resource
    reads = request.method in (hdrs.METH_GET, hdrs.METH_HEAD)
    return reads and resource is not None and resource.canonical in OPEN


@web.middleware
async def check_key(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Lets requests pass that have one of the keys or need none. Raises `AuthenticationError` for all others."""
    keys = request.app[API_KEYS]
    if keys and not is_open(request):
        sent = _sent_keys(request)
        # Every pair is compared, each in constant time. So the time of the answer tells nothing about the keys.
        matching = [key for each in sent for key in keys if hmac.compare_digest(each, key)]
        if not matching:
            problem = "is not one of this server's" if sent else "is missing"
            raise AuthenticationError(
                f"the API key {problem}; send one as 'Authorization: Bearer KEY' or '{HEADER}: KEY'"
            )
        request[_OWNER] = hashlib.sha256(matching[0]).hexdigest()
    return await handler(request)


def owner_of(request: web.Request) -> str | None:
    """The owner of a request: the hash of its key, or None if the server has no keys. Other owners can't see it."""
    return request.get(_OWNER)


async def shared_within(request: web.Request) -> str:
    """The `CompletionRequest.shared_within` of what comes with this request's key; empty where all share everything."""
    owner = owner_of(request)
    # In a thread, because the first time takes a while.
    return "" if owner is None or request.app[SHARES_PROMPTS] else await asyncio.to_thread(_name_of, owner)


@cache
def _name_of(owner: str) -> str:
    """A name of an owner for files that outlive the key.

    It is always the same for the same key. To guess a key by it takes some hundredths of a second for each guess.
    """
    return hashlib.pbkdf2_hmac("sha256", owner.encode(), b"srb: shared_within", 100_000, 16).hex()


def _sent_keys(request: web.Request) -> list[bytes]:
    scheme, _, credentials = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    sent = [credentials.strip()] if scheme.lower() == "bearer" else []
    sent += request.headers.getall(HEADER, [])
    return [key.encode(errors="surrogateescape") for key in sent if key]


# Checks the `Host` of a request: the name under which a browser believes that it has reached this server. While a
# page of evil.example is open, its owner can let that name stand for 127.0.0.1 (DNS rebinding). Then the browser
# takes this server for the page's own, and lets the page read the answers. Neither Origin nor CORS stops this,
# because for the browser the origins are the same. But `Host` still says evil.example, so such a request is refused.

ANY_HOST = "*"

_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.IGNORECASE)
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Hosts:
    """The names that are allowed beside localhost and IP addresses, in lower case; `*` stands for all.

    everywhere: whether names are checked for every connection, and not only for those to a loopback address.
    """

    names: frozenset[str] = frozenset()
    everywhere: bool = False


LOCAL_HOSTS = Hosts()

HOSTS = web.AppKey("hosts", Hosts)


def read_hosts(settings: Settings) -> Hosts:
    """The hosts of `--allowed-hosts`, `--host` and this machine's own name. Raises `SettingsError`."""
    given = (settings.allowed_hosts or "").lower().split(",")
    names = {name.strip().removesuffix(".") for name in given if name.strip()}
    for name in names - {ANY_HOST}:
        if not _NAME.fullmatch(name):
            raise SettingsError(
                f"--allowed-hosts takes {ANY_HOST} and host names such as srb.example, without scheme and port and "
                f"with commas between; localhost and IP addresses are always allowed; got {name!r}"
            )
    own = {*settings.host.lower().split(","), socket.gethostname().lower()}
    return Hosts(frozenset(names | own), everywhere=bool(names))


@web.middleware
async def check_host(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Lets a request pass if its Host is known, or if it has none, because every browser sends one.

    Raises `MisdirectedRequestError` for all others.
    """
    hosts, host = request.app[HOSTS], request.headers.get(hdrs.HOST, "")
    if (hosts.everywhere or _came_by_loopback(request)) and not _is_known(host, hosts.names):
        raise MisdirectedRequestError(
            f"the Host {show(host)} isn't one of this server's names; if it should be, start the server with "
            "--allowed-hosts and that name, or use localhost or an IP address"
        )
    return await handler(request)


def split_address(address: str, scheme: str = "") -> tuple[str, int | None]:
    """The host, in lower case, and the port of an address as Host has it, or Origin behind its scheme."""
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
        ipaddress.ip_address(name)  # an IP address is no name, so DNS rebinding isn't possible
    except ValueError:
        return False
    return True


def _came_by_loopback(request: web.Request) -> bool:
    address = request.transport.get_extra_info("sockname") if request.transport else None
    return isinstance(address, tuple) and ipaddress.ip_address(address[0]).is_loopback


logger = logging.getLogger("srb")

LOCAL_ORIGINS = "localhost"
ANY_ORIGIN = "*"

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
    for origin in origins - {ANY_ORIGIN, LOCAL_ORIGINS}:
        if not _ORIGIN.fullmatch(origin):
            raise SettingsError(
                f"--cors-origins takes {ANY_ORIGIN}, {LOCAL_ORIGINS} and origins such as https://example.com:8080, "
                f"without a path and with commas between; got {origin!r}"
            )
    return origins


def _allows(origins: frozenset[str], origin: str) -> bool:
    local = LOCAL_ORIGINS in origins and _LOCAL_ORIGIN.fullmatch(origin)
    return bool(local) or ANY_ORIGIN in origins or origin.lower() in origins


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Adds the headers by which a browser lets the page read this answer. If the page may not, the log says so.

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
