"""Streams over WebSockets, which browsers don't count among their six connections."""

import asyncio
from typing import Any
from unittest import mock

import pytest
from aiohttp import WSServerHandshakeError
from aiohttp.test_utils import make_mocked_request
from fake_backend import FakeBackend, Gate, says
from server.conftest import Client, Connect
from waiting import until

from srb.history.history import History
from srb.server.http.exchange import ENGINE
from srb.server.http.sse import stream_to

BODY = {"prompt": "p", "n": 2, "detach": True}
KEEPS = {"keep_seconds": 60, "keep_bytes": 1 << 20}


async def submit(client: Client, **headers: str) -> str:
    async with client.post("/v1/completions", json=BODY, headers=headers) as answer:
        return f"/v1/completions/{answer.headers['X-Request-Id']}/events?starting_after="


async def read(client: Client, path: str, **options: Any) -> str:
    """All that comes over a WebSocket."""
    async with client.ws_connect(path, **options) as socket:
        return b"".join([message.data async for message in socket]).decode()


async def refused(client: Client, path: str, **options: Any) -> int:
    with pytest.raises(WSServerHandshakeError) as error:
        await client.ws_connect(path, **options)
    return error.value.status


async def test_the_messages_are_what_a_get_answers(connect: Connect) -> None:
    client = await connect(FakeBackend(script=says("né".encode())), **KEEPS)
    path = await submit(client)
    texts = [await (await client.get(f"{path}{after}")).text() for after in range(3)]
    assert '"event": "done"' in texts[0]
    assert [await read(client, f"{path}{after}") for after in range(3)] == texts
    assert await refused(client, f"{path}{texts[0].count('id: ')}") == 204
    assert await refused(client, "/v1/completions/none/events") == 404


async def test_a_request_ends_when_its_only_reader_closes(connect: Connect) -> None:
    gate = Gate(backend := FakeBackend())
    client = await connect(backend)
    answer = await client.post("/v1/completions", json=BODY | {"detach": False})
    path = f"/v1/completions/{answer.headers['X-Request-Id']}/events"
    async with client.ws_connect(path) as socket:
        answer.close()
        assert client.app[ENGINE].requests
        await socket.close()
    await until(lambda: not client.app[ENGINE].requests)
    gate.open()


async def test_a_client_that_leaves_during_the_handshake_is_no_error() -> None:
    """aiohttp prepares the response again then, and returns without a handshake."""
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    headers["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    writer = mock.Mock(write_headers=mock.AsyncMock(side_effect=ConnectionResetError))
    request = make_mocked_request("GET", "/", headers, writer=writer)
    response = stream_to(request, 200, {})
    with pytest.raises(ConnectionResetError):
        await response.prepare(request)
    await response.prepare(request)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_key_comes_as_a_protocol(connect: Connect) -> None:
    key = "schlüssel, mein"
    client = await connect(FakeBackend(script=says(b"a")), api_keys=(key.encode(), b"other"), **KEEPS)
    path = await submit(client, **{"x-api-key": "other"}) + "0"
    protocols = ("srb", f"srb.key.{b'other'.hex()}")
    assert '"event": "done"' in await read(client, path, protocols=protocols)
    assert await refused(client, path, protocols=("srb", f"srb.key.{key.encode().hex()}")) == 404
    for wrong in ("srb.key.", "srb.key.xy", "srb.key.00ff", "srb.key.fe"):
        assert await refused(client, path, protocols=("srb", wrong)) == 401


async def test_a_foreign_page_reads_nothing(connect: Connect) -> None:
    client = await connect(FakeBackend(script=says(b"a")), **KEEPS)
    path = await submit(client) + "0"
    assert await refused(client, path, origin="https://evil.example") == 403
    own = str(client.make_url("")).rstrip("/")
    assert '"event": "done"' in await read(client, path, origin=own)


async def test_a_request_of_another_server_is_read_from_there(connect: Connect) -> None:
    there = await connect(FakeBackend(script=says(b"yes")), **KEEPS)
    path = await submit(there)
    front = await connect(FakeBackend())
    front.app[ENGINE].others = (str(there.make_url("")).rstrip("/"),)
    assert await read(front, f"{path}1") == await (await there.get(f"{path}1")).text()
    assert await refused(front, "/v1/completions/none/events") == 404


async def test_a_story_is_watched(connect: Connect, tmp_path: Any) -> None:
    history = History(tmp_path / "stories.db")
    client = await connect(FakeBackend(), history=history)
    story = (await (await client.post("/v1/stories", json={})).json())["id"]
    async with client.ws_connect(f"/v1/stories/{story}/nodes?since=0") as socket:
        await client.post(f"/v1/stories/{story}/nodes", json={"text": "Once"})
        assert '"text": "Once"' in (await socket.receive_bytes()).decode()
        await client.delete(f"/v1/stories/{story}")
        assert [message.data async for message in socket] == [b'data: {"event": "deleted"}\n\n']
    history.close()
