"""Requests that are read again, looked at, forgotten."""

import asyncio
from typing import Any

import pytest
from fake_backend import FakeBackend, Gate, babble, says
from server.conftest import Client, Connect
from waiting import Clock, until

from srb.server.http.exchange import ENGINE

BODY: dict[str, Any] = {"prompt": "p", "n": 3, "seed": 0, "max_tokens": 6, "ignore_eos": True, "stop": ["zz"]}
KEPT: dict[str, Any] = {"keep_seconds": 60, "keep_bytes": 1 << 20}
EVENTS = "/v1/completions/{}/events"


async def post(client: Client, path: str = "/v1/completions", **fields: Any) -> tuple[str, bytes]:
    """The id of a request that is over, and its answer."""
    response = await client.post(path, json=BODY | fields)
    assert response.status == 200, await response.text()
    return response.headers["X-Request-Id"], await response.read()


async def leave(client: Client, path: str = "/v1/completions", **fields: Any) -> str:
    """The id of a request whose only reader has gone as soon as it was taken."""
    response = await client.post(path, json=BODY | fields)
    response.close()
    return response.headers["X-Request-Id"]


def blocks(stream: bytes) -> list[bytes]:
    return [block for block in stream.split(b"\n\n") if block]


async def test_what_is_read_again_after_any_event_is_byte_for_byte_the_rest(connect: Connect) -> None:
    client = await connect(FakeBackend(script=babble), **KEPT)
    request_id, whole = await post(client)
    events = blocks(whole)
    path = EVENTS.format(request_id)
    assert await (await client.get(path)).read() == whole
    for after in range(len(events) + 1):
        for options in ({"headers": {"Last-Event-ID": str(after)}}, {"params": {"starting_after": str(after)}}):
            response = await client.get(path, **options)  # type: ignore[arg-type]
            assert response.status == (200 if after < len(events) else 204)
            assert response.headers.get("X-Request-Id", request_id) == request_id
            assert blocks(await response.read()) == events[after:]
    response = await client.get(path, params={"starting_after": "1"}, headers={"Last-Event-ID": "3"})
    assert blocks(await response.read()) == events[3:]  # so does a browser's EventSource when it comes again


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"stream": True, "stream_options": {"include_usage": True}, "logprobs": 2}),
        ("/v1/completions", {"stream": False}),
        ("/completion", {"stream": True}),
        ("/completion", {"stream": False}),
        ("/api/v1/generate", {}),
        ("/api/extra/generate/stream", {"n": 1}),
        ("/api/generate", {"n": 1, "raw": True}),
    ],
)
async def test_a_request_is_read_again_in_its_own_format_or_in_native_events(
    connect: Connect, path: str, fields: dict[str, Any], detach: bool
) -> None:
    client = await connect(FakeBackend(script=babble), **KEPT)
    request_id, whole = await post(client, path, **fields, detach=detach)
    again = await client.get(EVENTS.format(request_id))
    assert await again.read() == whole
    native = await client.get(EVENTS.format(request_id), params={"starting_after": "0"})
    assert b'"event": "start"' in blocks(await native.read())[0]


async def test_a_detached_request_lives_on_without_readers(connect: Connect) -> None:
    gate = Gate(backend := FakeBackend(script=babble))
    client = await connect(backend, **KEPT)
    cases: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {}),
        ("/v1/completions", {"stream": True}),
        ("/completion", {"stream": True}),
        ("/api/extra/generate/stream", {"n": 1}),
        ("/api/generate", {"n": 1, "raw": True, "options": {"num_predict": 6, "ignore_eos": True}}),
    ]
    ids = [await leave(client, path, **fields, detach=True) for path, fields in cases]
    engine = client.app[ENGINE]
    assert [each.request.id for each in engine.requests] == ids
    gate.open()
    await until(lambda: not engine.requests)
    for request_id in ids:
        assert {stop.finish_reason for stop in engine.find(request_id).stops} == {"length"}


async def test_an_object_that_nobody_waits_for_any_more_is_there_later(connect: Connect) -> None:
    gate = Gate(backend := FakeBackend(script=babble))
    client = await connect(backend, **KEPT)
    waiting = asyncio.ensure_future(post(client, stream=False, detach=True))
    engine = client.app[ENGINE]
    await until(lambda: bool(engine.requests))
    (event_log,) = engine.requests
    waiting.cancel()
    gate.open()
    await until(lambda: event_log.done)
    answer = await (await client.get(EVENTS.format(event_log.request.id))).json()
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length"] * 3


async def test_a_native_stream_waits_for_its_reader_to_come_back(connect: Connect) -> None:
    clock, gate = Clock(), Gate(backend := FakeBackend(script=babble, n_cells=1_000))
    client = await connect(backend, linger=30, **KEPT)
    engine = client.app[ENGINE]
    gate.step(2)
    request_id = await leave(client, max_tokens=40)
    event_log = engine.find(request_id)
    await until(lambda: len(event_log) > 1)
    await clock.forward(25, by=1)
    back = await client.get(EVENTS.format(request_id), params={"starting_after": "1"})
    await clock.forward(25, by=1)
    gate.open()
    assert b'"event": "done"' in await back.read()
    assert {stop.finish_reason for stop in event_log.stops} == {"length"}


@pytest.mark.parametrize(
    ("linger", "path", "fields"),
    [
        (0.01, "/v1/completions", {}),
        (1_000, "/v1/completions", {"stream": True}),
        (1_000, "/completion", {"stream": True}),
        (1_000, "/api/extra/generate/stream", {"n": 1}),
    ],
)
async def test_who_leaves_has_cancelled_at_once_or_when_the_time_is_over(
    connect: Connect, linger: float, path: str, fields: dict[str, Any]
) -> None:
    gate = Gate(backend := FakeBackend(script=babble, n_cells=1_000))
    client = await connect(backend, linger=linger, **KEPT)
    engine = client.app[ENGINE]
    gate.step(3)
    request_id = await leave(client, path, max_tokens=40, **fields)
    await until(lambda: not engine.requests)
    gate.open()
    await until(lambda: engine.find(request_id).done)
    assert {stop.stop_reason for stop in engine.find(request_id).stops} == {"cancelled"}


async def test_the_state_of_a_request(connect: Connect) -> None:
    gate = Gate(backend := FakeBackend(script=says("é".encode(), b"abc"), n_cells=40))
    client = await connect(backend, **KEPT)
    fields: dict[str, Any] = {
        "n": 2,
        "branches": [{"seed": 0, "label": "first"}, {"seed": 1}],
        "ignore_eos": False,
        "detach": True,
    }
    ids = [await leave(client, max_tokens=30, **fields), await leave(client, max_tokens=8, **fields)]
    gate.step(2)
    engine = client.app[ENGINE]
    await until(lambda: engine.find(ids[0]).texts == ["é", "ab"])
    running, waiting = [await (await client.get(f"/v1/completions/{each}")).json() for each in ids]
    first = {"index": 0, "label": "first", "seed": 0, "text": "é", "length": 2}
    second = {"index": 1, "label": None, "seed": 1, "text": "ab", "length": 2}
    unknown = {"finish_reason": None, "stop_reason": None}
    created = running.pop("created")
    assert created > 1_700_000_000
    assert running == {
        "id": ids[0],
        "object": "srb.request",
        "status": "running",
        "choices": [first | unknown, second | unknown],
        "usage": None,
        "last_event_id": 4,
    }
    assert (waiting["status"], waiting["last_event_id"], waiting["choices"][1]["text"]) == ("waiting", 0, "")
    gate.open()
    await until(lambda: not engine.requests)
    ended = await (await client.get(f"/v1/completions/{ids[0]}")).json()
    assert (ended["status"], ended["usage"]["completion_tokens"]) == ("finished", 7)
    assert [(each["text"], each["length"], each["finish_reason"]) for each in ended["choices"]] == [
        ("é", 3, "stop"),
        ("abc", 4, "stop"),
    ]
    rest = await client.get(EVENTS.format(ids[0]), params={"starting_after": str(running["last_event_id"])})
    assert b'"text": "c"' in await rest.read()


async def test_the_state_says_how_often_an_alternative_went_back(connect: Connect) -> None:
    client = await connect(FakeBackend(script=says(b"abc")), **KEPT)
    branches = [{"banned_strings": ["b"]}, {}]
    request_id = await leave(client, n=2, seed=0, branches=branches, max_tokens=3, detach=True)
    await until(lambda: not client.app[ENGINE].requests)
    choices = (await (await client.get(f"/v1/completions/{request_id}")).json())["choices"]
    assert (choices[0]["rewinds"], choices[0]["rewound_tokens"]) == (1, 1)
    assert "rewinds" not in choices[1]


@pytest.mark.parametrize("after", ["x", "-1", "1.5", "٣", "9" * 30, "999", " 1", "null"])
async def test_an_event_that_there_is_not_is_refused_with_the_limit(connect: Connect, after: str) -> None:
    client = await connect(FakeBackend(script=babble), **KEPT)
    request_id, whole = await post(client)
    response = await client.get(EVENTS.format(request_id), params={"starting_after": after})
    error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, "starting_after")
    assert str(len(blocks(whole)) if after == "999" else "a whole number") in error["message"]


async def test_delete_ends_a_request_or_one_alternative_and_forgets_what_has_finished(connect: Connect) -> None:
    gate = Gate(backend := FakeBackend(script=babble, n_cells=1_000))
    client = await connect(backend, **KEPT)
    engine = client.app[ENGINE]
    gate.step(2)
    first, second = [await leave(client, detach=True, max_tokens=100) for _ in range(2)]
    path = f"/v1/completions/{first}"

    async def delete(status: int, *places: str) -> None:
        for place in places:
            response = await client.delete(place)
            assert response.status == status, place
            if status == 404:
                assert (await response.json())["error"]["code"] == "not_found"

    await delete(204, f"{path}/choices/1", f"/v1/completions/{second}")
    missing = [f"{path}/choices/{index}" for index in ("3", "x", "-1", "9" * 5000)]
    await delete(404, "/v1/completions/cmpl-nobody", *missing)
    gate.open()
    await until(lambda: not engine.requests)
    lengths = {stop.index: (stop.length, stop.stop_reason) for stop in engine.find(first).stops}
    assert lengths[0] == lengths[2] == (100, None)
    assert lengths[1][1] == "cancelled"
    assert {(stop.finish_reason, stop.stop_reason) for stop in engine.find(second).stops} == {("abort", "cancelled")}
    await delete(404, f"{path}/choices/0")
    await delete(204, path)
    await delete(404, path)
    for place in (path, f"{path}/events", "/v1/completions/cmpl-nobody"):
        assert (await client.get(place)).status == 404


@pytest.mark.parametrize("limit", [{"keep_seconds": 0.01}, {"keep_bytes": 5_000}])
async def test_what_is_no_longer_stored_is_gone_and_says_what_to_do(connect: Connect, limit: dict[str, Any]) -> None:
    client = await connect(FakeBackend(script=babble), **KEPT | limit)
    request_id, _ = await post(client)
    await post(client)
    async with asyncio.timeout(10):
        while (response := await client.get(f"/v1/completions/{request_id}")).status == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    error = (await response.json())["error"]
    assert (response.status, error["code"]) == (410, "gone")
    assert "--keep-finished" in error["message"]
    assert (await client.get(EVENTS.format(request_id))).status == 410
    assert (await client.delete(f"/v1/completions/{request_id}")).status == 404


async def test_a_request_is_there_only_for_the_key_that_made_it(connect: Connect) -> None:
    gate = Gate(backend := FakeBackend(script=babble, n_cells=1_000))
    client = await connect(backend, api_keys=(b"mine", b"yours"), **KEPT)
    mine, yours = {"x-api-key": "mine"}, {"Authorization": "Bearer yours"}
    gate.step(2)
    response = await client.post("/v1/completions", json=BODY | {"detach": True}, headers=mine)
    path = f"/v1/completions/{response.headers['X-Request-Id']}"
    await until(lambda: all(each.started for each in client.app[ENGINE].requests))

    async def check() -> None:
        for method, end in (("GET", ""), ("GET", "/events"), ("DELETE", ""), ("DELETE", "/choices/0")):
            where = path + end
            assert (await client.request(method, where, headers=yours)).status == 404, where
        assert (await client.get(path, headers=mine)).status == 200

    await check()
    assert (await (await client.get("/v1/requests", headers=yours)).json())["data"] == []
    assert len((await (await client.get("/v1/requests", headers=mine)).json())["data"]) == 1
    slots = await (await client.get("/slots", headers=yours)).json()
    assert [slot["is_processing"] for slot in slots[:4]] == [True, True, True, False]
    assert not any("params" in slot or "request_id" in slot for slot in slots)
    assert any("params" in slot for slot in await (await client.get("/slots", headers=mine)).json())
    gate.open()
    await response.read()
    await check()
