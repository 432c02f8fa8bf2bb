"""`Connections`: the open connections, their limit, and which one is closed when there are too many.

A connection is receiving (the headers of a request, or its body), handling the request, sending the rest of a response,
or idle. Only changes of this state are registered, so a streamed token costs nothing.

When there are too many connections, the longest idle one is evicted for a new one; if none is idle, the one that has
been receiving longest; else one whose reader has stalled at the end of a response. A connection whose request is
handled, or whose stream is written, is never evicted.
"""

import asyncio
import ipaddress
import logging
import math
import resource
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from aiohttp import EMPTY_PAYLOAD, HttpVersion11, StreamReader, web
from aiohttp.http_exceptions import BadHttpMessage, HttpProcessingError, LineTooLong

from srb.errors import SettingsError
from srb.options.settings import Settings

logger = logging.getLogger("srb")

LOG_SECONDS = 10.0
"""Repetitions of a message within this time are counted and logged as one line."""


class RateLimitedLog:
    """Logs a message at once, and its repetitions in one line every LOG_SECONDS. It belongs to the event loop.

    Lines with the same message and other arguments are repetitions.
    """

    def __init__(self) -> None:
        self._repeated: dict[str, tuple[int, tuple[object, ...]]] = {}  # message: count, last arguments

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

The client should be the first to close it: a request that arrives while the server closes the connection is lost. Most
proxies and load balancers close theirs after 60 s, and HTTP libraries sooner.
"""

RECEIVE_SECONDS = 30.0
SWEEP_SECONDS = 1.0

STALLED_SECONDS = 5.0
"""After a response is complete, a reader that takes nothing for this time may be evicted."""

PROBE_SECONDS = 1.0, 15.0
"""The first and the longest pause between two probes of a client that has closed its sending side."""

MAX_HEADERS = 256
MAX_HEADER_BYTES = 64 << 10
"""The most headers of a request, and the most bytes of one header and of the request line.

Browsers send a server on localhost the cookies of all other local programs.
"""

MAX_CONNECTIONS = 4_096
MIN_CONNECTIONS = 16
RESERVED_FILES = 96
"""How many of the files that the process may open are reserved for other uses; at least an eighth. About 20 are open at
the start, and each thread that reads the history opens three."""


class Connection(web.RequestHandler):
    """A client's connection, from its accept on."""

    __slots__ = ("_body", "_is_half_closed", "_socket", "address", "connections", "opening")

    def __init__(self, server: web.Server, connections: "Connections", **options: Any) -> None:
        super().__init__(server, **options)
        self.connections = connections
        self.address: str | None = None
        self.opening: asyncio.Task[None] | None = None
        """The task that opens the transport, with a handshake for TLS."""
        self._socket: asyncio.BaseTransport | None = None  # aiohttp drops its own reference before all is closed
        self._is_half_closed = False
        self._body: StreamReader = EMPTY_PAYLOAD  # of the last request

    def drop(self) -> None:
        """Closes the connection at once."""
        if isinstance(self._socket, asyncio.Transport):
            self._socket.abort()
        elif self.opening:
            self.opening.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._socket = transport
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self.connections.on_data(self)
        super().data_received(data)
        if self._messages:
            self._body = self._messages[-1][1]

    def eof_received(self) -> bool:  # type: ignore[override]  # aiohttp has None, asyncio has both
        """Answers a client that has closed its sending side, also within a body. False: closes the connection.

        A client that has closed the connection can't be told from it. So once a response has begun, the end of the
        client's data ends the request, and until then the client is probed.
        """
        request = self._current_request
        is_idle = not self._messages and self._waiter is not None
        if is_idle or not self.transport or self.transport.get_extra_info("ssl_object"):
            return False
        if request is not None and request.writer.output_size:
            return False
        if not self._body.is_eof():
            self._body.set_exception(web.RequestPayloadError("the client has closed its sending side"))
        self._is_half_closed = True
        self._loop.call_later(PROBE_SECONDS[0], self._probe, PROBE_SECONDS[0])
        return True

    def _probe(self, pause: float) -> None:
        """Sends an interim response. If the client has closed the connection, the next one but one fails."""
        request = self._current_request  # a mapping, which may be empty
        if not self.transport or request is None:
            return
        if request.version >= HttpVersion11 and not request.writer.output_size:
            self.transport.write(b"HTTP/1.1 102 Processing\r\n\r\n")
            pause = min(2 * pause, PROBE_SECONDS[1])
            self._loop.call_later(pause, self._probe, pause)

    def end_if_half_closed(self) -> None:
        """Closes the connection after the last response, if the client can't send another request."""
        if self._is_half_closed and not self._messages:
            self.close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.connections.remove(self)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answers invalid HTTP. aiohttp's own response and log quote the line, which may have an API key."""
        if isinstance(exc, ConnectionError):
            raise exc  # the client has disconnected; aiohttp would log a traceback
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        kind = type(exc).__name__
        self.connections.log.log(logging.INFO, "%s sent invalid HTTP (%s)", request.remote, kind)
        text = f"the request isn't valid HTTP ({kind})"
        too_many = type(exc) is BadHttpMessage and exc.message == "Too many headers received"
        if too_many or isinstance(exc, LineTooLong):
            status = 431
            text = (
                f"a header is larger than {MAX_HEADER_BYTES} bytes, or there are more than {MAX_HEADERS} headers; if "
                "this is a browser, delete the cookies of this host: those of all programs on it are sent"
            )
        response = web.Response(status=status, text=text)
        response.force_close()
        return response


async def close_after_stream(request: web.Request, response: web.StreamResponse) -> None:
    """Closes the connection after a response of unknown length to HTTP/1.0, whose end the client couldn't see else.

    This is a signal of aiohttp, because a stream begins before its handler returns.
    """
    if request.version < HttpVersion11 and response.content_length is None:
        response.force_close()


class Connections:
    """The open connections of a server, and of each address. It belongs to the event loop.

    The headers of a request may take `receive_seconds`, and its body may make no progress for as long.
    """

    def __init__(
        self,
        limit: int = MAX_CONNECTIONS,
        per_address: int = MAX_CONNECTIONS,
        receive_seconds: float = RECEIVE_SECONDS,
    ) -> None:
        self.limit, self.per_address, self.receive_seconds = limit, per_address, receive_seconds
        self.log = RateLimitedLog()
        self.closed: Counter[str] = Counter(dict.fromkeys(("refused", "evicted", "timeout"), 0))
        """How many connections the server has refused, evicted for others, and closed after a timeout."""
        # The connections in each state, the oldest first. The values are times of the event loop: when a connection
        # will be closed or, in `_sending`, when it may be evicted.
        names = ("idle", "receiving", "sending", "handling")
        self._states = {name: dict[Connection, float]() for name in names}
        self._idle, self._receiving, self._sending, self._handling = self._states.values()
        self._by_address: Counter[str] = Counter()
        self._sweeping: asyncio.TimerHandle | None = None

    @property
    def counts(self) -> dict[str, int]:
        """How many connections are in each state."""
        return {name: len(state) for name, state in self._states.items()}

    def admit(self, address: str | None) -> bool:
        """Whether one more connection may be open. At the limit, another one is evicted for it if possible."""
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
        """Closes a connection without a running request, of this address if given. Returns False if there is none."""
        now = _in(0)
        for state in (self._idle, self._receiving, self._sending):
            for each, at in state.items():
                if address in (None, each.address) and (at <= now or state is not self._sending):
                    self._close(each, "evicted")
                    return True
        return False

    def add(self, connection: Connection, address: str | None) -> None:
        """Adds a new connection. Its first request must arrive within `receive_seconds`."""
        if address is not None:
            connection.address = address
            self._by_address[address] += 1
        self._receiving[connection] = _in(self.receive_seconds)
        self._sweep_later()

    def remove(self, connection: Connection) -> None:
        """Removes a closed connection, if it is still there."""
        for state in self._states.values():
            if state.pop(connection, None) is not None and (address := connection.address) is not None:
                self._by_address[address] -= 1
                if not self._by_address[address]:
                    del self._by_address[address]

    def on_data(self, connection: Connection) -> None:
        """If the connection was idle, starts the timeout for the rest of the headers."""
        if connection in self._idle:
            self._move(connection, self._receiving, _in(self.receive_seconds))

    @contextmanager
    def handling(self, request: web.Request) -> Iterator[None]:
        """The time in which a request is handled. The connection is idle afterwards."""
        self._move(request.protocol, self._handling)
        try:
            yield
        finally:
            self._move(request.protocol, self._idle, _in(KEEP_ALIVE_SECONDS))
            if isinstance(request.protocol, Connection):
                request.protocol.end_if_half_closed()
            self._sweep_later()

    def receiving(self, request: web.Request) -> AbstractContextManager[None]:
        """The time in which a handler waits for the body, with a timeout of its own."""
        return self._during(request, self._receiving)

    def sending(self, request: web.Request) -> AbstractContextManager[None]:
        """The time in which a part of a complete response is sent."""
        return self._during(request, self._sending, _in(STALLED_SECONDS))

    @contextmanager
    def _during(self, request: web.Request, state: dict[Connection, float], at: float = math.inf) -> Iterator[None]:
        self._move(request.protocol, state, at)
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
        """Closes the connections that have timed out."""
        now = _in(0)
        for state in (self._idle, self._receiving):
            for each in [each for each, at in state.items() if at <= now]:
                if state is self._receiving:
                    text = "a connection is closed: no request arrived within %g s (--receive-timeout)"
                    self.log.log(logging.INFO, text, self.receive_seconds)
                self._close(each, "timeout")
        self._sweeping = None
        if self._idle or self._receiving:
            self._sweep_later()


def _in(seconds: float) -> float:
    """The time of the event loop after these seconds."""
    return asyncio.get_running_loop().time() + seconds


CONNECTIONS = web.AppKey("connections", Connections)


def read_limits(settings: Settings) -> Connections:
    """The connections that the settings allow. Raises `SettingsError` if the limit of open files is too low."""
    n_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    max_n = MAX_CONNECTIONS
    if n_files != resource.RLIM_INFINITY:
        max_n = max(MIN_CONNECTIONS, n_files - max(RESERVED_FILES, n_files // 8))
        if (settings.max_connections or 0) > max_n:
            raise SettingsError(
                f"--max-connections {settings.max_connections} is above {max_n}, the most with a limit of {n_files} "
                "open files: raise that limit (ulimit -n), or give a smaller number"
            )
    limit = settings.max_connections or min(max_n, MAX_CONNECTIONS)
    return Connections(limit, settings.max_connections_per_address or max(limit // 2, 1), settings.receive_timeout)


def address_of(peer: object) -> str | None:
    """The address by which a client's connections are counted: IPv4, or the /64 network of an IPv6 address.

    None for Unix sockets and this machine, because a proxy may connect from there.
    """
    if not isinstance(peer, tuple):
        return None
    address = ipaddress.ip_address(peer[0].partition("%")[0])
    if address.is_loopback:
        return None
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))
