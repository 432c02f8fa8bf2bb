"""`Connections`: which connections are open, how many there may be, and which is closed when there are too many.

A connection is receiving (the headers of a request, or its body), its request is handled, it is sending what is left of
the answer, or it is idle. Only the changes between these states are told here, so a streamed token costs nothing.

When there are too many connections, the one that has been idle longest is closed for a new one; if none is idle, the
one that has been receiving longest; and else one whose reader has taken nothing of the rest of an answer for a while.
A connection whose request is handled, or whose stream is written, is never closed for others.
"""

import asyncio
import ipaddress
import logging
import math
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from srb.errors import SettingsError
from srb.options.settings import Settings

# `RateLimitedLog`: what a crowd of clients can cause is logged in few lines.

logger = logging.getLogger("srb")

LOG_SECONDS = 10.0
"""A message that comes again within this time is counted, and one line says at its end how often it came."""


class RateLimitedLog:
    """Logs each message at once, and then its repetitions in one line every LOG_SECONDS. It belongs to the event loop.

    Two lines repeat each other if they have the same message, whatever its arguments are.
    """

    def __init__(self) -> None:
        self._repeated: dict[str, tuple[int, tuple[object, ...]]] = {}  # by message: how often, and the last arguments

    def log(self, level: int, message: str, *args: object) -> None:
        """Logs a message, or counts it."""
        if message in self._repeated:
            self._repeated[message] = self._repeated[message][0] + 1, args
        else:
            logger.log(level, message, *args)
            self._begin(level, message)

    def _begin(self, level: int, message: str) -> None:
        self._repeated[message] = 0, ()
        asyncio.get_running_loop().call_later(LOG_SECONDS, self._end, level, message)

    def _end(self, level: int, message: str) -> None:
        n_times, args = self._repeated.pop(message)
        if n_times:
            logger.log(level, f"{message} (%d such lines in %g s)", *args, n_times, LOG_SECONDS)
            self._begin(level, message)


KEEP_ALIVE_SECONDS = 75.0
"""How long a connection may be idle.

The client should be the first to close it: a request that comes while the server closes the connection is lost. Proxies
and load balancers mostly close theirs after 60 s, and HTTP libraries sooner.
"""

RECEIVE_SECONDS = 30.0
SWEEP_SECONDS = 1.0

STALLED_SECONDS = 5.0
"""When an answer is complete, and its reader takes nothing for this time, its connection may be closed for others."""

MOST_CONNECTIONS = 4_096
LEAST_CONNECTIONS = 16
RESERVED_FILES = 96
"""Of the files and sockets that the process may open, this many, or an eighth, are not for connections. About 20 are
open at the start, and each thread that reads the history opens three."""


class Connection(web.RequestHandler):
    """A client's connection, from its accept on."""

    __slots__ = ("_socket", "address", "connections", "opening")

    def __init__(self, server: web.Server, connections: "Connections", **options: Any) -> None:
        super().__init__(server, **options)
        self.connections = connections
        self.address: str | None = None
        self.opening: asyncio.Task[None] | None = None
        """Makes the transport; with TLS, this takes a handshake."""
        self._socket: asyncio.BaseTransport | None = None  # aiohttp forgets its own reference before all is closed

    def drop(self) -> None:
        """Closes the connection at once."""
        if isinstance(self._socket, asyncio.Transport):
            self._socket.abort()
        elif self.opening:
            self.opening.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio."""
        self._socket = transport
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Called by asyncio."""
        self.connections.data_came(self)
        super().data_received(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Called by asyncio."""
        self.connections.remove(self)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answers what isn't HTTP. aiohttp's own answer quotes the line, which may have an API key; so does its log."""
        if isinstance(exc, ConnectionError):
            raise exc  # the reader has left; aiohttp would log a traceback
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        kind = type(exc).__name__
        self.connections.log.log(logging.INFO, "%s has sent what isn't HTTP (%s)", request.remote, kind)
        response = web.Response(status=status, text=f"the request isn't HTTP as it should be ({kind})")
        response.force_close()
        return response


class Connections:
    """The open connections of a server. It belongs to the event loop.

    limit: how many there may be. per_address: how many of these one address may have.
    receive_seconds: how long the headers of a request may take, and how long its body may make no progress.
    """

    def __init__(
        self,
        limit: int = MOST_CONNECTIONS,
        per_address: int = MOST_CONNECTIONS,
        receive_seconds: float = RECEIVE_SECONDS,
    ) -> None:
        self.limit, self.per_address, self.receive_seconds = limit, per_address, receive_seconds
        self.log = RateLimitedLog()
        self.closed: Counter[str] = Counter(dict.fromkeys(("refused", "evicted", "timeout"), 0))
        """How many the server has closed: as soon as they were accepted, for others, and when their time was up."""
        # The connections in each state; the first one has been in it longest. The values are times of the event loop:
        # when a connection will be closed or, in `_sending`, from when on it may be closed for others.
        self._idle: dict[Connection, float] = {}
        self._receiving: dict[Connection, float] = {}
        self._sending: dict[Connection, float] = {}
        self._handling: dict[Connection, float] = {}
        self._states = {
            "idle": self._idle,
            "receiving": self._receiving,
            "sending": self._sending,
            "handling": self._handling,
        }
        self._by_address: Counter[str] = Counter()
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def counts(self) -> dict[str, int]:
        """How many connections are in each state."""
        return {name: len(state) for name, state in self._states.items()}

    def make_room(self, address: str | None) -> bool:
        """Whether one more connection may be open. If there are too many, another one is closed for it, if possible."""
        if address is not None and self._by_address[address] >= self.per_address:
            limit, text = self.per_address, "one address has %d connections (--max-connections-per-address)"
        elif sum(map(len, self._states.values())) >= self.limit:
            address, limit, text = None, self.limit, "%d connections are open (--max-connections)"
        else:
            return True
        if self.evict(address):
            self.log.log(logging.WARNING, text + "; one without a request is closed for a new one", limit)
            return True
        self.closed["refused"] += 1
        self.log.log(logging.WARNING, text + ", and all have requests; a new one is refused", limit)
        return False

    def evict(self, address: str | None = None) -> bool:
        """Closes a connection whose request isn't handled, of this address if one is given. False: there is none."""
        now = _in(0)
        for state in (self._idle, self._receiving, self._sending):
            for each, at in state.items():
                if address in (None, each.address) and (at <= now or state is not self._sending):
                    self._close(each, "evicted")
                    return True
        return False

    def add(self, connection: Connection, address: str | None) -> None:
        """Adds a connection that was just accepted. Its first request must come soon."""
        if address is not None:
            connection.address = address
            self._by_address[address] += 1
        self._receiving[connection] = _in(self.receive_seconds)
        self._sweep_later()

    def remove(self, connection: Connection) -> None:
        """Removes a connection that is closed, if it is still there."""
        for state in self._states.values():
            if state.pop(connection, None) is not None and (address := connection.address) is not None:
                self._by_address[address] -= 1
                if not self._by_address[address]:
                    del self._by_address[address]

    def data_came(self, connection: Connection) -> None:
        """Begins to wait for the rest of the headers, if the connection was idle."""
        if connection in self._idle:
            self._move(connection, self._receiving, _in(self.receive_seconds))

    @contextmanager
    def handling(self, request: web.Request) -> Iterator[None]:
        """A context manager for the time in which a request is handled. The connection is idle afterwards."""
        self._move(request.protocol, self._handling)
        try:
            yield
        finally:
            self._move(request.protocol, self._idle, _in(KEEP_ALIVE_SECONDS))
            self._sweep_later()

    @contextmanager
    def receiving(self, request: web.Request) -> Iterator[None]:
        """A context manager for the time in which a handler, which has a time limit of its own, waits for the body."""
        self._move(request.protocol, self._receiving)
        try:
            yield
        finally:
            self._move(request.protocol, self._handling)

    @contextmanager
    def sending(self, request: web.Request) -> Iterator[None]:
        """A context manager for the time in which a reader takes a piece of an answer that is complete."""
        self._move(request.protocol, self._sending, _in(STALLED_SECONDS))
        try:
            yield
        finally:
            self._move(request.protocol, self._handling)

    def _move(self, connection: web.RequestHandler, state: dict[Connection, float], at: float = math.inf) -> None:
        """Moves a connection to a state, unless it is closed."""
        if isinstance(connection, Connection):
            for each in self._states.values():
                if each.pop(connection, None) is not None:
                    state[connection] = at
                    return

    def _close(self, connection: Connection, reason: str) -> None:
        self.closed[reason] += 1
        self.remove(connection)
        connection.drop()

    def _sweep_later(self) -> None:
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Closes the connections whose time is up."""
        now = _in(0)
        for state in (self._idle, self._receiving):
            for each in [each for each, at in state.items() if at <= now]:
                if state is self._receiving:
                    text = "a connection is closed: no request came within %g s (--receive-timeout)"
                    self.log.log(logging.INFO, text, self.receive_seconds)
                self._close(each, "timeout")
        self._sweeping = None
        if self._idle or self._receiving:
            self._sweep_later()


def _in(seconds: float) -> float:
    """The time of the event loop in so many seconds."""
    return asyncio.get_running_loop().time() + seconds


CONNECTIONS = web.AppKey("connections", Connections)


def read_limits(settings: Settings) -> Connections:
    """The connections that the settings allow. Raises `SettingsError` if too few files may be opened for them."""
    n_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_CONNECTIONS
    if n_files != resource.RLIM_INFINITY:
        most = max(LEAST_CONNECTIONS, n_files - max(RESERVED_FILES, n_files // 8))
        if (settings.max_connections or 0) > most:
            raise SettingsError(
                f"--max-connections {settings.max_connections} is more than the {most} that a limit of {n_files} open "
                "files leaves room for: raise that limit (ulimit -n), or give a smaller number"
            )
    limit = settings.max_connections or min(most, MOST_CONNECTIONS)
    return Connections(limit, settings.max_connections_per_address or max(limit // 2, 1), settings.receive_timeout)


def address_of(peer: object) -> str | None:
    """What counts as a client's address: an IPv4 address, or the first half of an IPv6 address, which a site has.

    None: it isn't counted by its address, because it comes over a Unix socket or from this machine, as a proxy may.
    """
    if not isinstance(peer, tuple):
        return None
    address = ipaddress.ip_address(peer[0].partition("%")[0])
    if address.is_loopback:
        return None
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))
