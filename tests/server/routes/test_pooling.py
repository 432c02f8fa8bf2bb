"""The routes for embeddings, over HTTP, on the fake backend."""

import asyncio
import base64
import itertools
import math
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import ClientResponse
from fake_backend import FakeBackend, says
from server.conftest import Connect
from waiting import until

from srb.server.http import exchange, sse
from srb.wire import embeddings as module


@dataclass
class FakeEmbedder:
    """The vector of a token is its id and 1; that of a text their sum."""

    pools: bool = True
    max_tokens: int = 5
    rank_template: str | None = None
    on_embed: Callable[[], None] = lambda: None

    def embed(self, tokens: tuple[int, ...]) -> list[list[float]]:
        self.on_embed()
        assert 0 < len(tokens) <= self.max_tokens
        return [[sum(tokens), len(tokens)]] if self.pools else [[token, 1] for token in tokens]


async def post(connect: Connect, path: str = "/v1/embeddings", *, pools: bool = True, **body: Any) -> ClientResponse:
    client = await connect(FakeBackend(embedder=FakeEmbedder(pools)))
    return await client.post(path, json=body)


async def vectors(connect: Connect, **body: Any) -> list[Any]:
    answer = await (await post(connect, embd_normalize=-1, **body)).json()
    return [each["embedding"] for each in answer["data"]]


async def test_openai_format(connect: Connect) -> None:
    response = await post(connect, input=["aa", [3, 4]], model="other", user="me", dimensions=2)
    assert response.headers["x-srb-ignored"] == "user, dimensions, model"
    answer = await response.json()
    (first, second), usage = answer["data"], answer["usage"]
    assert (answer["object"], answer["model"]) == ("list", "fake")
    assert (first["object"], first["index"], second["index"]) == ("embedding", 0, 1)
    assert math.hypot(*first["embedding"]) == pytest.approx(1)
    assert first["embedding"] == pytest.approx([194 / math.hypot(194, 2), 2 / math.hypot(194, 2)])
    assert usage == {"prompt_tokens": 4, "total_tokens": 4}
    assert (await (await post(connect, "/openai/v1/embeddings", input="aa")).json())["object"] == "list"


@pytest.mark.parametrize("truncate", ["END", "NONE", 5])
async def test_other_servers_truncate(connect: Connect, truncate: Any) -> None:
    """NVIDIA's clients send a word."""
    for path in ("/v1/embeddings", "/api/embed", "/embedding"):
        response = await post(connect, path, input="aa", truncate=truncate)
        assert (response.status, response.headers["x-srb-ignored"]) == (200, "truncate")


async def test_what_an_input_may_be(connect: Connect) -> None:
    for one in ("aa", [97, "a"], [97, 97], {"prompt_string": "aa"}, {"content": [{"type": "text", "text": "a"}] * 2}):
        assert await vectors(connect, input=one) == await vectors(connect, input=[one]) == [[194, 2]]
    assert await vectors(connect, input=["a", [97, 97], {"prompt_string": "b"}]) == [[97, 1], [194, 2], [98, 1]]


async def test_base64(connect: Connect) -> None:
    for vector in await vectors(connect, input=["aa", "b"], encoding_format="base64"):
        assert struct.unpack("<2f", base64.b64decode(vector)) in [(194, 2), (98, 1)]


@pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
async def test_llama_servers_format(connect: Connect, path: str) -> None:
    response = await post(connect, path, content="aa", embd_normalize=1, encoding_format="float")
    (result,) = await response.json()
    assert result == {"index": 0, "embedding": [pytest.approx([194 / 196, 2 / 196])]}
    assert response.headers["x-srb-ignored"] == "encoding_format"
    response = await post(connect, path, pools=False, input="ab", embd_normalize=1)
    assert await response.json() == [{"index": 0, "embedding": [[97, 1], [98, 1]]}]
    assert response.headers["x-srb-ignored"] == "embd_normalize"
    assert isinstance(await (await post(connect, content="a")).json(), list)  # a field that OpenAI doesn't have


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "input", "missing"),
        ({"input": []}, "input", "1 to 2048 texts, got 0"),
        ({"input": ["a"] * 2_049}, "input", "got 2049"),
        ({"input": ""}, "input", "0 tokens; the limit is 1 to 5"),
        ({"input": ["a", "aaaaaa"]}, "input", "6 tokens; the limit is 1 to 5 (--ubatch-size)"),
        ({"input": [1, 257]}, "input", "from 0 to 256"),
        ({"input": ["a", 1.5]}, "input", "must be a string"),
        ({"input": {"content": "a"}}, "input", "parts of the type text"),
        ({"input": {"content": [{"type": "image_url", "image_url": {}}]}}, "input", "parts of the type text"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "float or base64"),
        ({"input": "a", "embd_normalize": -2}, "embd_normalize", "at least -1"),
    ],
)
async def test_what_is_wrong_is_named(connect: Connect, body: dict[str, Any], param: str, message: str) -> None:
    response = await post(connect, **body)
    error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, param)
    assert message in error["message"]


async def test_the_tokens_of_a_request_are_limited(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TOKENS", 12)
    assert (await post(connect, input=["aaaa"] * 3)).status == 200
    response = await post(connect, input=["aaaa"] * 5)
    error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, "input")
    assert "input has 16 tokens in its first 4 texts; the limit is 12 in one request: send fewer" in error["message"]
    assert "--pooling" not in error["message"]


async def test_the_vectors_of_an_answer_are_limited(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_INPUTS", 3)
    assert (await post(connect, "/embedding", pools=False, input="aaaaa")).status == 200  # as the settings allow
    response = await post(connect, "/embedding", pools=False, input=["aaa", "aaa"])
    message = (await response.json())["error"]["message"]
    assert "6 tokens in its first 2 texts; the limit is 5 in one request" in message
    assert "start the server with --pooling mean" in message


async def test_embeddings_leave_the_threads_of_completions_alone(connect: Connect) -> None:
    go_on = threading.Event()
    names: list[str] = []

    def on_embed() -> None:
        names.append(threading.current_thread().name)
        assert go_on.wait(10)

    client = await connect(FakeBackend(script=says(b"a"), embedder=FakeEmbedder(on_embed=on_embed)))
    posts = [asyncio.create_task(client.post("/v1/embeddings", json={"input": ["a", "b"]})) for _ in range(50)]
    await until(lambda: bool(names))
    async with asyncio.timeout(10):
        response = await client.post("/v1/completions", json={"prompt": "p"})
        assert '"event": "done"' in await response.text()
    go_on.set()
    assert {(await each).status for each in posts} == {200}
    assert set(names) == {"srb-embeddings_0"}


@pytest.mark.parametrize("path", ["/v1/embeddings", "/embedding", "/api/embed", "/rerank"])
async def test_spaces_while_numbers_take_long(connect: Connect, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(exchange, "FIRST_SPACE_SECONDS", 0.01)
    monkeypatch.setattr(sse, "PING_SECONDS", 0.01)
    go_on = threading.Event()
    embedder = FakeEmbedder(max_tokens=50, on_embed=lambda: _true(go_on.wait(10)))
    if path == "/rerank":
        embedder.rank_template = "{query} {document}"
    client = await connect(FakeBackend(embedder=embedder))
    response = await client.post(path, json={"input": "a", "query": "a", "documents": ["a"], "unknown_": 1})
    assert await response.content.readexactly(2) == b"  "
    assert response.headers["x-srb-ignored"].endswith("unknown_")
    go_on.set()
    assert await response.json()


@pytest.mark.parametrize("path", ["/v1/embeddings", "/rerank"])
async def test_only_so_many_may_wait(connect: Connect, path: str) -> None:
    go_on = threading.Event()
    embedder = FakeEmbedder(max_tokens=50, on_embed=lambda: _true(go_on.wait(10)))
    if path == "/rerank":
        embedder.rank_template = "{query} {document}"
    client = await connect(FakeBackend(embedder=embedder), max_queue=2)
    body = {"input": "a", "query": "a", "documents": ["a"]}
    posts = [asyncio.create_task(client.post(path, json=body)) for _ in range(5)]
    # One has its turn and two wait; the others are refused, while these are still here.
    refused = [await each for each in itertools.islice(asyncio.as_completed(posts), 2)]
    assert [each.status for each in refused] == [429, 429]
    assert "2 requests are waiting, and no more may (--max-queue)" in await refused[0].text()
    assert "Retry-After" in refused[0].headers
    go_on.set()
    assert sorted([(await each).status for each in posts]) == [200, 200, 200, 429, 429]
    assert (await client.post(path, json=body)).status == 200


def _true(value: bool) -> None:
    assert value


async def test_who_has_left_is_embedded_no_further(connect: Connect) -> None:
    go_on = threading.Event()
    embedded = []

    def on_embed() -> None:
        embedded.append(1)
        assert go_on.wait(10)

    client = await connect(FakeBackend(embedder=FakeEmbedder(on_embed=on_embed)))
    _reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    body = b'{"input": ["a", "b", "c", "d"]}'
    writer.write(b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await until(lambda: bool(embedded))
    (handler,) = (each for each in asyncio.all_tasks() if getattr(each.get_coro(), "__name__", "") == "_handle_request")
    writer.close()
    await until(handler.done)
    go_on.set()
    assert (await client.post("/v1/embeddings", json={"input": "e"})).status == 200
    assert len(embedded) == 2


async def test_without_pooling_there_is_no_vector_for_a_text(connect: Connect) -> None:
    response = await post(connect, pools=False, input="a")
    assert (response.status, "--pooling" in await response.text()) == (400, True)
