"""A server as the source of events."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from fake_backend import FakeBackend, says

from srb.errors import (
    AuthenticationError,
    InvalidRequestError,
    QueueFullError,
    SettingsError,
    SrbError,
    UnavailableError,
)
from srb.options.settings import Settings
from srb.server.app import create_app
from srb.serving.async_engine import AsyncEngine
from srb.terminal.source import Server
from srb.wire.limits import Limits


@pytest.fixture
async def url(aiohttp_server: Any) -> AsyncIterator[str]:
    """A server on the fake backend, with a key."""
    async with AsyncEngine(lambda _progress: FakeBackend(script=says(b"one", b"two"))) as engine:
        server = await aiohttp_server(create_app(engine, Limits("fake", n=2, max_n=8), api_keys=(b"k",)))
        yield str(server.make_url("/"))


async def collect(settings: Settings, body: dict[str, Any]) -> list[dict[str, Any]]:
    async with Server(settings) as source, source.submit(body) as events:
        return [event async for event in events]


async def test_the_events_of_a_server(url: str) -> None:
    for each in (url, f"{url}v1", f"{url}v1/"):
        async with Server(Settings(url=each, api_key="k,l")) as source:
            assert source.model == "fake"
            # A model in the body would have made it an OpenAI object: the native events are asked for by name.
            async with source.submit({"prompt": "p", "seed": 0, "model": "fake"}) as events:
                got = [event async for event in events]
        assert [event["event"] for event in (got[0], got[-1])] == ["start", "done"]
        assert "".join(event["text"] for event in got if event.get("index") == 1 and "text" in event) == "two"


@pytest.mark.starts
async def test_a_server_may_take_more_alternatives_than_this_machine_would(aiohttp_server: Any) -> None:
    async with AsyncEngine(lambda _progress: FakeBackend(n_cells=4096, script=says(b"one"))) as engine:
        server = await aiohttp_server(create_app(engine, Limits("fake", n=2, max_n=99)))
        url = str(server.make_url("/"))
        out = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "srb", "generate", "p", "--url", url, "-n", "70", "--json"],
            capture_output=True,
            text=True,
        )
    assert (out.returncode, out.stderr) == (0, "")
    assert json.loads(out.stdout.splitlines()[0])["count"] == 70


async def test_the_tree_of_a_server(url: str) -> None:
    body = {"prompt": "p", "max_nodes": 3, "min_probability": 0}
    async with Server(Settings(url=url, api_key="k")) as source, source.explore(body) as events:
        assert [event["event"] async for event in events] == ["start", "node", "node", "node", "done"]


async def test_what_the_server_refuses(url: str) -> None:
    with pytest.raises(AuthenticationError, match="the API key is missing"):
        await collect(Settings(url=url), {"prompt": "p"})
    with pytest.raises(InvalidRequestError, match="min_p must be from 0 to 1, got 2") as caught:
        await collect(Settings(url=url, api_key="k"), {"prompt": "p", "min_p": 2})
    assert caught.value.param == "min_p"


async def test_a_url_where_nobody_or_somebody_else_is(aiohttp_server: Any, unused_tcp_port: int) -> None:
    with pytest.raises(UnavailableError, match=f":{unused_tcp_port}: Connection refused; is the server running"):
        await collect(Settings(url=f"http://127.0.0.1:{unused_tcp_port}"), {})
    with pytest.raises(SettingsError, match="--url must begin with http:// or https://, got 'localhost'"):
        Server(Settings(url="localhost"))

    async def page(_request: web.Request) -> web.Response:
        return web.Response(text="<html>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/v1/models", page)
    server = await aiohttp_server(app)
    with pytest.raises(UnavailableError, match="isn't an srb server; check --url"):
        await collect(Settings(url=str(server.make_url(""))), {})
    with pytest.raises(SrbError, match=r"/elsewhere/v1/models answered 404 Not Found; check --url"):
        await collect(Settings(url=str(server.make_url("/elsewhere"))), {})


@pytest.mark.parametrize(
    ("status", "text", "error", "message"),
    [
        (200, 'data: {"event": "start"}\n\n', UnavailableError, "closed the connection before the last event"),
        (429, '{"error": {"message": "full", "param": null, "code": "queue_full"}}', QueueFullError, "full"),
        (503, '{"error": {"message": "loading", "param": null, "code": null}}', UnavailableError, "loading"),
        (502, "bad gateway", SrbError, "answered 502 Bad Gateway"),
    ],
)
async def test_answers_that_are_no_events(
    aiohttp_server: Any, status: int, text: str, error: type[SrbError], message: str
) -> None:
    async def models(_request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    async def completions(_request: web.Request) -> web.Response:
        return web.Response(status=status, text=text, content_type="application/json")

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/completions", completions)
    server = await aiohttp_server(app)
    with pytest.raises(error, match=message):
        await collect(Settings(url=str(server.make_url("/"))), {"prompt": "p"})
