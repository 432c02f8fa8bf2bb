"""Downloads images and sounds by their URLs (`--allow-remote-media`), safe against server-side request forgery.

A client can name an address that only this server can reach: another service of its machine, or a cloud's secrets. So
the server only connects to public addresses. An address is checked where the socket of the connection is made: after
its name is resolved, and again for each redirect. So a name can't resolve to another address in between.
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

from srb.errors import InvalidRequestError

MAX_FILES = 16
MAX_BYTES = 20 << 20
MAX_BYTES_IN_ALL = 64 << 20
"""The most files of a request, and the most bytes of one file and of all."""

SECONDS = 10.0
"""The time limit for all files of a request."""

_THREADS = ThreadPoolExecutor(MAX_FILES, "srb-names")
"""Threads for DNS lookups. A name server that doesn't answer may block them for a minute, and no others."""

_REDIRECTS = 3
_TYPES = ("image/", "audio/", "application/octet-stream", "binary/octet-stream")

_IPV6 = ipaddress.ip_network("2000::/3")
"""The part of IPv6 that the internet uses. The rest has special meanings, such as embedded IPv4 addresses."""

_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            "2001::/32",  # Teredo and 6to4: embedded IPv4 addresses, which may be private
            "2002::/16",
            "3fff::/20",  # documentation
            "192.0.0.0/24",  # public according to Python, but a cloud's metadata service is there
            "168.63.129.16/32",  # the same in another cloud
        ),
    )
)

IsAllowed = Callable[[str], bool]
"""Whether the server may connect to an IP address."""


def is_public(address: str) -> bool:
    """Whether an IP address is certainly public."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    is_used = ip.version == 4 or ip in _IPV6
    return is_used and ip.is_global and not ip.is_multicast and not any(ip in network for network in _NOT_PUBLIC)


class _RefusedError(OSError):
    pass


def _socket_to(is_allowed: IsAllowed, info: aiohttp.AddrInfoType) -> socket.socket:
    """Makes the socket of a connection, which only goes to an allowed address."""
    family, kind, proto, _, (address, *_) = info
    if not is_allowed(str(address)):
        raise _RefusedError("its address isn't public")
    return socket.socket(family, kind, proto)


class _Resolver(AbstractResolver):
    """Resolves names in threads of its own."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        find = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
        found = await asyncio.get_running_loop().run_in_executor(_THREADS, find)
        numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [
            ResolveResult(hostname=host, host=str(sockaddr[0]), port=port, family=kind, proto=proto, flags=numeric)
            for kind, _, proto, _, sockaddr in found
        ]

    async def close(self) -> None:
        """Does nothing: all requests share the threads."""


async def fetch(
    urls: Sequence[str], is_allowed: IsAllowed = is_public, *, max_bytes: int = MAX_BYTES_IN_ALL
) -> list[bytes]:
    """The files at the URLs of a request, which have at most `max_bytes` together.

    Raises `InvalidRequestError`. Its message says little, so that it reveals nothing about other networks.
    """
    if len(urls) > MAX_FILES:
        raise InvalidRequestError(
            f"the request has {len(urls)} URLs of images and sounds; the limit is {MAX_FILES}; send the others in the "
            "body, as data: URLs",
            code="invalid_media",
        )
    left = _Left(max_bytes, max_bytes)
    connector = aiohttp.TCPConnector(
        resolver=_Resolver(), use_dns_cache=False, socket_factory=partial(_socket_to, is_allowed)
    )
    async with aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
    ) as session:
        try:
            async with asyncio.timeout(SECONDS):
                return list(await asyncio.gather(*(_fetch(session, url, left) for url in urls)))
        except TimeoutError:
            raise _error(f"it took longer than {SECONDS:g} seconds") from None
        except _RefusedError as error:
            raise _error(str(error)) from None
        except aiohttp.TooManyRedirects:
            raise _error(f"it has more than {_REDIRECTS} redirects") from None
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, IndexError):  # yarl's error for http://[z]@
            raise _error("the URL must begin with http:// or https://, and be valid") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            refused = error.__cause__ if isinstance(error.__cause__, _RefusedError) else None
            raise _error(str(refused or "no response")) from None


@dataclass
class _Left:
    """How many more bytes the files of a request may have, and how many they may have in all."""

    n_bytes: int
    max_bytes: int


async def _fetch(session: aiohttp.ClientSession, url: str, left: _Left) -> bytes:
    headers = {"Accept": "image/*, audio/*", "Accept-Encoding": "identity"}
    # aiohttp refuses the last one of `max_redirects`
    async with session.get(url, max_redirects=_REDIRECTS + 1, headers=headers) as answer:
        if answer.status != 200:
            raise _RefusedError(f"the status was {answer.status}")
        if not answer.headers.get("Content-Type", _TYPES[-1]).lower().startswith(_TYPES):
            raise _RefusedError("it is neither an image nor a sound")
        return await _read(answer, left)


async def _read(answer: aiohttp.ClientResponse, left: _Left) -> bytes:
    data = bytearray()
    async for chunk in answer.content.iter_chunked(1 << 16):
        data += chunk
        if len(data) > MAX_BYTES:
            raise _RefusedError(f"it has more than {MAX_BYTES} bytes")
        left.n_bytes -= len(chunk)
        if left.n_bytes < 0:
            raise _RefusedError(f"all files of the request have more than {left.max_bytes} bytes")
    return bytes(data)


def _error(reason: str) -> InvalidRequestError:
    return InvalidRequestError(f"an image or a sound can't be fetched: {reason}", code="invalid_media")
