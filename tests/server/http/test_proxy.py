"""Requests of other servers, which answer, hang, end in the middle, or are no longer there."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import ClientPayloadError, ClientResponse
from fake_backend import FakeBackend, Gate, says
from server.conftest import Client, Connect
from waiting import Clock, until

from srb.server.http import proxy
from srb.server.http.exchange import ENGINE
from srb.wire.native import reply as native

EVENTS = "/v1/completions/cmpl-1/events"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENT = b'14\r\ndata: {"event": 1}\n\n\r\n'
STATE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"

Speak = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]
"""What a server does with a connection. It gets the head of the request."""


@pytest.fixture
async def peer() -> AsyncIterator[Callable[[Speak], Awaitable[str]]]:
    """Starts a server that does what a function says, and returns its address."""
    servers, living = [], set[asyncio.Task[None] | None]()

    async def start(speak: Speak) -> str:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            living.add(task := asyncio.current_task())
            await speak(await reader.readuntil(b"\r\n\r\n"), reader, writer)
            writer.close()
            await writer.wait_closed()
            living.discard(task)

        servers.append(server := await asyncio.start_server(serve, "127.0.0.1", 0))
        host, port = server.sockets[0].getsockname()
        return f"http://{host}:{port}"

    yield start
    for server in servers:
        server.close()
    await until(lambda: not living)


async def hang(_request: bytes, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read()  # until the other side has had enough


async def leave(_request: bytes, _reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    pass


def answers(status: int) -> Speak:
    async def speak(_request: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 2\r\n\r\n{{}}".encode())

    return speak


def begins(then: Speak) -> Speak:
    """Sends an event. What comes then is done with later requests, too, which ask if the request is still there."""

    async def speak(request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if EVENTS.encode() in request:
            writer.write(HEAD + EVENT)
        await then(request, reader, writer)

    return speak


async def has_it(request: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Sends the events of a request, slowly."""
    if EVENTS.encode() not in request:
        writer.write(STATE)
        return
    await asyncio.sleep(1.5 * proxy.ANSWER_SECONDS)
    writer.write(HEAD + EVENT)
    await asyncio.sleep(1.5 * proxy.ANSWER_SECONDS)
    writer.write(EVENT + b"0\r\n\r\n")


async def front_of(connect: Connect, *urls: str) -> Client:
    client = await connect(FakeBackend())
    client.app[ENGINE].others = urls
    return client


async def read(client: Client) -> tuple[ClientResponse, str]:
    """The answer to a GET of EVENTS, and its text, however long they take."""
    clock = Clock()

    async def ask() -> tuple[ClientResponse, str]:
        answer = await client.get(EVENTS)
        return answer, await answer.text()

    asking = asyncio.create_task(ask())
    await clock.until(asking.done, by=0.5)
    return await asking


async def quote(request: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers with what it was asked, and not with HTTP."""
    writer.write(b"HTTP/1.1 " + request.replace(b"\r\n", b" ") + b"\r\n\r\n")


LOST = [hang, leave, answers(500), answers(503)]


@pytest.mark.parametrize("lost", LOST)
async def test_a_server_that_is_lost_before_it_answers_is_passed_over_but_may_have_the_request(
    connect: Connect, peer: Any, lost: Speak
) -> None:
    others = [await peer(lost), await peer(answers(404))]
    answer, text = await read(await front_of(connect, *others))
    assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
    assert "there is no request cmpl-1 on this server, and another one" in json.loads(text)["error"]["message"]
    answer, text = await read(await front_of(connect, *others, await peer(has_it)))
    assert (answer.status, text.count('"event"')) == (200, 2)


async def test_the_log_has_nothing_of_what_was_sent(
    connect: Connect, peer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = await front_of(connect, await peer(quote))
    answer = await client.get(EVENTS, headers={"X-Story": "it was a dark night"})
    assert answer.status == 503
    assert "can't be reached" in caplog.text
    assert "dark night" not in caplog.text


@pytest.mark.parametrize("status", [401, 404, 501])
async def test_what_nobody_has_is_not_found(connect: Connect, peer: Any, status: int) -> None:
    client = await front_of(connect, await peer(answers(status)))
    assert (await client.get(EVENTS)).status == 404


@pytest.mark.parametrize("status", [400, 410])
async def test_what_a_server_says_of_its_request_is_passed_on(connect: Connect, peer: Any, status: int) -> None:
    client = await front_of(connect, await peer(answers(status)), await peer(has_it))
    assert (await client.get(EVENTS)).status == status


@pytest.mark.parametrize("then", [hang, leave])
async def test_a_server_that_is_lost_in_the_middle_cuts_the_answer(connect: Connect, peer: Any, then: Speak) -> None:
    client = await front_of(connect, await peer(begins(then)), await peer(has_it))
    with pytest.raises(ClientPayloadError):
        await read(client)


async def test_a_server_may_take_its_time_while_it_says_that_it_has_the_request(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, asking = proxy._is_alive, 0

    async def is_alive(*arguments: Any) -> bool:
        nonlocal asking
        asking += 1
        try:
            return await ask(*arguments)
        finally:
            asking -= 1

    monkeypatch.setattr(proxy, "_is_alive", is_alive)
    gate = Gate(backend := FakeBackend(script=says(b"yes")))
    there = await connect(backend)
    front = await front_of(connect, str(there.make_url("")).rstrip("/"))
    body = {"prompt": "p", "model": "fake", "max_tokens": 3, "detach": True}
    posting = asyncio.create_task(there.post("/v1/completions", json=body))
    engine = there.app[ENGINE]
    await until(lambda: bool(engine.requests))
    (event_log,) = engine.requests
    path = f"/v1/completions/{event_log.request.id}/events"
    objects = [asyncio.create_task(front.get(path))]  # its headers come when the request has ended
    streams = [asyncio.create_task(front.get(path + "?starting_after=0"))]
    clock = Clock()
    for _ in range(int(4 * proxy.ANSWER_SECONDS)):
        await clock.forward(1)
        await until(lambda: not asking)  # its answer needs a thread, which may be slow
    gate.open()
    for answer in await asyncio.gather(posting, *objects):
        assert (await answer.json())["choices"][0]["text"] == "yes"
    for answer in await asyncio.gather(*streams):
        assert '"event": "done"' in await answer.text()


async def test_a_page_of_this_server_ends_a_request_of_another_one(connect: Connect) -> None:
    """The page's origin is this server's. The other one would refuse it."""
    gate = Gate(backend := FakeBackend())
    there = await connect(backend)
    front = await front_of(connect, str(there.make_url("")).rstrip("/"))
    async with there.post("/v1/completions", json={"prompt": "p", "detach": True}) as answer:
        name = answer.headers["X-Request-Id"]
        host = f"{front.host}:{front.port}".replace("127.0.0.1", "10.1.2.3")
        headers = {"Host": host, "Origin": f"http://{host}"}
        assert (await front.delete(f"/v1/completions/{name}", headers=headers)).status == 204
        gate.open()


async def test_a_fault_in_the_middle_of_an_answer_cuts_it(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    def to_json(event: Any, **_: Any) -> dict[str, Any]:
        if type(event).__name__ == "StopEvent":
            raise ValueError("a bug")
        return {"event": type(event).__name__}

    monkeypatch.setattr(native, "to_json", to_json)
    client = await connect(FakeBackend(script=says(b"yes")))
    reader, writer = await asyncio.open_connection(client.host, client.port)
    body = json.dumps({"prompt": "p", "n": 1}).encode()
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    async with asyncio.timeout(10):
        sent = await reader.read()  # until the connection ends
    assert sent.startswith(b"HTTP/1.1 200 OK")
    assert sent.count(b"HTTP/1.1") == 1
    assert not sent.endswith(b"0\r\n\r\n")
    writer.close()
