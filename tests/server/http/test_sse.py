"""Readers that don't read, on a raw socket."""

import asyncio
import json
import socket
from typing import Any

import pytest
from fake_backend import Context, FakeBackend, Gate
from server.conftest import Client, Connect
from waiting import Clock, until

from srb.engine.backend import Logprobs
from srb.server.http.exchange import ENGINE

LIKELIEST = [(token, -token / 7) for token in range(100)]
BODY = {"prompt": "p", "n": 4, "max_tokens": 50, "ignore_eos": True, "logprobs": 100}


class Wordy(FakeBackend):
    """Fills any buffer soon: of each token it names a hundred others."""

    def logprobs(self, logits: Context, token: int, top: int) -> Logprobs:
        return -1.0, LIKELIEST[:top]


async def post_and_never_read(client: Client) -> socket.socket:
    """A connection with next to no room on the way, over which BODY was sent."""
    loop = asyncio.get_running_loop()
    assert client.server.runner
    server: Any = client.server.runner.server
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1_024)
    connection.setblocking(False)
    await loop.sock_connect(connection, (client.host, client.port))
    await until(lambda: bool(server.connections))
    for each in server.connections:  # else the system may take some megabytes which nobody reads
        each.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1_024)
    data = json.dumps(BODY).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Length: {len(data)}\r\n\r\n"
    await loop.sock_sendall(connection, head.encode() + data)
    return connection


async def read_to_the_end(connection: socket.socket) -> bytes:
    """The body of the answer. Raises `EOFError` (IncompleteReadError) if it isn't whole."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    reader, writer = await asyncio.open_connection(sock=connection)
    body = b""
    try:
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
    finally:
        writer.close()
        await writer.wait_closed()
    return body


async def test_a_reader_that_never_reads_holds_nobody_up_and_loses_nothing(connect: Connect) -> None:
    gate = Gate(backend := Wordy(n_cells=20_000))
    client = await connect(backend)
    engine = client.app[ENGINE]
    with await post_and_never_read(client) as connection:
        await until(lambda: bool(engine.requests))
        (event_log,) = engine.requests
        gate.open()
        other = await client.post("/v1/completions", json={"prompt": "p", "n": 2, "max_tokens": 5, "ignore_eos": True})
        assert '"event": "done"' in await other.text()
        await until(lambda: event_log.done)
        received = await read_to_the_end(connection)
    assert received.count(b'"event": "stream"') == sum(stop.length for stop in event_log.stops) == 200
    assert received.count(b'"finish_reason": "length"') == 4
    assert received.count(b'"event": "done"') == 1


async def test_a_reader_that_takes_nothing_for_too_long_is_disconnected(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    clock, gate = Clock(), Gate(backend := Wordy(n_cells=20_000))
    client = await connect(backend)
    engine = client.app[ENGINE]
    with await post_and_never_read(client) as connection:
        await until(lambda: bool(engine.requests))
        gate.open()
        await clock.until(lambda: "it took nothing for 60 s" in caplog.text, by=1)
        await until(lambda: not engine.requests and not backend.open_samplers)
        with pytest.raises(EOFError):  # cut off, though not before what was on its way
            await read_to_the_end(connection)
