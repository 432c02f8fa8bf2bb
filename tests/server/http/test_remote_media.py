"""Images at other addresses, and what keeps requests from reading what only the server can reach."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from server.conftest import Connect
from server.formats.test_media_parts import CAT, DOG, Seeing, post, text, user
from waiting import Clock

from srb.errors import InvalidRequestError
from srb.server.http.remote_media import MAX_BYTES, fetch, is_public


def only_this(address: str) -> bool:
    return address == "127.0.0.1"


@pytest.fixture
async def elsewhere(aiohttp_server: Callable[..., Awaitable[TestServer]]) -> TestServer:
    async def answer(request: web.Request) -> web.StreamResponse:
        match request.path:
            case "/cat":
                return web.Response(body=CAT, content_type="image/png")
            case "/dog":
                raise web.HTTPFound("/again")
            case "/again":
                return web.Response(body=DOG, content_type="audio/wav")
            case "/page":
                return web.Response(text="<html>", content_type="text/html")
            case "/large":
                return web.Response(body=bytes(MAX_BYTES + 1), content_type="image/png")
            case "/half":
                return web.Response(body=bytes(600), content_type="image/png")
            case "/slow":
                await asyncio.sleep(3600)
            case "/loop":
                raise web.HTTPFound("/loop")
            case "/inside":
                raise web.HTTPFound("http://127.0.0.2:1/")
            case "/file":
                raise web.HTTPFound("file:///etc/passwd")
        raise web.HTTPNotFound

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    return await aiohttp_server(app)


async def test_what_a_request_names_is_fetched(connect: Connect, elsewhere: TestServer) -> None:
    seeing = Seeing()
    client = await connect(seeing.backend, fetch=lambda urls: fetch(urls, only_this))
    images = [{"type": "image_url", "image_url": {"url": str(elsewhere.make_url(path))}} for path in ("/cat", "/dog")]
    await post(client, "/v1/chat/completions", {"messages": user(*images, text("?")), "stream": False})
    assert seeing.first == "u:<[cat]><[dog]>?\na:"


async def test_nothing_is_fetched_unless_it_is_allowed(connect: Connect, elsewhere: TestServer) -> None:
    client = await connect(Seeing().backend)
    image = {"type": "image_url", "image_url": {"url": str(elsewhere.make_url("/cat"))}}
    answer = await post(client, "/v1/chat/completions", {"messages": user(image)}, 400)
    assert "--allow-remote-media" in answer["error"]["message"]


async def test_what_cant_be_fetched(elsewhere: TestServer) -> None:
    clock = Clock()
    for path, reason in (
        ("/page", "neither an image nor a sound"),
        ("/none", "the status was 404"),
        ("/large", f"more than {MAX_BYTES} bytes"),
        ("/loop", "more than 3 redirects"),
        ("/inside", "isn't public"),
        ("/file", "must begin with http"),
        ("file:///etc/passwd", "must begin with http"),
        ("http://", "must begin with http"),
        ("http://[z]@", "must begin with http"),
        ("/slow", "longer than 10 seconds"),
    ):
        urls = [str(elsewhere.make_url("/cat")), path if ":" in path else str(elsewhere.make_url(path))]
        fetching = asyncio.create_task(fetch(urls, only_this))
        await (clock.until(fetching.done) if path == "/slow" else asyncio.wait({fetching}))
        with pytest.raises(InvalidRequestError, match=reason):
            await fetching


async def test_how_much_a_request_may_name(elsewhere: TestServer) -> None:
    urls = [str(elsewhere.make_url("/half").with_query(k=str(k))) for k in range(17)]
    assert len(await fetch(urls[:16], only_this)) == 16
    with pytest.raises(InvalidRequestError, match="has 17 URLs of images and sounds; the limit is 16"):
        await fetch(urls, only_this)
    assert len(await fetch(urls[:1], only_this, max_bytes=1_000)) == 1
    with pytest.raises(InvalidRequestError, match="all files of the request have more than 1000 bytes"):
        await fetch(urls[:2], only_this, max_bytes=1_000)


async def test_only_public_addresses_are_spoken_to(elsewhere: TestServer) -> None:
    port = elsewhere.port
    hosts = ("127.0.0.1", "localhost", "2130706433", "0x7f.1", "127.1", "0177.0.0.1", "[::1]", "[::ffff:127.0.0.1]")
    for host in (*hosts, "0", "[::]"):
        with pytest.raises(InvalidRequestError, match=r"isn't public|URL must .* be valid"):
            await fetch([f"http://{host}:{port}/cat"])


async def test_a_name_is_looked_at_when_it_is_resolved(elsewhere: TestServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that had a public address a moment ago."""

    def resolve(_host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(InvalidRequestError, match="isn't public"):
        await fetch([f"http://example.org:{elsewhere.port}/cat"])
    assert await fetch([f"http://example.org:{elsewhere.port}/cat"], only_this) == [CAT]


PRIVATE = """10.0.0.1 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 0.0.0.0 224.0.0.1 255.255.255.255 ::1 fe80::1
fe80::1%eth0 fc00::1 ff02::1 ::ffff:10.0.0.1 64:ff9b::a00:1 2002:a00:1:: x fec0::1 ::127.0.0.1
::ffff:0:7f00:1 ::7f00:1%1 64:ff9b:1::7f00:1 2001:0:7f00:1:: 100::1 5f00::1 3fff::1 4000::1 192.0.0.192 168.63.129.16"""


@pytest.mark.parametrize("address", PRIVATE.split())
def test_addresses_that_arent_public(address: str) -> None:
    assert not is_public(address)


def test_addresses_that_are() -> None:
    assert is_public("8.8.8.8")
    assert is_public("2606:4700::1111")
    assert is_public("2a00:1450:4001::64")
