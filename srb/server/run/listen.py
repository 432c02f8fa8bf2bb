"""Opens the address or the Unix socket where the server listens, with TLS or without."""

import asyncio
import ipaddress
import logging
import os
import shlex
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from srb.errors import SettingsError
from srb.options.settings import Settings
from srb.server.http.runner import Runner

logger = logging.getLogger("srb")

SOCKET_UMASK = 0o117
"""Only the owner and the group of a Unix socket may connect: a proxy in front of the server, for example."""


@asynccontextmanager
async def listening(runner: Runner, settings: Settings) -> AsyncIterator[None]:
    """Listens where the settings say. At the end it removes a Unix socket; `runner.cleanup` closes the rest.

    Raises `SettingsError` if the server can't listen there.
    """
    context, path = tls_context(settings), settings.uds
    where, option = str(path), "--uds"
    with ExitStack() as at_end:
        try:
            if path:
                sock = _bind(path)
                at_end.callback(path.unlink, missing_ok=True)
                runner.listen(sock, context)
            else:
                port, option = settings.port, "--port"
                for host in settings.host.split(","):
                    where = f"{host}:{port}"
                    for sock in await _bind_address(host.strip(), port):
                        runner.listen(sock, context)
                    port = runner.addresses[0][1]  # if it was 0, the system has chosen one, and all hosts get the same
        except OSError as error:
            raise SettingsError(f"can't listen on {where}: {error.strerror or error}; try another {option}") from None
        yield


async def _bind_address(host: str, port: int) -> list[socket.socket]:
    """A socket at each address that a host has. Raises `OSError`."""
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port, start_serving=False)
    async with server:
        return [sock.dup() for sock in server.sockets]


def _bind(path: Path) -> socket.socket:
    """A socket at this path. It replaces a socket that an ended server has left behind. Raises `OSError`."""
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1)
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:  # nobody listens there; if somebody does, binding fails with a message
                path.unlink()
            except OSError:
                pass
    sock = socket.socket(socket.AF_UNIX)
    umask = os.umask(SOCKET_UMASK)
    try:
        sock.bind(str(path))
    except BaseException:
        sock.close()
        raise
    finally:
        os.umask(umask)
    return sock


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """The context for TLS, or None without TLS. Raises `SettingsError`, which names the wrong file and its fault."""
    cert, key = settings.ssl_cert_file, settings.ssl_key_file
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        missing = "--ssl-cert-file" if cert is None else "--ssl-key-file"
        raise SettingsError(f"--ssl-cert-file and --ssl-key-file belong together, and {missing} is missing")
    _check_pem("--ssl-cert-file", cert, b"CERTIFICATE")
    _check_pem("--ssl-key-file", key, b"PRIVATE KEY")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SettingsError(f"--ssl-key-file {key} is not the key of the certificate {cert}") from None
        raise SettingsError(f"--ssl-cert-file {cert} and --ssl-key-file {key} can't be used: {error.reason}") from None
    return context


def _check_pem(option: str, path: Path, kind: bytes) -> None:
    """Raises `SettingsError` if this file can't be used. OpenSSL doesn't say which of its two files is wrong."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{option} {path} can't be read: {error.strerror or error}") from None
    if kind + b"-----" not in text:
        raise SettingsError(f"{option} {path} has no '-----BEGIN {kind.decode()}-----'; it must be in PEM format")
    if b"ENCRYPTED" in text:  # OpenSSL would stop and ask for a password on the terminal
        raise SettingsError(f"{option} {path} is encrypted; decrypt it with: openssl pkey -in {path} -out FILE")


def is_exposed(runner: Runner) -> bool:
    """Whether other machines can connect."""
    hosts = [address[0] for address in runner.addresses if not isinstance(address, str)]
    return any(not ipaddress.ip_address(host).is_loopback for host in hosts)


def urls_of(runner: Runner, settings: Settings) -> list[str]:
    """The URL of each address where the server listens; none on a Unix socket."""
    addresses = [] if settings.uds else runner.addresses
    return [f"{_scheme(settings)}://{f'[{host}]' if ':' in host else host}:{port}" for host, port, *_ in addresses]


def _scheme(settings: Settings) -> str:
    return "https" if settings.ssl_cert_file else "http"


def describe(runner: Runner, settings: Settings) -> tuple[str, str, str]:
    """Three texts: where the server listens, its URL, and the beginning of a curl command up to this URL."""
    options = []
    if settings.uds is not None:
        place, url = str(settings.uds), f"{_scheme(settings)}://localhost"
        options.append(f"--unix-socket {shlex.quote(place)} ")
    else:
        urls = urls_of(runner, settings)
        place, url = " and ".join(urls), urls[0]
    if settings.ssl_cert_file:
        options.append(f"--cacert {shlex.quote(str(settings.ssl_cert_file))} ")
    if settings.api_key is not None or settings.api_key_file is not None:
        options.append('-H "Authorization: Bearer $SRB_API_KEY" ')
    return place, url, f"curl -X POST -H 'Content-type: application/json' {''.join(options)}{url}"
