"""API keys, over HTTP."""

import pytest
from fake_backend import FakeBackend, says
from server.conftest import Connect

KEYS = (b"sk-first", "schlüssel".encode())


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer sk-first"},
        {"Authorization": "bearer   sk-first "},
        {"Authorization": "Bearer schlüssel"},
        {"X-Api-Key": "sk-first"},
        {"X-Api-Key": "sk-first", "Authorization": "Bearer sk-none"},
        {"X-Api-Key": "sk-first", "Authorization": "Basic dTpw"},
    ],
)
async def test_any_of_the_keys_lets_in(connect: Connect, headers: dict[str, str]) -> None:
    client = await connect(FakeBackend(script=says(b"a")), api_keys=KEYS)
    assert (await client.get("/v1/models", headers=headers)).status == 200
    response = await client.post("/v1/completions", json={"prompt": "p"}, headers=headers)
    assert response.status == 200
    assert (await response.text()).count('"event": "stop"') == 4


WRONG: list[dict[str, str]] = [
    {},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer "},
    {"Authorization": "sk-first"},
    {"Authorization": "Basic sk-first"},
    {"Authorization": "Bearer sk-firs"},
    {"Authorization": "Bearer sk-first2"},
    {"Authorization": "Bearer sk-first,schlüssel"},
    {"Authorization": "Bearer \udcff"},
    {"X-Api-Key": ""},
    {"X-Api-Key": "Bearer sk-first"},
]
ELSEWHERE = [
    ("POST", "/v1/completions/"),
    ("GET", "/v1/models"),
    ("DELETE", "/v1/completions/cmpl-1"),
    ("GET", "/nothing"),
    ("GET", "/health/../v1/models"),
    ("GET", "/x//health"),
]


async def test_without_a_key_nothing_runs(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    client = await connect(backend := FakeBackend(), api_keys=KEYS)
    sent = [("POST", "/v1/completions", headers) for headers in WRONG]
    for method, path, headers in [*sent, *((*each, {}) for each in ELSEWHERE)]:
        response = await client.request(method, path, data=b'{"prompt": "p"}', headers=headers)
        assert (response.status, response.headers["WWW-Authenticate"]) == (401, "Bearer"), (path, headers)
        error = (await response.json())["error"]
        assert (error["type"], error["param"], error["code"]) == ("authentication_error", None, "invalid_api_key")
        assert "Authorization: Bearer KEY" in error["message"]
        assert "sk-" not in str(error)
        assert (await client.get("/health", headers=headers)).status == 200
    assert backend.decodes == 0
    assert "sk-" not in caplog.text
