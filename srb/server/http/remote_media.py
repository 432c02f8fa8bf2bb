"""Fetches images and sounds from other addresses (`--allow-remote-media`), without opening a way into this network.

A stranger can name an address that only this server can reach: another service of its machine, or a cloud's secrets.
So the server only connects to public addresses. An address is checked where the connection is made: after its name was
resolved, and anew for each redirect. So a name can't stand for another address in between.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from srb.errors import InvalidRequestError

MAX_FILES = 16
MAX_BYTES = 20 << 20
MAX_BYTES_IN_ALL = 64 << 20
"""How many files a request may name, and how many bytes one of them and all of them may have."""

SECONDS = 10.0
"""How long fetching all files of a request may take."""

_THREADS = ThreadPoolExecutor(MAX_FILES, "srb-names")
"""They look names up. A name server that doesn't answer may hold them for a minute, and no other threads."""

_REDIRECTS = 3
_TYPES = ("image/", "audio/", "application/octet-stream", "binary/octet-stream")

_IPV6 = ipaddress.ip_network("2000::/3")
"""The part of IPv6 that the internet uses. All else has a meaning of its own, such as an IPv4 address inside."""

_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            "2001::/32",  # Teredo and 6to4: an IPv4 address inside, which might not be public
            "2002::/16",
            "3fff::/20",  # for examples in documents
            "192.0.0.0/24",  # Python takes some of it for public, and a cloud tells its secrets there
            "168.63.129.16/32",  # the same in another cloud
        ),
    )
)

IsAllowed = Callable[[str], bool]
"""Says whether the server may connect to an IP address."""


def is_public(address: str) -> bool:
    """Whether an IP address is certainly a public one."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    is_used = ip.version == 4 or ip in _IPV6
    return is_used and ip.is_global and not ip.is_multicast and not any(ip in network for network in _NOT_PUBLIC)


class _RefusedError(Exception):
    pass


class _Resolver(AbstractResolver):
    """Resolves names, but only to addresses that are allowed."""

    def __init__(self, is_allowed: IsAllowed) -> None:
        self._is_allowed = is_allowed

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        find = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        found = await asyncio.get_running_loop().run_in_executor(_THREADS, find)
        numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        allowed = [
            ResolveResult(hostname=host, host=str(place[0]), port=port, family=kind, proto=proto, flags=numeric)
            for kind, _, proto, _, place in found
            if self._is_allowed(str(place[0]))
        ]
        if not allowed:
            raise _RefusedError("its address isn't a public one")
        return allowed

    async def close(self) -> None:
        """Does nothing: the threads are for all requests."""


async def fetch(urls: Sequence[str], is_allowed: IsAllowed = is_public) -> list[bytes]:
    """The contents of the files at these addresses, which are all that a request names.

    Raises `InvalidRequestError`. Its message says little, so that nobody learns from it what is in other networks.
    """
    if len(urls) > MAX_FILES:
        raise InvalidRequestError(
            f"the request names {len(urls)} images and sounds by their addresses; the limit is {MAX_FILES}; send the "
            "others in the body, as data: URLs",
            code="invalid_media",
        )
    left = _Left(MAX_BYTES_IN_ALL)
    connector = aiohttp.TCPConnector(resolver=_Resolver(is_allowed), use_dns_cache=False)
    async with aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
    ) as session:
        try:
            async with asyncio.timeout(SECONDS):
                return list(await asyncio.gather(*(_fetch(session, url, is_allowed, left) for url in urls)))
        except TimeoutError:
            raise _error(f"that took longer than {SECONDS:g} seconds") from None
        except _RefusedError as error:
            raise _error(str(error)) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            refused = error.__cause__ if isinstance(error.__cause__, _RefusedError) else None
            raise _error(str(refused or "no answer came")) from None


@dataclass
class _Left:
    """How many bytes the files of a request may still have."""

    n_bytes: int


async def _fetch(session: aiohttp.ClientSession, url: str, is_allowed: IsAllowed, left: _Left) -> bytes:
    place = URL(url)
    for _ in range(_REDIRECTS + 1):
        _check(place, is_allowed)
        headers = {"Accept": "image/*, audio/*", "Accept-Encoding": "identity"}
        async with session.get(place, allow_redirects=False, headers=headers) as answer:
            if answer.status in (301, 302, 303, 307, 308):
                place = place.join(URL(answer.headers.get("Location", "")))
                continue
            if answer.status != 200:
                raise _RefusedError(f"the answer was {answer.status}")
            if not answer.headers.get("Content-Type", _TYPES[-1]).lower().startswith(_TYPES):
                raise _RefusedError("what is there is neither an image nor a sound")
            return await _read(answer, left)
    raise _RefusedError(f"it leads elsewhere more than {_REDIRECTS} times")


async def _read(answer: aiohttp.ClientResponse, left: _Left) -> bytes:
    data = bytearray()
    async for chunk in answer.content.iter_chunked(1 << 16):
        data += chunk
        if len(data) > MAX_BYTES:
            raise _RefusedError(f"it has more than {MAX_BYTES} bytes")
        left.n_bytes -= len(chunk)
        if left.n_bytes < 0:
            raise _RefusedError(f"all files of the request have more than {MAX_BYTES_IN_ALL} bytes")
    return bytes(data)


def _check(place: URL, is_allowed: IsAllowed) -> None:
    """Refuses a URL that may not be fetched. An IP address is checked here, because `_Resolver` only sees names."""
    host = place.host or ""
    if place.scheme not in ("http", "https") or not host:
        raise _RefusedError("its address begins neither with http:// nor with https://")
    # Systems take 0x7f.1 or 2130706433 for IP addresses, too. The last part of all such forms begins with a digit.
    is_number = ":" in host or host.rstrip(".").rsplit(".", 1)[-1][:1].isdigit()
    if is_number and not is_allowed(host):
        raise _RefusedError("its address isn't a public one")


def _error(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"an image or a sound can't be fetched: {reason}", code="invalid_media")
