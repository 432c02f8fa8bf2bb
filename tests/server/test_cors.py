"""CORS, as a browser sees it."""

import pytest
from fake_backend import FakeBackend, says
from server.conftest import Client, Connect

from srb.errors import SettingsError
from srb.server.access import MAX_LOGGED, read_origins

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


@pytest.mark.parametrize("origin", FOREIGN)
async def test_a_foreign_page_runs_and_ends_nothing_but_may_ask(connect: Connect, origin: str) -> None:
    client = await connect(backend := FakeBackend())
    for method, path in (("POST", "/v1/completions"), ("POST", "/tokenize"), ("DELETE", "/v1/completions/x")):
        response = await client.request(method, path, data=b'{"prompt": "p"}', headers={"Origin": origin})
        assert response.status == 403, path
        error = (await response.json())["error"]
        assert (error["type"], error["code"]) == ("permission_error", "origin_not_allowed")
        assert "--cors-origins" in error["message"]
        assert "Access-Control-Allow-Origin" not in response.headers
    for path in ("/v1/models", "/metrics", "/v1/requests", "/"):
        assert (await client.get(path, headers={"Origin": origin})).status == 200
        assert (await client.head(path, headers={"Origin": origin})).status == 200
    assert backend.decodes == 0


@pytest.mark.parametrize(
    ("origins", "headers"),
    [
        ("", {}),
        ("", {"Host": "192.168.1.5:9090", "Origin": "http://192.168.1.5:9090"}),
        ("", {"Host": "LOCALHOST:9090", "Origin": "http://localhost:9090"}),
        ("", {"Host": "[::1]:9090", "Origin": "http://[::1]:9090"}),
        ("", {"Host": "srb.localhost", "Origin": "https://srb.localhost"}),  # behind a proxy with TLS
        ("", {"Host": "srb.localhost:443", "Origin": "https://srb.localhost"}),
        ("", {"Host": "127.0.0.1:9090", "Origin": "https://srb.example", "Sec-Fetch-Site": "same-origin"}),
        ("", {"Origin": "moz-extension://5f0c", "Sec-Fetch-Site": "none"}),
        ("localhost", {"Origin": "http://localhost:5173", "Sec-Fetch-Site": "same-site"}),
        ("https://a.example,null", {"Origin": "https://A.example", "Sec-Fetch-Site": "cross-site"}),
        ("https://a.example,null", {"Origin": "null", "Sec-Fetch-Site": "cross-site"}),
        ("*", {"Origin": "https://example.com", "Sec-Fetch-Site": "cross-site"}),
    ],
)
async def test_api_clients_the_own_page_and_allowed_pages_notice_nothing(
    connect: Connect, origins: str, headers: dict[str, str]
) -> None:
    client = await connect(FakeBackend(script=says(b"a")), cors_origins=origins)
    response = await client.post("/v1/completions", data=b'{"prompt": "p"}', headers=headers)
    assert response.status == 200, await response.text()


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "192.168.1.5:9090", "Origin": "http://192.168.1.5"},
        {"Host": "192.168.1.5:9090", "Origin": "http://192.168.1.5:9091"},
        {"Host": "192.168.1.5:9090", "Origin": "http://192.168.1.50:9090"},
        {"Host": "srb.localhost", "Origin": "http://srb.localhost:9090"},
        {"Host": "", "Origin": "null"},
        {"Host": "", "Origin": "http://"},
        {"Host": "localhost", "Origin": "localhost"},
        {"Host": "[::1]", "Origin": "http://[::1"},
        {"Origin": "https://example.com", "Sec-Fetch-Site": "same-site"},
    ],
)
async def test_what_only_looks_like_the_own_page_is_refused(connect: Connect, headers: dict[str, str]) -> None:
    client = await connect(FakeBackend(), cors_origins="")
    response = await client.post("/v1/completions", data=b'{"prompt": "p"}', headers=headers)
    assert response.status == 403, await response.text()


async def test_a_refused_origin_is_logged_once_with_the_option_that_lets_it_in(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    client = await connect(FakeBackend(script=says(b"a")))
    for origin in ("null", "https://lite.koboldai.net", "http://localhost:3000", "no origin", "x" * 1_000):
        for _ in range(2):
            await client.get("/v1/models", headers={"Origin": origin})
            await preflight(client, origin)
    await client.post("/v1/completions", json={"prompt": "p"}, headers={"Origin": "null"})
    own = {"Origin": "http://192.168.1.5", "Host": "192.168.1.5"}
    assert (await client.post("/v1/completions", json={"prompt": "p"}, headers=own)).status == 200
    said = [record.message for record in caplog.records if record.name == "srb"]
    assert said == [
        f"a page of the origin {origin} can't use this server; to allow it, add --cors-origins localhost,{origin}"
        for origin in ("null", "https://lite.koboldai.net")
    ]
    caplog.clear()
    for k in range(2 * MAX_LOGGED):
        await client.get("/health", headers={"Origin": f"https://{k}.example"})
    assert sum(record.name == "srb" for record in caplog.records) == MAX_LOGGED - 2


@pytest.mark.parametrize("text", ["example.com", "https://a.example/", "https://a.example b", "http://a?b", "9"])
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="without a path"):
        read_origins(text)
