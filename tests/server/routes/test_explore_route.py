"""`POST /v1/explore`."""

from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse
from fake_backend import END, FakeBackend, Gate
from server.conftest import Client, Connect, events_of, refused
from waiting import until

from srb.history.history import History


async def explore(client: Client, **body: Any) -> ClientResponse:
    return await client.post("/v1/explore", json={"prompt": "Once upon a time,"} | body)


async def test_the_events(connect: Connect) -> None:
    client = await connect(FakeBackend())
    response = await explore(client, depth="2", top_k=3, min_probability=None, max_nodes=6, temperature=2, model="m")
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    start, *nodes, done = events_of(await response.text())
    assert start == {
        "event": "start",
        "id": response.headers["X-Request-Id"],
        "created": start["created"],
        "model": "fake",
        "prompt_tokens": 17,
        "cached_tokens": 0,
        "ignored": ["temperature", "model"],
    }
    assert [node["id"] for node in nodes] == [1, 2, 3, 4, 5, 6]
    assert {node["event"] for node in nodes} == {"node"}
    first = nodes[0]
    assert list(first) == [
        *("event", "id", "parent", "text", "tokens", "logprob", "cumulative_logprob", "entropy", "finish_reason")
    ]
    assert (first["parent"], len(first["tokens"]), first["finish_reason"]) == (None, 1, None)
    assert first["logprob"] == first["cumulative_logprob"]
    totals = [node["cumulative_logprob"] for node in nodes]
    assert totals == sorted(totals, reverse=True)
    assert {node["finish_reason"] for node in nodes if node["parent"]} <= {"length", "stop"}
    assert (done["event"], done["count"], done["finish_reason"], done["stop_reason"]) == ("done", 6, "length", None)
    assert done["usage"]["completion_tokens"] == 6


async def test_tokens_are_a_prompt_and_lists_of_prompts_are_not(connect: Connect) -> None:
    client = await connect(FakeBackend())
    by_text = events_of(await (await explore(client)).text())
    by_ids = events_of(await (await explore(client, prompt=list(b"Once upon a time,"))).text())
    assert by_text[1:-1] == by_ids[1:-1]
    await refused(client, "/v1/explore", {"prompt": ["one", "two"]}, "prompt")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"depth": 0}, "depth"),
        ({"top_k": 101}, "top_k"),
        ({"top_k": "many"}, "top_k"),
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [END + 1]}, "prompt"),
        ({"depth": 60}, "depth"),
        ({"min_entropy": 1}, "min_entropy"),
    ],
)
async def test_what_is_refused(connect: Connect, body: dict[str, Any], param: str) -> None:
    client = await connect(FakeBackend(n_cells=70))
    await refused(client, "/v1/explore", {"prompt": "Once upon a time,"} | body, param)


async def test_who_leaves_ends_it_and_who_cancels_reads_why(connect: Connect) -> None:
    gate = Gate(backend := FakeBackend())
    client = await connect(backend, keep_seconds=60, keep_bytes=10**6)
    left = await explore(client, depth=6)
    gate.step(2)
    left.close()
    cancelled = await explore(client, depth=6)
    assert (await client.delete(f"/v1/completions/{cancelled.headers['X-Request-Id']}")).status == 204
    gate.open()
    done = events_of(await cancelled.text())[-1]
    assert (done["event"], done["finish_reason"], done["stop_reason"]) == ("done", "abort", "cancelled")
    again = await client.get(f"/v1/completions/{left.headers['X-Request-Id']}/events")
    assert events_of(await again.text())[-1]["finish_reason"] == "abort"
    await until(lambda: backend.cells == 0)


async def test_a_fault_is_said_before_the_one_done(connect: Connect) -> None:
    client = await connect(FakeBackend(poison=","))
    events = events_of(await (await explore(client)).text())
    assert [event["event"] for event in events] == ["start", "error", "done"]
    assert (events[-1]["count"], events[-1]["finish_reason"]) == (0, "error")


async def test_keys_and_queues_are_as_for_completions(connect: Connect) -> None:
    gate = Gate(backend := FakeBackend())
    client = await connect(backend, api_keys=(b"secret",), max_queue=0)
    assert (await explore(client)).status == 401
    client.session.headers["Authorization"] = "Bearer secret"
    assert (await explore(client)).status == 429
    gate.open()


async def test_the_history_has_none(connect: Connect, tmp_path: Path) -> None:
    with History(tmp_path / "history.db") as history:
        client = await connect(FakeBackend(), history=history)
        assert events_of(await (await explore(client)).text())[-1]["event"] == "done"
        listed = await (await client.get("/v1/history")).json()
        assert listed["data"] == []
