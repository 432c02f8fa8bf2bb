"""`Runner` serves an application as aiohttp's `AppRunner` does, but accepts the connections itself.

asyncio would accept all that come. At the limit of open files, it would log a traceback for each that it can't accept,
and try again hundreds of times a second.
"""

import asyncio
import logging
import socket
import ssl
from contextlib import suppress
from typing import Any

from aiohttp import HttpVersion11, hdrs, web

from srb.server.http.bodies import EXPECTS_CONTINUE
from srb.server.http.connections import CONNECTIONS, Connection, Connections, address_of
from srb.serving.logs import loggable

BACKLOG = 128
"""How many connections may wait until they are accepted."""

PAUSE_SECONDS = 1.0
"""After a failure, nothing is accepted for this time."""

TLS_SHUTDOWN_SECONDS = 2.0
"""How long a client has to confirm the end of a TLS connection."""


class Runner(web.AppRunner):
    """Serves an application on sockets, and keeps as many connections open as its `CONNECTIONS` allow."""

    def __init__(self, app: web.Application, **options: Any) -> None:
        super().__init__(app, **options)
        self._listeners: list[_Listener] = []

    @property
    def addresses(self) -> list[Any]:
        """The addresses of the sockets."""
        return [each.socket.getsockname() for each in self._listeners]

    def listen(self, sock: socket.socket, context: ssl.SSLContext | None = None) -> None:
        """Accepts the connections of a socket that is bound to an address, with TLS if there is a context for it."""
        assert isinstance(self.server, _Server)
        self._listeners.append(_Listener(sock, self.server, context))

    async def close(self) -> None:
        """Accepts no more connections."""
        while self._listeners:
            await self._listeners.pop().close()

    async def cleanup(self) -> None:
        """Ends the server. Running requests have a while."""
        await self.close()
        await super().cleanup()

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        server.__class__ = _Server  # aiohttp has no other place to say which class handles a connection
        assert isinstance(server, _Server)
        server.limits = self.app[CONNECTIONS]
        make_request = server.request_factory
        server.request_factory = lambda message, *others: _make_request(make_request, message, *others)
        return server


class _Server(web.Server):
    limits: Connections

    def __call__(self) -> Connection:
        return Connection(self, self.limits, loop=self._loop, **self._kwargs)


def _make_request(make: Any, message: Any, *others: Any) -> web.BaseRequest:
    """Makes a request. If it expects a `100 Continue`, `read_body` will send this; aiohttp would send it at once."""
    if message.headers.get(hdrs.EXPECT, "").lower() != "100-continue":
        request: web.BaseRequest = make(message, *others)
        return request
    headers = message.headers.copy()
    del headers[hdrs.EXPECT]
    request = make(message._replace(headers=headers), *others)
    request[EXPECTS_CONTINUE] = request.version >= HttpVersion11
    return request


class _Listener:
    """Accepts the connections of a socket."""

    def __init__(self, sock: socket.socket, server: _Server, context: ssl.SSLContext | None) -> None:
        self.socket = sock
        self._server, self._limits = server, server.limits
        self._tls: dict[str, Any] = {}
        if context:
            seconds = server.limits.receive_seconds
            self._tls = {"ssl": context, "ssl_handshake_timeout": seconds, "ssl_shutdown_timeout": TLS_SHUTDOWN_SECONDS}
        self._opening: set[asyncio.Task[None]] = set()
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._accepting = asyncio.create_task(self._accept())

    async def close(self) -> None:
        """Accepts no more."""
        tasks = {self._accepting, *self._opening}
        for each in tasks:
            each.cancel()
        await asyncio.wait(tasks)
        self.socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                self._admit(*await loop.sock_accept(self.socket))
                await asyncio.sleep(0)  # others have a turn; a connection that makes room is closed meanwhile
            except ConnectionAbortedError:
                pass  # the client has left
            except (OSError, MemoryError) as error:
                why = loggable(error) or type(error).__name__
                self._limits.log.log(logging.WARNING, "no connection can be accepted: %s", why)
                self._limits.evict()
                await asyncio.sleep(PAUSE_SECONDS)

    def _admit(self, accepted: socket.socket, peer: object) -> None:
        address = address_of(peer)
        if not self._limits.make_room(address):
            accepted.close()
            return
        connection = self._server()
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
