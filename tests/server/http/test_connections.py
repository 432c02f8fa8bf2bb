"""How many connections are open, for how long, and which are closed when there are too many."""

import asyncio
import errno
import json
import logging
import re
import resource
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from fake_backend import Context, FakeBackend, Gate
from server.conftest import server_process
from waiting import Clock, until

from srb.engine.backend import Logprobs
from srb.errors import SettingsError
from srb.options.settings import Settings
from srb.server.app import SERVER_OPTIONS, create_app
from srb.server.http import connections
from srb.server.http.connections import Connections, address_of, read_limits
from srb.server.run import listen
from srb.server.run.listen import Runner, tls_context
from srb.serving.async_engine import AsyncEngine
from srb.wire.limits import Limits

TLS = Path(__file__).parents[1] / "tls"
LOCAL = "127.0.0.1"

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF_HEADERS = b"GET /health HTTP/1.1\r\nHost: local"
EXPECTING = "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\nExpect: 100-continue\r\n{}\r\n"
HALF_BODY = b'POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"content": "'


def post(path: str, body: Any) -> bytes:
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


STREAM = post("/v1/completions", {"prompt": "p", "n": 2, "max_tokens": 20, "ignore_eos": True})
LARGE = post("/tokenize", {"content": "a" * 100_000})  # its answer has 400 KB
WORDY = post("/v1/completions", {"prompt": "p", "n": 4, "max_tokens": 50, "ignore_eos": True, "logprobs": 100})
LIKELIEST = [(token, -token / 7) for token in range(100)]


class Wordy(FakeBackend):
    """Fills any buffer soon: of each token it names a hundred others."""

    def logprobs(self, logits: Context, token: int, top: int) -> Logprobs:
        return -1.0, LIKELIEST[:top]


class Client:
    """A connection that sends what it is told, and reads only if it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, bytes]:
        """The status and the body of an answer."""
        async with asyncio.timeout(10):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            return int(head.split()[1]), await self.reader.readexactly(length)

    async def stream(self) -> bytes:
        """The rest of a stream, without the sizes of its chunks, which may stand anywhere in it."""
        async with asyncio.timeout(10):
            return re.sub(rb"\r\n[0-9a-f]+\r\n", b"", await self.reader.readuntil(b"\r\n0\r\n\r\n"))

    async def closed(self) -> None:
        """Returns when the server has closed the connection without a word."""
        async with asyncio.timeout(10):
            with suppress(ConnectionResetError):
                assert await self.reader.read() == b""

    @property
    def is_closed(self) -> bool:
        return self.reader.at_eof() or self.reader.exception() is not None

    def close(self) -> None:
        self.writer.close()


class Server:
    """A server on a scripted backend."""

    def __init__(self, connections: Connections, runner: Runner, gate: Gate, engine: AsyncEngine) -> None:
        self.connections, self.runner, self.gate, self.engine = connections, runner, gate, engine
        self.clients: list[Client] = []

    async def open(self, data: bytes = b"", **options: Any) -> Client:
        """A new connection, over which something was sent."""
        self.clients.append(client := Client(*await asyncio.open_connection(*self.runner.addresses[0], **options)))
        await client.send(data)
        return client

    async def has(self, **counts: int) -> None:
        """Returns when so many connections are in each state."""
        expected = {"idle": 0, "receiving": 0, "sending": 0, "handling": 0} | counts
        await until(lambda: self.connections.counts == expected)


@asynccontextmanager
async def serving(
    backend: FakeBackend | None = None,
    *,
    limit: int = 100,
    per_address: int = 100,
    tls: ssl.SSLContext | None = None,
    **options: Any,
) -> AsyncIterator[Server]:
    gate, connections = Gate(backend := backend or FakeBackend()), Connections(limit, per_address)
    async with AsyncEngine(lambda _progress: backend) as engine:
        app = create_app(engine, Limits("fake", n=4, max_n=8), connections=connections, **options)
        runner = Runner(app, shutdown_timeout=1, **SERVER_OPTIONS)
        await runner.setup()
        runner.listen(socket.create_server((LOCAL, 0)), tls)
        server = Server(connections, runner, gate, engine)
        try:
            yield server
        finally:
            gate.open()
            for each in server.clients:
                each.close()
            await runner.cleanup()


async def test_idle_connections_are_closed_for_new_ones_and_then_those_that_receive() -> None:
    async with serving(limit=3) as server:
        stream = await server.open(STREAM)
        await server.has(handling=1)
        half = await server.open(HALF_BODY)
        await server.has(handling=1, receiving=1)
        idle = await server.open(HEALTH)
        assert (await idle.answer())[0] == 200
        await server.has(handling=1, receiving=1, idle=1)
        newer = await server.open(HEALTH)
        assert (await newer.answer())[0] == 200
        await idle.closed()
        await server.has(handling=1, receiving=1, idle=1)
        await newer.send(HALF_HEADERS)
        await server.has(handling=1, receiving=2)
        newest = await server.open(HEALTH)
        assert (await newest.answer())[0] == 200
        await half.closed()
        assert not newer.is_closed
        assert server.connections.closed == {"evicted": 2, "refused": 0, "timeout": 0}
        server.gate.open()
        assert (await stream.stream()).count(b'"finish_reason": "length"') == 2


async def test_a_new_connection_is_refused_if_all_have_requests(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(limit=1) as server:
        stream = await server.open(STREAM)
        await server.has(handling=1)
        for _ in range(3):
            await (await server.open(HEALTH)).closed()
        assert server.connections.closed["refused"] == 3
        assert len([line for line in caplog.messages if "--max-connections" in line]) == 1
        server.gate.open()
        assert b'"event": "done"' in await stream.stream()
        assert (await (await server.open(HEALTH)).answer())[0] == 200
        await stream.closed()


@pytest.mark.parametrize("sent", [b"", HALF_HEADERS])
async def test_headers_must_come_soon(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving() as server:
        clock = Clock()
        client = await server.open(sent)
        await server.has(receiving=1)
        for _ in range(7):
            await clock.forward(4, by=1)
            assert not client.is_closed
            if sent:
                await client.send(b"x")
        await clock.forward(4, by=1)
        await client.closed()
        assert server.connections.closed["timeout"] == 1
        assert "no request arrived within 30 s (--receive-timeout)" in caplog.text


async def test_an_idle_connection_is_closed_and_a_running_stream_is_not() -> None:
    async with serving() as server:
        clock = Clock()
        stream, idle = await server.open(STREAM), await server.open(HEALTH)
        assert (await idle.answer())[0] == 200
        await server.has(handling=1, idle=1)
        await clock.forward(70, by=1)
        assert not idle.is_closed
        await clock.forward(7, by=1)
        await idle.closed()
        await clock.forward(600, by=5)
        server.gate.open()
        assert b'"event": "done"' in await stream.stream()


async def test_a_body_may_be_slow_but_must_make_progress() -> None:
    async with serving() as server:
        clock = Clock()
        slow, still = await server.open(HALF_BODY), await server.open(HALF_BODY)
        await server.has(receiving=2)
        for _ in range(6):
            await clock.forward(20, by=1)
            await slow.send(b"x")
        status, body = await still.answer()
        assert (status, json.loads(body)["error"]["code"]) == (408, "request_timeout")
        await slow.send(b"x" * (100 - len(HALF_BODY.partition(b"\r\n\r\n")[2]) - 6 - 2) + b'"}')
        assert (await slow.answer())[0] == 200


async def ask_and_not_read(server: Server, sent: bytes = LARGE) -> Client:
    """A connection with next to no room on the way, over which something was sent. It stops reading."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, server.runner.addresses[0])
    reader, writer = await asyncio.open_connection(sock=sock, limit=1 << 24)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    server.clients.append(client := Client(reader, writer))
    await server.has(receiving=1)
    assert server.runner.server
    (connection,) = server.runner.server.connections
    transport = connection.transport
    assert transport
    transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    await client.send(sent)
    await server.has(**{"sending" if sent == LARGE else "handling": 1})
    assert transport.get_write_buffer_size() < 200_000
    return client


async def test_a_reader_that_stands_still_is_not_idle_and_goes_when_there_is_no_room() -> None:
    async with serving(limit=1) as server:
        clock = Clock()
        still = await ask_and_not_read(server)
        await (await server.open(HEALTH)).closed()
        assert server.connections.closed == {"evicted": 0, "refused": 1, "timeout": 0}
        await clock.forward(6)
        assert (await (await server.open(HEALTH)).answer())[0] == 200
        assert server.connections.closed["evicted"] == 1
        still.writer.transport.resume_reading()  # type: ignore[attr-defined]
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await still.answer()


@pytest.mark.parametrize("waits", [50, 70])
async def test_a_reader_of_a_large_answer_may_be_slow(waits: float, caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server:
        clock = Clock()
        client = await ask_and_not_read(server)
        await clock.forward(waits, by=1)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        if waits < 60:
            status, body = await client.answer()
            assert (status, len(json.loads(body)["tokens"])) == (200, 100_000)
            await server.has(idle=1)
        else:
            assert "it took nothing for 60 s" in caplog.text
            await server.has()
            assert not [record for record in caplog.records if record.name != "srb"]
            with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                await client.answer()


async def test_a_reader_that_never_reads_a_stream_holds_nobody_up_and_loses_nothing() -> None:
    async with serving(Wordy(n_cells=20_000)) as server:
        still = await ask_and_not_read(server, WORDY)
        await until(lambda: bool(server.engine.requests))
        (event_log,) = server.engine.requests
        server.gate.open()
        assert b'"event": "done"' in await (await server.open(STREAM)).stream()
        await until(lambda: event_log.done)
        still.writer.transport.resume_reading()  # type: ignore[attr-defined]
        received = await still.stream()
        assert received.count(b'"event": "stream"') == sum(stop.length for stop in event_log.stops) == 200
        assert received.count(b'"finish_reason": "length"') == 4
        assert received.count(b'"event": "done"') == 1


async def test_a_reader_that_takes_nothing_of_a_stream_for_too_long_is_disconnected(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(backend := Wordy(n_cells=20_000)) as server:
        clock = Clock()
        still = await ask_and_not_read(server, WORDY)
        await until(lambda: bool(server.engine.requests))
        server.gate.open()
        await clock.until(lambda: "it took nothing for 60 s" in caplog.text, by=1)
        await until(lambda: not server.engine.requests and not backend.open_samplers)
        still.writer.transport.resume_reading()  # type: ignore[attr-defined]
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):  # not before what was on its way
            await still.stream()


async def test_at_the_limit_of_open_files_accepting_pauses_and_the_log_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop, n_failures = asyncio.get_running_loop(), 0
    accept = loop.sock_accept

    async def fail(sock: socket.socket) -> Any:
        nonlocal n_failures
        n_failures += 1
        if n_failures <= 4:
            raise OSError(errno.EMFILE, "Too many open files")
        return await accept(sock)

    async with serving() as server:
        clock = Clock()
        idle = await server.open(HEALTH)
        assert (await idle.answer())[0] == 200
        await server.has(idle=1)
        monkeypatch.setattr(loop, "sock_accept", fail)
        await server.open()  # the accept that had begun
        await until(lambda: n_failures == 1)
        await idle.closed()
        await clock.forward(0.5)
        assert n_failures == 1
        await clock.forward(15)
        assert (await (await server.open(HEALTH)).answer())[0] == 200
        lines = [line for line in caplog.messages if "Too many" in line]
        text = "can't accept connections: Too many open files"
        assert lines == [text, f"{text} (3 such lines in 10 s)"]


@pytest.mark.parametrize(
    ("error", "shortage"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "too many open files"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "no memory left"),
        (MemoryError(), "no memory left"),
        (RuntimeError("can't start new thread"), "as many threads as it may have"),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_a_shortage_is_a_503(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, shortage: str
) -> None:
    def fail(_path: Path) -> bytes:
        raise error

    monkeypatch.setattr(Path, "read_bytes", fail)
    async with serving() as server:
        client = await server.open(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
        for _ in range(3):
            status, body = await client.answer()
            assert (status, json.loads(body)["error"]["code"]) == (503, "unavailable")
            assert shortage in json.loads(body)["error"]["message"]
    assert len([line for line in caplog.messages if "GET / failed" in line and shortage in line]) == 1
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize(
    "headers", [["Cookie: " + "a" * 60_000], [f"X-{k}: 1" for k in range(250)]], ids=["size", "number"]
)
async def test_many_cookies_and_headers_pass_and_more_get_a_431(
    headers: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def request(headers: list[str]) -> bytes:
        return "\r\n".join(["GET /health HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()

    async with serving() as server:
        client = await server.open(request(headers))
        assert (await client.answer())[0] == 200
        more = [headers[0] + "a" * 6_000, *headers[1:], *(f"Y-{k}: 1" for k in range(len(headers) // 30))]
        status, body = await (await server.open(request(more))).answer()
        assert status == 431
        assert b"cookies" in body
    assert [line for line in caplog.messages if "invalid HTTP" in line and "aaa" not in line]
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("sent", [HEALTH, HEALTH * 3, LARGE, STREAM], ids=["get", "pipelined", "object", "stream"])
async def test_a_client_that_closes_its_sending_side_gets_the_answer(sent: bytes) -> None:
    async with serving() as server:
        server.gate.open()
        client = await server.open(sent)
        client.writer.write_eof()
        async with asyncio.timeout(10):
            answer = await client.reader.read()
        assert answer.count(b" 200 OK") == sent.count(b"HTTP/1.1")
        assert answer.endswith((b"}", b"\r\n0\r\n\r\n"))
        await server.has()


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_client_without_an_answer_is_probed(leaves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PROBE_SECONDS", (0.05, 0.1))
    async with serving() as server:
        body = {"prompt": "p", "n": 1, "max_tokens": 5, "stream": False}
        client = await server.open(post("/v1/completions", body))
        await server.has(handling=1)
        await until(lambda: server.gate.holds)
        if leaves:
            client.close()
            await server.has()
            return
        client.writer.write_eof()
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 102 Processing\r\n\r\n"
        server.gate.open()
        assert b" 200 OK" in await client.reader.read()


CHUNKED = HALF_BODY.replace(b"Content-Length: 100", b"Transfer-Encoding: chunked")


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    "sent",
    [
        HALF_BODY,
        HALF_BODY.replace(b"HTTP/1.1", b"HTTP/1.0"),
        HEALTH + HALF_BODY,
        CHUNKED.replace(b'{"content": "', b"ff\r\n{"),
        CHUNKED.replace(b'{"content": "', b"1\r\n{\r\n"),
        HALF_BODY.removesuffix(b'{"content": "'),
        EXPECTING.format("/tokenize", "localhost", 9, "").encode(),
    ],
    ids=["half", "http10", "pipelined", "chunk", "chunks", "empty", "expects"],
)
async def test_a_client_that_closes_its_sending_side_within_a_body_gets_a_400(sent: bytes, at_once: bool) -> None:
    async with serving() as server:
        client = await server.open(sent)
        if not at_once:
            await server.has(receiving=1)
        client.writer.write_eof()
        async with asyncio.timeout(10):
            answer = await client.reader.read()
        assert answer.count(b" 400 Bad Request") == 1
        assert b"the body ended before its end" in answer
        assert answer.count(b"100 Continue") == (b"Expect:" in sent)
        assert b"102 Processing" not in answer
        await server.has()


@pytest.mark.parametrize("keep", [b"Connection: keep-alive\r\n", b""])
async def test_a_stream_to_http_1_0_ends_with_its_connection(keep: bytes) -> None:
    async with serving() as server:
        server.gate.open()
        body = {"prompt": "p", "n": 1, "max_tokens": 2, "stream": True}
        for path in ("/v1/completions", "/completion", "/api/extra/generate/stream"):
            client = await server.open(post(path, body).replace(b"1.1\r\n", b"1.0\r\n" + keep))
            async with asyncio.timeout(10):
                answer = await client.reader.read()
            assert b" 200 OK" in answer
            assert b"keep-alive" not in answer.lower()
        if keep:
            client = await server.open(HEALTH.replace(b"1.1\r\n", b"1.0\r\n" + keep) * 2)
            assert [(await client.answer())[0] for _ in range(2)] == [200, 200]


def client_tls() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(TLS / "cert.pem"))


async def test_a_tls_handshake_counts_as_receiving() -> None:
    tls = tls_context(Settings(ssl_cert_file=TLS / "cert.pem", ssl_key_file=TLS / "key.pem"))
    async with serving(limit=1, tls=tls) as server:
        clock = Clock()
        silent = await server.open()
        await server.has(receiving=1)
        client = await server.open(LARGE, ssl=client_tls(), server_hostname="localhost")
        await silent.closed()
        assert (await client.answer())[0] == 200
        await server.has(idle=1)
        client.close()
        await server.has()
        no_tls = await server.open(HEALTH)
        await no_tls.closed()
        silent = await server.open()
        await server.has(receiving=1)
        await clock.forward(32, by=1)
        await silent.closed()
        await server.has()


async def test_one_address_can_not_have_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listen, "address_of", lambda peer: peer[0])
    async with serving(per_address=2) as server:
        greedy = [await server.open(HALF_HEADERS, local_addr=("127.0.0.2", 0)) for _ in range(2)]
        await server.has(receiving=2)
        other = await server.open(HEALTH, local_addr=("127.0.0.3", 0))
        assert (await other.answer())[0] == 200
        third = await server.open(HEALTH, local_addr=("127.0.0.2", 0))
        assert (await third.answer())[0] == 200
        await greedy[0].closed()
        assert not greedy[1].is_closed
        assert not other.is_closed
        for each in (greedy[1], third):
            each.close()
        await server.has(idle=1)
        for each in [await server.open(HALF_HEADERS, local_addr=("127.0.0.2", 0)) for _ in range(2)]:
            assert not each.is_closed
        await server.has(idle=1, receiving=2)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("", None),
        (("127.0.0.9", 5), None),
        (("::1", 5, 0, 0), None),
        (("192.0.2.1", 5), "192.0.2.1"),
        (("2001:db8::1:2", 5, 0, 0), "2001:db8::/64"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::/64"),
    ],
)
def test_what_counts_as_an_address(peer: object, address: str | None) -> None:
    assert address_of(peer) == address


def test_the_limits_follow_the_limit_of_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def limits(n_files: int, **options: Any) -> tuple[int, int]:
        monkeypatch.setattr(resource, "getrlimit", lambda _name: (n_files, n_files))
        found = read_limits(Settings(**options))
        return found.limit, found.per_address

    assert limits(256) == (160, 80)
    assert limits(1024) == (896, 448)
    assert limits(64) == (16, 8)
    assert limits(1 << 20) == limits(resource.RLIM_INFINITY) == (4096, 2048)
    assert limits(256, max_connections=1) == (1, 1)
    assert limits(1 << 20, max_connections=10_000, max_connections_per_address=9_999) == (10_000, 9_999)
    with pytest.raises(SettingsError, match="--max-connections 161 is above 160, the most with a limit of 256"):
        limits(256, max_connections=161)


@pytest.mark.starts
def test_a_crowd_that_asks_for_nothing_takes_no_stream_and_no_file(tmp_path: Path) -> None:
    """More connections come than the process may open files."""
    log, few_files = tmp_path / "log", ("sh", "-c", 'ulimit -n 64; exec "$@"', "sh")
    with (
        log.open("w") as stderr,
        server_process(before=few_files, stderr=stderr) as (_, address),
        ExitStack() as crowd,
        socket.create_connection(address, timeout=30) as stream,
    ):
        body = {"prompt": "p", "n": 1, "max_tokens": 200, "ignore_eos": True}
        stream.sendall(post("/v1/completions", body))
        assert b" 200 " in stream.recv(15)
        for number in range(300):
            connection = crowd.enter_context(socket.create_connection(address, timeout=30))
            connection.sendall((b"", HALF_HEADERS, HALF_BODY)[number % 3])
        with socket.create_connection(address, timeout=30) as other:
            other.sendall(HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            assert b" 200 " in other.recv(15)
        data = b""
        while b'"event": "done"' not in data:
            data += (part := stream.recv(1 << 16))
            assert part, data
    assert log.stat().st_size < 2_000


@pytest.mark.parametrize(
    ("path", "host", "length", "header", "status"),
    [
        ("/v1/completions", "localhost", 5 << 20, "x-api-key: key\r\n", 413),
        ("/v1/completions", "localhost", 5, "x-api-key: key\r\nContent-Encoding: gzip\r\n", 415),
        ("/nothing", "localhost", 5, "x-api-key: key\r\n", 404),
        ("/health", "localhost", 5, "x-api-key: key\r\n", 405),
        ("/v1/completions", "localhost", 5, "", 401),
        ("/v1/completions", "localhost", 5, "x-api-key: other\r\n", 401),
        ("/v1/completions", "localhost", 5, "x-api-key: key\r\nOrigin: https://evil.example\r\n", 403),
        ("/v1/completions", "evil.example", 5, "x-api-key: key\r\n", 421),
    ],
)
async def test_a_client_that_waits_before_it_sends_a_body_is_refused_at_once(
    path: str, host: str, length: int, header: str, status: int
) -> None:
    async with serving(api_keys=(b"key",)) as server:
        client = await server.open(EXPECTING.format(path, host, length, header).encode())
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"Connection: close" in head


async def test_a_client_that_waits_before_it_sends_a_good_body_gets_100_continue() -> None:
    async with serving() as server:
        body = b'{"content": "a"}'
        head = EXPECTING.format("/tokenize", "localhost", len(body), "").encode()
        client = await server.open(head)
        for _ in range(2):  # the connection stays
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            await client.send(body)
            assert await client.answer() == (200, b'{"tokens": [97]}')
            await client.send(head)
        old = await server.open(head.replace(b"HTTP/1.1", b"HTTP/1.0") + body)
        assert await old.answer() == (200, b'{"tokens": [97]}')
