"""CORS, as a browser sees it."""

import pytest
from fake_backend import FakeBackend, says
from server.conftest import Client, Connect

from srb.errors import SettingsError
from srb.server.cors import read_origins

LOCAL = ["http://localhost", "http://localhost:3000", "https://127.0.0.1:1", "http://[::1]:8080", "tauri://localhost"]
FOREIGN = [
    "https://example.com",
    "http://localhost.example.com",
    "http://notlocalhost",
    "http://localhost:3000.example.com",
    "http://example.com/localhost",
    "http://127.0.0.1.example.com",
    "http://[::1",
    "null",
    "",
]


async def preflight(client: Client, origin: str, **headers: str) -> dict[str, str]:
    """The headers of the answer to a preflight."""
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST", **headers}
    response = await client.options("/v1/completions", headers=asked)
    assert (response.status, await response.text()) == (200, "")
    assert response.headers["Vary"] == "Origin"
    return dict(response.headers)


async def allowed(client: Client, origin: str) -> str | None:
    """The origin that may read an answer, the same by the preflight and by the answer itself."""
    before = await preflight(client, origin)
    response = await client.get("/health", headers={"Origin": origin})
    assert response.headers["Vary"] == "Origin"
    name = "Access-Control-Allow-Origin"
    assert before.get(name) == response.headers.get(name)
    assert ("Access-Control-Allow-Methods" in before) == (name in before)
    return before.get(name)


async def test_only_pages_of_this_machine_by_default(connect: Connect) -> None:
    client = await connect(FakeBackend())
    assert [await allowed(client, origin) for origin in LOCAL] == LOCAL
    assert [await allowed(client, origin) for origin in FOREIGN] == [None] * len(FOREIGN)


async def test_listed_origins(connect: Connect) -> None:
    client = await connect(FakeBackend(), cors_origins="https://a.example, HTTP://B.example:81,null")
    for origin in ("https://a.example", "http://b.example:81", "null"):
        assert await allowed(client, origin) == origin
    for origin in ("http://a.example", "https://a.example:444", "http://b.example", "http://localhost"):
        assert await allowed(client, origin) is None
    client = await connect(FakeBackend(), cors_origins="localhost,https://a.example")
    assert await allowed(client, "http://localhost:5") == "http://localhost:5"
    assert await allowed(client, "https://a.example") == "https://a.example"


async def test_all_origins_or_none(connect: Connect) -> None:
    client = await connect(FakeBackend(), cors_origins="*")
    assert [await allowed(client, origin) for origin in (*LOCAL, *FOREIGN)] == ["*"] * (len(LOCAL) + len(FOREIGN))
    client = await connect(FakeBackend(), cors_origins="")
    assert [await allowed(client, origin) for origin in (*LOCAL, *FOREIGN)] == [None] * (len(LOCAL) + len(FOREIGN))


async def test_a_preflight_needs_no_key_and_allows_to_send_one(connect: Connect) -> None:
    client = await connect(FakeBackend(), api_keys=(b"key",))
    asked = {"Access-Control-Request-Headers": "authorization,content-type,x-api-key,x-stainless-os"}
    headers = await preflight(client, "http://localhost:3000", **asked)
    assert headers["Access-Control-Allow-Methods"] == "*"
    assert headers["Access-Control-Allow-Headers"] == "*, Authorization"
    assert "Access-Control-Allow-Private-Network" not in headers
    headers = await preflight(client, "http://localhost", **{"Access-Control-Request-Private-Network": "true"})
    assert headers["Access-Control-Allow-Private-Network"] == "true"
    response = await client.options("/v1/completions", headers={"Origin": "http://localhost"})
    assert response.status == 401  # OPTIONS, but no preflight


async def test_streams_and_errors_can_be_read_too(connect: Connect) -> None:
    client = await connect(FakeBackend(script=says(b"a")), api_keys=(b"key",))
    key, origin = {"x-api-key": "key"}, {"Origin": "http://localhost:3000"}
    stream = await client.post("/v1/completions", json={"prompt": "p"}, headers=key | origin)
    bad = await client.post("/v1/completions", json={}, headers=key | origin)
    no_key = await client.post("/v1/completions", json={"prompt": "p"}, headers=origin)
    missing = await client.get("/nothing", headers=key | origin)
    assert [response.status for response in (stream, bad, no_key, missing)] == [200, 400, 401, 404]
    for response in (stream, bad, no_key, missing):
        assert response.headers["Access-Control-Allow-Origin"] == "http://localhost:3000"
        assert response.headers["Access-Control-Expose-Headers"] == "X-Request-Id, x-srb-ignored, Retry-After"
        assert response.headers["Vary"] == "Origin"
    assert (await stream.text()).count('"event": "done"') == 1


@pytest.mark.parametrize("text", ["example.com", "https://a.example/", "https://a.example b", "http://a?b", "9"])
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="without a path"):
        read_origins(text)
