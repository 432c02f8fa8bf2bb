"""Large answers take seconds to make, and the event loop goes on meanwhile."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web
from fake_backend import ByteTokenizer, FakeBackend, says
from server.conftest import Connect
from server.routes.test_pooling import FakeEmbedder

from srb.llama.model.chat_template import ChatTemplate
from srb.server.http import exchange, sse
from srb.wire.embeddings import EmbeddingRequest
from srb.wire.llama_server.reply import Results
from srb.wire.openai.completions import Completion


@pytest.mark.parametrize(
    ("path", "body", "owner", "name"),
    [
        ("/v1/completions", {"prompt": "p", "model": "fake"}, Completion, "body"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "p"}]}, Completion, "body"),
        ("/completion", {"prompt": "p", "n": 2}, Results, "body"),
        ("/embedding", {"input": "p"}, EmbeddingRequest, "to_json"),
    ],
)
async def test_an_answer_is_made_outside_of_the_event_loop(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any], owner: Any, name: str
) -> None:
    threads: dict[str, threading.Thread] = {}

    def watch(owner: Any, name: str, key: str) -> None:
        function = getattr(owner, name)

        def spy(*arguments: Any, **keywords: Any) -> Any:
            threads[key] = threading.current_thread()
            return function(*arguments, **keywords)

        monkeypatch.setattr(owner, name, spy)

    watch(exchange, "encode", "encode")
    watch(owner, name, "make")
    backend = FakeBackend(script=says(b"a"), embedder=FakeEmbedder(), chat_template=ChatTemplate("p"))
    response = await (await connect(backend)).post(path, json=body)
    assert response.status == 200, await response.text()
    assert response.headers["Content-Type"] == "application/json; charset=utf-8"
    assert set(threads) == {"encode", "make"}
    assert threading.main_thread() not in threads.values()


async def test_the_event_loop_goes_on_between_the_writes_of_a_large_batch(aiohttp_client: Any) -> None:
    turns = 0
    seen: list[int] = []

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def events() -> Iterator[str]:
        for _ in range(20):
            seen.append(turns)
            yield "x" * sse.WRITE_BYTES

    async def one_batch() -> AsyncGenerator[Iterable[str], None]:
        yield events()

    async def handler(request: web.Request) -> web.StreamResponse:
        counting = asyncio.ensure_future(count())
        try:
            async with sse.reading(one_batch()) as read:
                return await sse.respond(request, read, headers={})
        finally:
            counting.cancel()

    app = web.Application()
    app.router.add_get("/", handler)
    response = await (await aiohttp_client(app)).get("/")
    assert (await response.read()).count(b"data: ") == len(seen) == 20
    assert all(before < after for before, after in pairwise(seen))


async def test_a_prompt_is_detokenized_once_and_outside_of_the_event_loop(connect: Connect) -> None:
    calls: list[tuple[tuple[int, ...], threading.Thread]] = []

    class Spied(ByteTokenizer):
        def detokenize(self, tokens: Iterable[int]) -> bytes:
            calls.append((tuple(tokens), threading.current_thread()))
            return super().detokenize(calls[-1][0])

    client = await connect(FakeBackend(script=says(b"a"), tokenizer=Spied()))
    for stream in (False, True):
        calls.clear()
        body = {"prompt": ["pp", "q"], "n": 3, "n_predict": 2, "stream": stream}
        response = await client.post("/completion", json=body)
        assert (await response.text()).count('"prompt": "pp"') == 3
        assert [tokens for tokens, _ in calls] == [(112, 112), (113,)]
        assert threading.main_thread() not in {thread for _, thread in calls}
