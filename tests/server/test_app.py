"""The routes, over HTTP, on the fake backend."""

import asyncio
import gzip
import io
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
from aiohttp import ClientResponse
from aiohttp.compression_utils import ZLibDecompressor
from fake_backend import ByteTokenizer, FakeBackend, Gate, says
from server.conftest import Client, Connect
from waiting import Clock, until
from yarl import URL

from srb.errors import ModelLoadError
from srb.server.app import create_app
from srb.server.http import bodies, exchange, sse
from srb.server.http.bodies import MAX_BODY_BYTES
from srb.server.http.exchange import ENGINE
from srb.serving.async_engine import AsyncEngine
from srb.wire.limits import Limits


async def events_of(response: ClientResponse) -> list[dict[str, Any]]:
    """All events of a stream, checked to be an `id:` line that counts up, a `data:` line and a blank one each."""
    assert response.status == 200, await response.text()
    lines = (await response.text()).split("\n\n")
    assert lines.pop() == ""
    heads, data = zip(*(line.split("\n") for line in lines), strict=True)
    assert list(heads) == [f"id: {number}" for number in range(1, len(lines) + 1)]
    assert all(line.startswith("data: ") for line in data)
    return [json.loads(line.removeprefix("data: ")) for line in data]


async def test_what_a_stream_begins_with(connect: Connect) -> None:
    client = await connect(FakeBackend(script=says(b"a")))
    response = await client.post("/v1/completions", json={"prompt": "p", "n": 2, "top_a": 1})
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert response.headers["Cache-Control"] == "no-cache, no-transform"
    assert response.headers["X-Accel-Buffering"] == "no"
    start = (await events_of(response))[0]
    assert start["created"] > 1_700_000_000
    assert (start["id"], start["ignored"]) == (response.headers["X-Request-Id"], ["top_a"])


async def test_the_form_content_type_of_a_bare_curl_is_taken(connect: Connect) -> None:
    client = await connect(FakeBackend(script=says(b"a")))
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    events = await events_of(await client.post("/v1/completions", data='{"prompt": "p"}', headers=headers))
    assert events[0]["count"] == 4  # the server's --n


async def test_labels_come_back_even_those_that_are_not_unicode(connect: Connect) -> None:
    client = await connect(FakeBackend(script=says(b"a")))
    body = '{"prompt": "p", "branches": [{"label": "wild"}, {"label": "\\ud800"}, {}]}'
    events = await events_of(await client.post("/v1/completions", data=body))
    assert events[0]["labels"] == ["wild", "\ud800", None]


@pytest.mark.parametrize("sent", ["<s>", ["x", "<s>"]])
async def test_the_name_of_a_special_token_is_a_stop_string(connect: Connect, sent: Any) -> None:
    class Tokenizer(ByteTokenizer):
        """Its token 0 is a special one."""

        def piece(self, token: int) -> bytes:
            return b"" if token == 0 else super().piece(token)

        def special_piece(self, token: int) -> bytes:
            return b"<s>" if token == 0 else super().special_piece(token)

    backend = FakeBackend(script=says(b"ab\0cd"))
    backend.tokenizer = Tokenizer()
    client = await connect(backend)
    body = {"prompt": "p", "seed": 0, "max_tokens": 9, "n": 1, "stream": False}
    for stop, text, reason in ((sent, "ab", "<s>"), ("s>", "abcd", None)):
        answer = await (await client.post("/v1/completions", json=body | {"stop": stop})).json()
        assert answer["choices"][0]["text"] == text
        events = await events_of(await client.post("/v1/completions", json=body | {"stop": stop, "stream": "events"}))
        assert [event["stop_reason"] for event in events if event["event"] == "stop"] == [reason]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "", "model": "fake"}),
        ("/v1/completions", {"prompt": ["", "a"], "model": "fake"}),
        ("/completion", {"prompt": ""}),
        ("/api/v1/generate", {"prompt": ""}),
    ],
)
async def test_an_empty_prompt_is_the_bos_token_of_a_model_that_adds_one(
    connect: Connect, path: str, body: dict[str, Any]
) -> None:
    class Tokenizer(ByteTokenizer):
        """It adds BOS."""

        def tokenize(self, text: str, *, is_prompt: bool = True, parse_special: bool = True) -> tuple[int, ...]:
            return (1, *text.encode()) if is_prompt else tuple(text.encode())

    backend = FakeBackend()
    backend.tokenizer = Tokenizer()
    response = await (await connect(backend)).post(path, json=body | {"seed": 0, "max_tokens": 3})
    assert response.status == 200, await response.text()


async def test_a_model_that_cannot_wake_is_a_503_and_the_next_request_tries_again(connect: Connect) -> None:
    def fail() -> None:
        raise ModelLoadError("llama.cpp can't make a context of 256 cells: out of memory")

    client = await connect(backend := FakeBackend(script=says(b"text")), sleep_after=0.001)
    ready = {"prompt": "p", "n": 1, "stream": False}
    bodies = {
        "/v1/completions": ready,
        "/completion": {"prompt": "p"},
        "/api/generate": {"model": "fake", "prompt": "p", "stream": False, "raw": True},
        "/api/v1/generate": {"prompt": "p"},
    }
    for path, body in bodies.items():
        backend.on_prepare = fail
        async with client.post(path, json=body) as answer:
            assert (answer.status, answer.headers.get("Retry-After")) == (503, "2"), (path, await answer.text())
            assert "out of memory" in await answer.text()
        events = await events_of(await client.post("/v1/completions", json={"prompt": "p", "n": 1}))
        assert [event["event"] for event in events] == ["error", "stop", "done"]
        assert (await client.get("/health")).status == 200
        backend.on_prepare = lambda: None
        async with client.post("/v1/completions", json=ready) as answer:
            assert (await answer.json())["choices"][0]["text"] == "text"


async def test_pings_while_nothing_comes(connect: Connect) -> None:
    clock = Clock()
    gate = Gate(backend := FakeBackend(script=says(b"a")))
    client = await connect(backend)
    response = await client.post("/v1/completions", json={"prompt": "p", "n": 1})
    lines = []
    while b": ping\n" not in lines:
        reading = asyncio.ensure_future(response.content.readline())
        await clock.until(reading.done, by=1)
        lines.append(reading.result())
    assert lines.count(b"\n") == lines.count(b"id: 1\n")
    gate.open()
    rest = await response.text()
    assert "ping\n\n" not in rest
    assert rest.count('"event": "done"') == 1


async def test_spaces_while_an_object_takes_long(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "FIRST_SPACE_SECONDS", 0.01)
    monkeypatch.setattr(sse, "PING_SECONDS", 0.01)
    for path, more in (("/v1/completions", {"prompt": "p"}), ("/completion", {"prompt": "p"})):
        gate = Gate(backend := FakeBackend(script=says(b"a")))
        client = await connect(backend)
        response = await client.post(path, json={"stream": False, "n": 1, "logit_bias_": 1} | more)
        assert await response.content.readexactly(2) == b"  "
        assert response.headers["x-srb-ignored"] == "logit_bias_"
        gate.open()
        answer = await response.json()
        assert "a" in (answer["choices"][0]["text"] if "choices" in answer else answer["content"])


async def test_an_error_after_spaces(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "FIRST_SPACE_SECONDS", 0.01)
    gate = Gate(backend := FakeBackend(fail_decodes={1, 2}))
    client = await connect(backend)
    response = await client.post("/v1/completions", json={"prompt": "p", "n": 1, "stream": False})
    assert await response.content.readexactly(1) == b" "
    gate.open()
    assert (await response.json())["error"]["code"] == "backend_error"
    assert (await (await client.get("/health")).json())["last_error"] == "llama_decode failed with code -3"


BAD: list[tuple[Any, int, str | None, str]] = [
    ("not json", 400, None, "not JSON"),
    (b'{"prompt": "\xff"}', 400, None, "not JSON"),
    ("", 400, None, "not JSON"),
    ("[]", 400, None, "must be a JSON object"),
    ("[" * 100_000, 400, None, "nested too deeply"),
    ('{"prompt": "p", "n": 1' + "0" * 5_000 + "}", 400, None, "too many digits"),
    ('{"prompt": "p", "temperature": NaN}', 400, None, "NaN"),
    ('{"prompt": "p", "unknown": Infinity}', 400, None, "Infinity"),
    ('{"prompt": "p", "temperature": 1e999}', 400, "temperature", "finite"),
    ('{"prompt": "\\ud800"}', 400, "prompt", "not valid Unicode"),
    ("{}", 400, "prompt", "prompt is missing"),
    ({"prompt": None}, 400, "prompt", "prompt is missing"),
    ({"prompt": ""}, 400, "prompt", "empty"),
    ({"prompt": []}, 400, "prompt", "empty list"),
    ({"prompt": [[]]}, 400, "prompt[0]", "prompt[0]: prompt must have at least one token"),
    ({"prompt": ["a", ""]}, 400, "prompt[1]", "prompt[1]: prompt must not be empty"),
    ({"prompt": 5}, 400, "prompt", "must be a string"),
    ({"prompt": {"text": "p"}}, 400, "prompt", "must be a string"),
    ({"prompt": [1, ["p"]]}, 400, "prompt", "must be a string"),
    ({"prompt": ["p", 1.5]}, 400, "prompt[1]", "must be a string"),
    ({"prompt": {"prompt_string": 5}}, 400, "prompt", "a text as its prompt_string"),
    ({"prompt": {"prompt_string": "p", "multimodal_data": ["x"]}}, 400, "prompt", "base64"),
    ({"prompt": [-1]}, 400, "prompt", "from 0 to 256"),
    ({"prompt": [257]}, 400, "prompt", "from 0 to 256"),
    ({"prompt": ["p"] * 3, "n": 3}, 400, "prompt", "the limit is 8"),
    ({"n": 0}, 400, "n", "from 1 to 8, got 0"),
    ({"n": 9}, 400, "n", "from 1 to 8, got 9"),
    ({"n": "many"}, 400, "n", "integer"),
    ({"max_tokens": 1_000}, 400, "max_tokens", "prompt_tokens = 1 and 1000 new tokens are more than the 256"),
    ({"temperature": -0.1}, 400, "temperature", "from 0 to 100, got -0.1"),
    ({"stop": 5}, 400, "stop", "list"),
    ({"stop": ["x", 5]}, 400, "stop[1]", "string"),
    ({"ignore_eos": "perhaps"}, 400, "ignore_eos", "boolean"),
    ({"branches": []}, 400, "branches", "from 1 to 8, got 0"),
    ({"branches": [{}] * 9}, 400, "branches", "from 1 to 8, got 9"),
    ({"branches": [{}, {}], "n": 3}, 400, "n", "n is 3, but branches has 2"),
    ({"branches": [{}, 5]}, 400, "branches[1]", "an object, got 5"),
    ({"branches": [{}, {"temperature": -1}]}, 400, "branches[1].temperature", "from 0 to 100, got -1"),
    ({"stream": "perhaps"}, 400, "stream", "perhaps"),
    (b"x" * MAX_BODY_BYTES, 400, None, "not JSON"),
    (b"x" * (MAX_BODY_BYTES + 1), 413, None, str(MAX_BODY_BYTES)),
]


async def test_bad_input_is_refused_before_any_event_and_the_next_request_works(connect: Connect) -> None:
    client = await connect(backend := FakeBackend(script=says(b"a")))
    for body, status, param, message in BAD:
        if isinstance(body, dict):
            body = json.dumps({"prompt": "p"} | body)
        data = io.BytesIO(body) if isinstance(body, bytes) else body
        response = await client.post("/v1/completions", data=data)
        case = f"{body[:60]!r} -> {await response.text()}"
        assert response.status == status, case
        answer = await response.json()
        assert set(answer) == {"error"}, case
        assert set(answer["error"]) == {"message", "type", "param", "code"}, case
        assert answer["error"]["type"] == "invalid_request_error", case
        assert answer["error"]["param"] == param, case
        assert message in answer["error"]["message"], case
    assert backend.decodes == 0
    events = await events_of(await client.post("/v1/completions", json={"prompt": "p"}))
    assert events[-1]["event"] == "done"


async def test_a_body_past_the_limit_is_refused_however_it_is_sent(connect: Connect) -> None:
    client = await connect(FakeBackend())

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 65_536 + 2):
            yield b"x" * 65_536

    response = await client.post("/v1/completions", data=chunks())
    assert response.status == 413
    assert (await response.json())["error"]["code"] == "payload_too_large"


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "GZIP", "br", "zstd", "identity, gzip", "x" * 1_000])
async def test_a_compressed_body_is_refused(connect: Connect, encoding: str) -> None:
    client = await connect(backend := FakeBackend())
    for path in ("/v1/completions", "/completion", "/tokenize"):
        response = await client.post(path, data=b"{}", headers={"Content-Encoding": encoding})
        assert (response.status, response.headers["Accept-Encoding"]) == (415, "identity")
        error = (await response.json())["error"]
        assert (error["code"], error["param"]) == ("unsupported_media_type", None)
        assert json.dumps(encoding)[:50] in error["message"]
        assert len(error["message"]) < 250
    assert backend.decodes == 0


@pytest.mark.parametrize("encoding", ["", "identity", "Identity"])
async def test_a_body_that_is_said_to_be_as_it_is_is_taken(connect: Connect, encoding: str) -> None:
    client = await connect(FakeBackend())
    response = await client.post("/tokenize", data=b'{"content": "a"}', headers={"Content-Encoding": encoding})
    assert (response.status, await response.json()) == (200, {"tokens": [97]})


async def test_nobody_inflates_what_is_refused(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    inflated: list[bytes] = []

    def inflate(_self: object, data: bytes, **_options: Any) -> None:
        inflated.append(data)
        raise ValueError

    monkeypatch.setattr(ZLibDecompressor, "decompress_sync", inflate)
    client = await connect(FakeBackend(), api_keys=(b"key",))
    bomb = gzip.compress(b" " * MAX_BODY_BYTES)
    key = {"x-api-key": "key"}
    for path, headers, status in (
        ("/v1/completions", {}, 401),
        ("/nothing", key, 404),
        ("/health", key, 405),
        ("/tokenize", key, 415),
    ):
        response = await client.post(path, data=bomb, headers={"Content-Encoding": "gzip"} | headers)
        assert response.status == status
        assert (await client.get("/health")).status == 200
    assert inflated == []


async def test_a_refused_body_is_read_to_its_end_only_if_that_is_near(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "DRAIN_BYTES", 1 << 20)
    client = await connect(FakeBackend())
    response = await client.post("/nothing", data=b"x" * (1 << 19))
    assert (response.status, response.headers.get("Connection")) == (404, None)
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    writer.write(b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n\r\n")
    assert b" 404 " in await reader.readline()
    sent = 0
    with suppress(ConnectionError):
        while sent < 256 << 20:
            writer.write(b"x" * (1 << 20))
            await writer.drain()
            sent += 1 << 20
    writer.close()
    assert sent < 64 << 20  # the rest is what sockets hold


async def test_unknown_paths_and_methods(connect: Connect) -> None:
    client = await connect(FakeBackend())
    response = await client.get("/v1/nothing")
    assert response.status == 404
    assert "/v1/nothing" in (await response.json())["error"]["message"]
    response = await client.get("/v1/completions")
    assert response.status == 405
    assert response.headers["Allow"] == "POST"
    assert "POST" in (await response.json())["error"]["message"]


async def test_while_the_model_loads_everything_says_so(aiohttp_client: Any) -> None:
    loading = threading.Event()
    go_on = threading.Event()

    def load(progress: Callable[[float], bool]) -> FakeBackend:
        progress(0.5)
        loading.set()
        assert go_on.wait(10)
        return FakeBackend()

    engine = AsyncEngine(load)
    engine.start()
    client: Client = await aiohttp_client(create_app(engine, Limits("fake", n=4, max_n=8)))
    await asyncio.to_thread(loading.wait)
    response = await client.get("/health")
    assert (response.status, response.headers["Retry-After"]) == (503, "2")
    answer = await response.json()
    assert (answer["status"], answer["progress"]) == ("loading model", 0.5)
    posts = [("POST", path) for path in ("/v1/completions", "/completion", "/infill", "/tokenize", "/detokenize")]
    for method, path in (*posts, *[("GET", path) for path in ("/v1/models", "/props", "/slots")]):
        response = await client.request(method, path, json={})
        assert (response.status, response.headers["Retry-After"]) == (503, "2")
        assert "loading" in (await response.json())["error"]["message"]
    go_on.set()
    await engine.ready()
    assert (await client.get("/health")).status == 200
    await engine.stop()
    response = await client.get("/health")
    assert (response.status, (await response.json())["status"]) == (503, "stopping")


async def test_a_dead_engine_is_500_in_health_and_503_for_requests(aiohttp_client: Any) -> None:
    def load(_progress: Callable[[float], bool]) -> FakeBackend:
        raise ModelLoadError("no such model")

    engine = AsyncEngine(load)
    engine.start()
    with pytest.raises(ModelLoadError):
        await engine.ready()
    client: Client = await aiohttp_client(create_app(engine, Limits("fake", n=4, max_n=8)))
    response = await client.get("/health")
    assert (response.status, (await response.json())["status"]) == (500, "error")
    response = await client.post("/v1/completions", json={"prompt": "p"})
    assert response.status == 503
    assert "Retry-After" not in response.headers
    await engine.stop()


async def test_a_fault_of_ours_is_500_with_an_id_that_is_in_the_log(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:

    class Faulty(ByteTokenizer):
        def tokenize(self, text: str, **_options: bool) -> tuple[int, ...]:
            raise ZeroDivisionError

    client = await connect(FakeBackend(tokenizer=Faulty()))
    response = await client.post("/v1/completions", json={"prompt": "p"})
    message = (await response.json())["error"]["message"]
    assert response.status == 500
    assert message.split()[-1] in caplog.text


async def test_a_full_queue_is_429_before_the_body_is_read(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "srb")
    gate = Gate(backend := FakeBackend())
    client = await connect(backend, max_queue=1)
    body = {"prompt": "p", "n": 6, "max_tokens": 3}
    responses = [await client.post("/v1/completions", json=body)]
    await until(lambda: gate.holds)
    while (health := await (await client.get("/health")).json())["waiting"]:
        pass
    assert health["running"] == 1
    responses.append(await client.post("/v1/completions", json=body))
    monkeypatch.setattr("srb.server.routes.mount.read_json", lambda *_, **__: pytest.fail("it was read"))
    refused = await client.post("/v1/completions", json=body)
    assert (refused.status, refused.headers["Retry-After"]) == (429, "2")
    error = (await refused.json())["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
    assert "--max-queue" in error["message"]
    assert caplog.messages[-1] == "event=error method=POST path=/v1/completions status=429 code=queue_full"
    gate.open()
    for response in responses:
        assert (await events_of(response))[-1]["event"] == "done"


async def test_a_request_that_waited_too_long(connect: Connect) -> None:
    """A stream has begun by then and ends as streams do; one object can still be a 503."""
    clock, gate = Clock(), Gate(backend := FakeBackend())
    client = await connect(backend, queue_timeout=5)
    body = {"prompt": "p", "n": 6, "max_tokens": 3, "ignore_eos": True}
    running = await client.post("/v1/completions", json=body)
    await until(lambda: gate.holds and client.app[ENGINE].health.running == 1)
    waiting = [await client.post("/v1/completions", json=body | {"stream": stream}) for stream in ("events", True)]
    task = asyncio.create_task(client.post("/v1/completions", json=body | {"stream": False}))
    engine = client.app[ENGINE]
    await until(lambda: len(engine.requests) == 4)
    await clock.until(lambda: [bool(each.refusal) for each in engine.requests] == [False, True, True, True], by=2)
    gate.open()
    assert {event["finish_reason"] for event in await events_of(running) if event["event"] == "stop"} == {"length"}
    events = await events_of(waiting[0])
    assert [event["event"] for event in events] == ["stop"] * 6 + ["done"]
    assert {event["stop_reason"] for event in events[:-1]} == {"timeout"}
    lines = (await waiting[1].text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all('"finish_reason": "abort", "stop_reason": null' in line for line in lines[:6])
    response = await task
    assert (response.status, response.headers["Retry-After"]) == (503, "2")
    assert "--queue-timeout" in (await response.json())["error"]["message"]


@pytest.mark.parametrize("show_prompts", [False, True])
async def test_the_list_of_requests(connect: Connect, show_prompts: bool) -> None:
    gate = Gate(backend := FakeBackend(n_cells=1_000))
    client = await connect(backend, show_prompts=show_prompts)
    assert await (await client.get("/v1/requests")).json() == {"object": "list", "data": []}
    bodies = [{"prompt": ["hé", "you"], "n": 4, "max_tokens": 9}, {"prompt": [104, 256], "n": 2}]
    responses = [await client.post("/v1/completions", json=bodies[0])]
    engine = client.app[ENGINE]
    await until(lambda: gate.holds and engine.health.running == 1)
    responses.append(await client.post("/v1/completions", json=bodies[1]))
    answer = await (await client.get("/v1/requests")).json()
    assert all(0 <= each.pop("age_seconds") < 60 for each in answer["data"])
    expected: list[dict[str, Any]] = [
        {"status": "running", "prompts": 2, "count": 8, "running": 8, "prompt_tokens": 6},
        {"status": "waiting", "prompts": 1, "count": 2, "running": 0, "prompt_tokens": 2},
    ]
    for each, response, texts in zip(expected, responses, (["hé", "you"], ["h<END>"]), strict=True):
        each |= {"id": response.headers["X-Request-Id"]} | ({"prompt": texts} if show_prompts else {})
    assert answer == {"object": "list", "data": expected}
    gate.open()
    for response in responses:
        await events_of(response)
    assert (await (await client.get("/v1/requests")).json())["data"] == []


async def test_refused_requests_are_in_the_log_without_what_was_sent(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    client = await connect(FakeBackend())
    secret: Any = "secret"
    bodies = [
        {"prompt": secret, "n": 0},
        {"prompt": {"text": secret}},
        {"prompt": [secret, None]},
        secret,
        {"prompt": "p", "n": secret},
        {"prompt": "p", "stop": [secret, 1]},
        {"prompt": "p", "branches": [{"temperature": secret}]},
        {"prompt": "p", secret: 1, "logit_bias": {secret: secret}},
    ]
    for body in bodies:
        assert (await client.post("/v1/completions", json=body)).status == 400
    for path in ("/secret", "/v1/completions/secret", "/v1/models/secret", "/web/secret", "/v1/completions?k=secret"):
        assert (await client.get(path)).status in (404, 405)
    assert caplog.messages[:2] == [
        "event=error method=POST path=/v1/completions status=400 code=invalid_value param=n",
        "event=error method=POST path=/v1/completions status=400 code=invalid_value param=prompt",
    ]
    assert "event=error method=GET path=/* status=404 code=not_found" in caplog.messages
    assert "event=error method=GET path=/v1/completions status=405 code=method_not_allowed" in caplog.messages
    assert "event=error method=GET path=/v1/completions/{id} status=404 code=not_found param=id" in caplog.messages
    assert "secret" not in caplog.text


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/v1/v1/completions?key=sk-1", "/v1/v1/completions"),
        ("/v2/models/", "/v2/models/"),
        ("/sk-1/v1/messages", "/*/v1/messages"),
        ("/api/v1/chat/completions/%0Aevent=x", "/api/v1/chat/completions/*"),
        ("/" + "v1/" * 100, "/v1" * 8),
    ],
)
async def test_a_wrong_base_address_can_be_found_in_the_log(
    path: str, shown: str, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    client = await connect(FakeBackend())
    assert (await client.get(URL(path, encoded=True))).status == 404
    assert f"event=error method=GET path={shown} status=404 code=not_found" in caplog.messages
