"""`POST /v1/score`."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse
from fake_backend import END, ByteTokenizer, FakeBackend, Gate, scores
from server.conftest import Client, Connect, events_of, refused
from waiting import until

from srb.engine.engine import Engine
from srb.history.history import History
from srb.server.http.exchange import ENGINE

CONTEXTS = ["Once upon a time", "It was"]
ENDS = [" a dragon", " an egg.", "?"]


async def score(client: Client, **body: Any) -> ClientResponse:
    return await client.post("/v1/score", json={"contexts": CONTEXTS, "continuations": ENDS} | body)


def expected(context: str, end: str) -> float:
    text = (context + end).encode()
    return sum(scores(tuple(text[:k]))[text[k]] for k in range(len(context), len(text)))


async def test_the_events_and_the_object(connect: Connect) -> None:
    client = await connect(FakeBackend())
    response = await score(client, model="m", top_k=3, branches=[{"label": "x", "lor": 1}])
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    start, *rows, done = events_of(await response.text())
    assert start == {
        "event": "start",
        "count": 6,
        "id": response.headers["X-Request-Id"],
        "created": start["created"],
        "model": "fake",
        "contexts": 2,
        "branches": 1,
        "labels": ["x"],
        "ignored": ["top_k", "model", "branches.lor"],
    }
    assert start["id"].startswith("score-")
    assert [list(row) for row in rows] == [
        [*("event", "context", "continuation", "branch", "logprob", "n_tokens", "n_characters", "greedy", "rank")]
    ] * 6
    for row in rows:
        end = ENDS[row["continuation"]]
        assert row["logprob"] == pytest.approx(expected(CONTEXTS[row["context"]], end), abs=1e-6)
        assert (row["n_tokens"], row["n_characters"], row["branch"]) == (len(end), len(end), 0)
    assert sorted(row["rank"] for row in rows if row["context"] == 1) == [1, 2, 3]
    usage = {"prompt_tokens": 22, "completion_tokens": 36, "total_tokens": 58, "cached_tokens": 0}
    assert done == {
        "event": "done",
        "count": 6,
        "id": start["id"],
        "usage": usage,
        "finish_reason": "stop",
        "stop_reason": None,
    }
    made = await (await score(client, stream=False)).json()
    assert made["scores"] == [{name: row[name] for name in row if name != "event"} for row in rows]
    assert (made["object"], made["count"], made["usage"], made["finish_reason"]) == ("srb.scores", 6, usage, "stop")


async def test_tokens_are_shown_if_they_are_asked_for(connect: Connect) -> None:
    client = await connect(FakeBackend())
    made = await (await score(client, continuations=["ab"], logprobs=2, stream=False)).json()
    for row in made["scores"]:
        assert [token["token"] for token in row["logprobs"]] == ["a", "b"]
        assert sum(token["logprob"] for token in row["logprobs"]) == pytest.approx(row["logprob"], abs=1e-5)
        assert [len(token["top_logprobs"]) for token in row["logprobs"]] == [2, 2]
    for value in (True, 0):
        made = await (await score(client, continuations=["ab"], logprobs=value, stream=False)).json()
        assert {*made["scores"][0]["logprobs"][0]} == {"id", "token", "bytes", "logprob"}
    made = await (await score(client, logprobs=False, stream=False)).json()
    assert "logprobs" not in made["scores"][0]


async def test_lists_for_each_context_and_tokens(connect: Connect) -> None:
    client = await connect(FakeBackend())
    body = {"contexts": [list(b"Once"), "It "], "continuations": [[" a", [98, 99]], ["was"]]}
    made = await (await score(client, **body, stream=False)).json()
    rows = [(row["context"], row["continuation"], row["n_tokens"], row["n_characters"]) for row in made["scores"]]
    assert rows == [(0, 0, 2, 2), (0, 1, 2, 2), (1, 0, 4, 3)]  # the space belongs to "was"
    assert made["scores"][2]["logprob"] == pytest.approx(expected("It", " was"), abs=1e-6)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"contexts": None}, "contexts", "missing"),
        ({"contexts": "a"}, "contexts", "takes a list"),
        ({"contexts": []}, "contexts", "an empty one"),
        ({"contexts": ["a", ""]}, "contexts", "contexts[1] is empty"),
        ({"contexts": ["a", 5]}, "contexts", "contexts[1] must be a text"),
        ({"contexts": ["a", [5, "b"]]}, "contexts", "contexts[1] must be a text"),
        ({"continuations": None}, "continuations", "missing"),
        ({"continuations": {}}, "continuations", "takes a list"),
        ({"continuations": [["a"], []]}, "continuations", "an empty one"),
        ({"continuations": [["a"], "b"]}, "continuations", "continuations[0] must be a text"),
        ({"continuations": [["a"]]}, "continuations", "lists for 1 contexts"),
        ({"logprobs": 101}, "logprobs", "from 0 to 100"),
        ({"logprobs": "x"}, "logprobs", "logprobs"),
        ({"branches": [{"temperature": 2}]}, "branches", "branches[0] has temperature"),
        ({"branches": [{}, {"guidance_scale": 2}]}, "branches", "branches[1] has guidance_scale"),
        ({"branches": [{}] * 101}, "branches", "at most 100"),
        ({"branches": [{"lora": [{"id": 0}]}]}, "lora", "there is no adapter 0"),
        ({"stream": "x"}, "stream", 'true, false or "events", got "x"'),
        ({"stream": False, "contexts": ["a"] * 300, "continuations": ["b"] * 400}, "stream", "120000 rows"),
    ],
)
async def test_what_is_refused(connect: Connect, body: dict[str, Any], param: str, message: str) -> None:
    client = await connect(backend := FakeBackend())
    await refused(client, "/v1/score", {"contexts": CONTEXTS, "continuations": ENDS} | body, param, message)
    assert backend.decodes == 0


async def test_a_row_that_cant_be_scored_has_its_error(connect: Connect) -> None:
    client = await connect(FakeBackend(n_cells=20))
    body = {"contexts": ["a", "b" * 30], "continuations": ["c", [END, 5], [300]]}
    events = events_of(await (await score(client, **body)).text())
    rows = {(each["context"], each["continuation"]): each for each in events[1:-1]}
    assert [place for place, each in rows.items() if each["event"] == "score"] == [(0, 0)]
    assert "the model's ids go from 0 to 256" in rows[0, 2]["error"]["message"]
    assert rows[1, 0]["error"]["code"] == "context_length_exceeded"
    assert (events[-1]["count"], events[-1]["finish_reason"]) == (6, "stop")
    made = await (await score(client, **body, stream=False)).json()
    assert sum("error" in each for each in made["scores"]) == 5


async def test_few_parts_of_it_are_in_the_engine_and_none_is_stored(connect: Connect) -> None:
    gate = Gate(backend := FakeBackend(n_parallel=4))
    client = await connect(backend, keep_seconds=60, keep_bytes=10**7, max_queue=1)
    response = await score(client, contexts=[chr(97 + k % 26) for k in range(100)])
    engine = client.app[ENGINE]
    seen: set[str] = set()
    while len(seen) < 4:
        if gate.holds:
            gate.step()
        await asyncio.sleep(0)
        assert len(engine.requests) <= 2
        seen |= {event_log.request.id for event_log in engine.requests}
    assert {each.rpartition(".")[0] for each in seen} == {response.headers["X-Request-Id"]}
    gate.open()
    events = events_of(await response.text())
    assert (events[-1]["count"], events[-1]["finish_reason"]) == (300, "stop")
    gone = await client.get(f"/v1/completions/{min(seen)}")
    assert gone.status == 404
    await until(lambda: backend.cells == 0)


@pytest.mark.parametrize("how", ["leaves", "cancels", "cancels a part"])
async def test_who_leaves_ends_it_and_who_cancels_reads_why(connect: Connect, how: str) -> None:
    gate = Gate(backend := FakeBackend())
    client = await connect(backend, keep_seconds=60, keep_bytes=10**6)
    response = await score(client, contexts=CONTEXTS * 30)
    table = response.headers["X-Request-Id"]
    gate.step(2)
    if how == "leaves":
        response.close()
    else:
        path = (
            f"/v1/score/{table}" if how == "cancels" else f"/v1/completions/{client.app[ENGINE].requests[0].request.id}"
        )
        assert (await client.delete(path)).status == 204
    gate.open()
    if how != "leaves":
        done = events_of(await response.text())[-1]
        assert (done["event"], done["finish_reason"], done["stop_reason"]) == ("done", "abort", "cancelled")
        assert done["count"] < 180
    await until(lambda: backend.cells == 0 and not client.app[ENGINE].requests)
    assert (await client.delete(f"/v1/score/{table}")).status == 404


async def test_a_server_that_ends_says_so(connect: Connect) -> None:
    gate = Gate(backend := FakeBackend())
    client = await connect(backend)
    response = await score(client, contexts=CONTEXTS * 30)
    gate.step(2)
    ending = asyncio.create_task(client.app[ENGINE].stop())
    await until(lambda: client.app[ENGINE].health.status == "stopping")
    gate.open()
    await ending
    done = events_of(await response.text())[-1]
    assert (done["event"], done["finish_reason"]) in (("done", "abort"), ("done", "error"))
    assert (await score(client)).status == 503


async def test_an_engine_that_dies_is_said(connect: Connect) -> None:
    def die() -> None:
        if backend.decodes == 20:
            raise RuntimeError("a bug")

    client = await connect(backend := FakeBackend(on_decode=die), max_failures=1)
    events = events_of(await (await score(client, contexts=CONTEXTS * 30)).text())
    assert (events[-1]["event"], events[-1]["finish_reason"]) == ("done", "error")
    assert "engine has failed" in events[-2]["error"]["message"]
    assert (await score(client, stream=False)).status == 503


async def test_keys_and_queues_are_as_for_completions(connect: Connect) -> None:
    gate = Gate(backend := FakeBackend())
    client = await connect(backend, api_keys=(b"ann", b"bob"), max_queue=1, make=partial(Engine, cache_bytes=100_000))
    assert (await score(client)).status == 401
    client.session.headers["Authorization"] = "Bearer ann"
    response = await score(client, contexts=CONTEXTS * 10)
    table = response.headers["X-Request-Id"]
    client.session.headers["Authorization"] = "Bearer bob"
    assert (await client.delete(f"/v1/score/{table}")).status == 404
    assert (await (await client.get("/v1/requests")).json())["data"] == []
    client.session.headers["Authorization"] = "Bearer ann"
    listed = (await (await client.get("/v1/requests")).json())["data"]
    assert [each["id"].rpartition(".")[0] for each in listed] == [table] * 2
    gate.open()
    assert events_of(await response.text())[-1]["count"] == 60
    for who, cached in (("ann", 22), ("bob", 0)):  # what is known of it is the key's own
        client.session.headers["Authorization"] = f"Bearer {who}"
        usage = (await (await score(client, contexts=CONTEXTS, stream=False)).json())["usage"]
        assert (usage["cached_tokens"] > 0) == (cached > 0)


async def test_a_full_queue_refuses_a_table_before_it_begins_and_not_in_its_middle(connect: Connect) -> None:
    gate = Gate(backend := FakeBackend(n_parallel=2, n_cells=60))
    client = await connect(backend, max_queue=2)
    response = await score(client, contexts=CONTEXTS * 10)
    waiting = [asyncio.create_task(client.post("/v1/completions", json={"prompt": "x" * 50})) for _ in range(4)]
    await until(lambda: client.app[ENGINE].health.waiting >= 2)
    assert (await score(client)).status == 429
    gate.open()
    assert events_of(await response.text())[-1]["finish_reason"] == "stop"
    for each in waiting:
        (await each).close()


async def test_the_history_has_none(connect: Connect, tmp_path: Path) -> None:
    with History(tmp_path / "history.db") as history:
        client = await connect(FakeBackend(), history=history)
        assert events_of(await (await score(client)).text())[-1]["event"] == "done"
        listed = await (await client.get("/v1/history")).json()
        assert listed["data"] == []


async def test_a_row_whose_boundary_is_tokenized_anew_is_marked(connect: Connect) -> None:
    class Words(ByteTokenizer):
        def tokenize(self, text: str, *, is_prompt: bool = True, parse_special: bool = True) -> tuple[int, ...]:
            return super().tokenize(text.replace("world", "@"), is_prompt=is_prompt, parse_special=parse_special)

    client = await connect(FakeBackend(tokenizer=Words()))
    body = {"contexts": ["Hello wor"], "continuations": ["ld!", "!"], "stream": False}
    response = await client.post("/v1/score", json=body)
    assert [row.get("retokenized") for row in (await response.json())["scores"]] == [True, None]
