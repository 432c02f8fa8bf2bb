"""What bodies name is looked up while no thread waits for it, and no body is parsed on the event loop."""

import asyncio
import json
import socket
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from fake_backend import FakeBackend
from server.conftest import Client, Connect
from server.formats.test_media_parts import CAT, Seeing, text, user
from server.routes.test_pooling import FakeEmbedder
from waiting import until

from srb.history.history import History
from srb.server.http.remote_media import fetch

SECONDS = 30
"""Far longer than the answers take. Only if threads wait for each other do they take longer."""


async def at_once(client: Client, path: str, body: dict[str, Any], count: int = 6) -> list[tuple[int, Any]]:
    """The statuses and the answers of equal requests that come together."""

    async def post() -> tuple[int, Any]:
        async with client.post(path, json=body) as answer:
            return answer.status, await answer.json()

    async with asyncio.timeout(SECONDS):
        return await asyncio.gather(*(post() for _ in range(count)))


def few_threads() -> None:
    """Gives the event loop two threads, so that a few requests occupy all of them."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))


async def test_requests_that_look_something_up_dont_wait_for_each_other(connect: Connect, tmp_path: Path) -> None:
    few_threads()
    with History(tmp_path / "history.db", keep_seconds=SECONDS) as history:
        client = await connect(FakeBackend(), history=history)
        for status, answer in await at_once(client, "/v1/completions", {"prompt": "x", "avoid": [{"request": "nope"}]}):
            assert (status, answer["error"]["param"]) == (400, "avoid")
            assert "request nope isn't stored" in answer["error"]["message"]
        body = {"prompt": "x", "n": 1, "stream": False}
        ((_, stored),) = await at_once(client, "/v1/completions", body, 1)
        answers = await at_once(client, "/v1/completions", body | {"avoid": [{"request": stored["id"]}]})
        assert {status for status, _ in answers} == {200}
    body = {"input": "x", "previous_response_id": "resp_nope"}
    assert {status for status, _ in await at_once(client, "/v1/responses", body)} == {400}


async def test_requests_that_fetch_images_dont_wait_for_each_other(
    connect: Connect, aiohttp_server: Callable[..., Awaitable[TestServer]]
) -> None:
    async def cat(_request: web.Request) -> web.Response:
        return web.Response(body=CAT, content_type="image/png")

    few_threads()
    app = web.Application()
    app.router.add_get("/cat", cat)
    url = (await aiohttp_server(app)).make_url("/cat").with_host("localhost")  # a name, which a thread resolves
    client = await connect(Seeing().backend, fetch=lambda urls: fetch(urls, lambda address: address == "127.0.0.1"))
    image = {"type": "image_url", "image_url": {"url": str(url)}}
    body = {"messages": user(image, text("?")), "stream": False, "max_tokens": 1}
    assert {status for status, _ in await at_once(client, "/v1/chat/completions", body)} == {200}


async def test_names_that_are_looked_up_for_long_hold_nobody_else_up(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    answer, ask = threading.Event(), socket.getaddrinfo

    def slow(host: Any, *rest: Any, **options: Any) -> Any:
        if host != "slow.example":
            return ask(host, *rest, **options)
        asked.append(host)
        answer.wait(SECONDS)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    few_threads()
    monkeypatch.setattr(socket, "getaddrinfo", slow)
    client = await connect(Seeing().backend, fetch=fetch)
    image = {"type": "image_url", "image_url": {"url": "http://slow.example/cat"}}
    body = {"messages": user(image, text("?")), "stream": False, "max_tokens": 1}
    waiting = asyncio.ensure_future(at_once(client, "/v1/chat/completions", body))
    try:
        await until(lambda: len(asked) >= 2)  # as many as there are threads
        plain = {"prompt": "x", "n": 1, "stream": False, "max_tokens": 1}
        assert {status for status, _ in await at_once(client, "/v1/completions", plain)} == {200}
    finally:
        answer.set()
    for status, refusal in await waiting:
        assert status == 400
        assert "no response" in refusal["error"]["message"]


async def test_no_body_is_parsed_on_the_event_loop(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parsing a body of some megabytes would hold all streams up."""
    parsed: list[bool] = []
    loads = json.loads

    def note(data: Any, **options: Any) -> Any:
        if isinstance(data, bytes):
            parsed.append(threading.current_thread() is threading.main_thread())
        return loads(data, **options)

    with History(tmp_path / "history.db") as history:
        backend = FakeBackend(embedder=FakeEmbedder())
        client = await connect(backend, history=history, slot_folder=tmp_path)
        ranking = await connect(FakeBackend(embedder=FakeEmbedder(rank_template="{query} {document}")))
        monkeypatch.setattr(json, "loads", note)
        routes = [
            (route.method, route.resource.canonical.format(id="x", story="x", node=1, id_slot=0))
            for route in client.app.router.routes()
            if route.resource and route.method in ("POST", "PATCH")
        ]
        assert len(routes) > 40
        for method, path in routes:
            parsed.clear()
            query = "?action=save" if path.startswith("/slots") else ""
            server = ranking if path.endswith(("rerank", "reranking")) else client
            async with server.request(method, path + query, data=b"[1]") as answer:
                assert answer.status in (400, 404, 410), path
            assert parsed == ([] if path.endswith(("/cancel", "/import")) else [False]), path  # neither body is JSON
