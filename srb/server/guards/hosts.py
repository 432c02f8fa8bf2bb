"""Checks the `Host` of a request: the name under which a browser believes that it has reached this server.

While a page of evil.example is open, its owner can let that name stand for 127.0.0.1 (DNS rebinding). Then the browser
takes this server for the page's own, and lets the page read the answers. Neither Origin nor CORS stops this, because
for the browser the origins are the same. But `Host` still says evil.example, so such a request is refused.
"""

import ipaddress
import re
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from srb.errors import MisdirectedRequestError, SettingsError
from srb.options.settings import Settings
from srb.wire.request.read import show

ANY = "*"

_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.IGNORECASE)
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Hosts:
    """The names that are allowed beside localhost and IP addresses, in lower case; `*` stands for all.

    everywhere: whether names are checked for every connection, and not only for those to a loopback address.
    """

    names: frozenset[str] = frozenset()
    everywhere: bool = False


LOCAL = Hosts()

HOSTS = web.AppKey("hosts", Hosts)


def read_hosts(settings: Settings) -> Hosts:
    """The hosts of `--allowed-hosts`, `--host` and this machine's own name. Raises `SettingsError`."""
    given = (settings.allowed_hosts or "").lower().split(",")
    names = {name.strip().removesuffix(".") for name in given if name.strip()}
    for name in names - {ANY}:
        if not _NAME.fullmatch(name):
            raise SettingsError(
                f"--allowed-hosts takes {ANY} and host names such as srb.example, without scheme and port and with "
                f"commas between; localhost and IP addresses are always allowed; got {name!r}"
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
    if not host or name == "localhost" or name.endswith(".localhost") or name in names or ANY in names:
        return True
    try:
        ipaddress.ip_address(name)  # an IP address is no name, so DNS rebinding isn't possible
    except ValueError:
        return False
    return True


def _came_by_loopback(request: web.Request) -> bool:
    address = request.transport.get_extra_info("sockname") if request.transport else None
    return isinstance(address, tuple) and ipaddress.ip_address(address[0]).is_loopback
