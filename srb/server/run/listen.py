"""Accepts connections on the server's sockets, with TLS or without, up to their limit.

asyncio would accept every connection. At the limit of open files, it would log a traceback for each that it can't
accept, and try again hundreds of times a second.
"""

import asyncio
import ipaddress
import logging
import re
import shlex
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import HttpVersion11, hdrs, web

from srb.errors import SettingsError
from srb.options.settings import Settings
from srb.server.http.bodies import EXPECTS_CONTINUE
from srb.server.http.connections import CONNECTIONS, Connection, Connections, address_of
from srb.serving.logs import loggable

logger = logging.getLogger("srb")

BACKLOG = 128
"""How many connections the system queues until they are accepted."""

PAUSE_SECONDS = 1.0
"""How long to accept nothing after a failure."""

TLS_SHUTDOWN_SECONDS = 2.0
"""How long a client may take to confirm the end of a TLS connection."""


class Runner(web.AppRunner):
    """aiohttp's `AppRunner`, with at most as many connections as the `CONNECTIONS` of the application allow."""

    def __init__(self, app: web.Application, **options: Any) -> None:
        super().__init__(app, **options)
        self._listeners: list[_Listener] = []

    @property
    def addresses(self) -> list[Any]:
        """The addresses of the sockets."""
        return [each.socket.getsockname() for each in self._listeners]

    def listen(self, sock: socket.socket, context: ssl.SSLContext | None = None) -> None:
        """Accepts connections on a bound socket, with TLS if a context is given."""
        assert self.server
        self._listeners.append(_Listener(sock, self.server, self.app[CONNECTIONS], context))

    async def close(self) -> None:
        """Stops accepting connections."""
        while self._listeners:
            await self._listeners.pop().close()

    async def cleanup(self) -> None:
        """Stops the server. Running requests have until `shutdown_timeout`."""
        await self.close()
        await super().cleanup()

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        make_request = server.request_factory
        server.request_factory = lambda message, *others: _make_request(make_request, message, *others)
        return server


def _make_request(make: Any, message: Any, *others: Any) -> web.BaseRequest:
    """Makes a request, with one slash in its path where a client joined two.

    `read_body` sends a `100 Continue` when it is needed; aiohttp would send it at once.
    """
    if "//" in message.url.raw_path:
        url = message.url.with_path(re.sub("/+", "/", message.url.raw_path), encoded=True, keep_query=True)
        message = message._replace(url=url, path=url.raw_path_qs)
    if message.headers.get(hdrs.EXPECT, "").lower() != "100-continue":
        request: web.BaseRequest = make(message, *others)
        return request
    headers = message.headers.copy()
    del headers[hdrs.EXPECT]
    request = make(message._replace(headers=headers), *others)
    request[EXPECTS_CONTINUE] = request.version >= HttpVersion11
    return request


class _Listener:
    """Accepts connections on a socket."""

    def __init__(
        self, sock: socket.socket, server: web.Server, limits: Connections, context: ssl.SSLContext | None
    ) -> None:
        self.socket = sock
        self._server, self._limits = server, limits
        self._tls: dict[str, Any] = {}
        if context:
            seconds = limits.receive_seconds
            self._tls = {"ssl": context, "ssl_handshake_timeout": seconds, "ssl_shutdown_timeout": TLS_SHUTDOWN_SECONDS}
        self._opening: set[asyncio.Task[None]] = set()
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._accepting = asyncio.create_task(self._accept())

    async def close(self) -> None:
        """Stops accepting connections."""
        tasks = {self._accepting, *self._opening}
        for each in tasks:
            each.cancel()
        await asyncio.wait(tasks)
        self.socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._connect(*await loop.sock_accept(self.socket))
                await asyncio.sleep(0)  # a connection that is evicted for this one closes meanwhile
            except ConnectionAbortedError:
                pass  # the client has left
            except (OSError, MemoryError) as error:
                why = loggable(error) or type(error).__name__
                self._limits.log.log(logging.WARNING, "can't accept connections: %s", why)
                self._limits.evict()
                await asyncio.sleep(PAUSE_SECONDS)

    def _connect(self, accepted: socket.socket, peer: object) -> None:
        address = address_of(peer)
        if not self._limits.admit(address):
            accepted.close()
            return
        # aiohttp has no option for the class that handles a connection, so the server isn't called for one.
        connection = Connection(self._server, self._limits, loop=asyncio.get_running_loop(), **self._server._kwargs)
        self._limits.add(connection, address)
        connection.opening = task = asyncio.create_task(self._open(accepted, connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, accepted: socket.socket, connection: Connection) -> None:
        try:
            with suppress(OSError):  # the client has left, or there is no TLS connection with it
                loop = asyncio.get_running_loop()
                await loop.connect_accepted_socket(lambda: connection, accepted, **self._tls)
        finally:
            if not connection.transport:
                self._limits.remove(connection)


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """The TLS context, or None without TLS. Raises `SettingsError` that names the wrong file and the problem."""
    cert, key = settings.ssl_cert_file, settings.ssl_key_file
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        missing = "--ssl-cert-file" if cert is None else "--ssl-key-file"
        raise SettingsError(f"--ssl-cert-file and --ssl-key-file go together; {missing} is missing")
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
    """Raises `SettingsError` if this file can't be used. OpenSSL doesn't say which of the two files is wrong."""
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


def describe_address(runner: Runner, settings: Settings) -> tuple[str, str, str]:
    """The address where the server listens, its URL, and a curl command up to this URL."""
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
