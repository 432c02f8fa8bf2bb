"""Requests that are kept: what is written of them, what stories get of them, and how they go on after a restart."""

import asyncio
import json
import re
import secrets
import sqlite3
import threading
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientResponse
from driver import few
from fake_backend import FakeBackend, Gate, says
from server.conftest import Client, Connect
from waiting import Clock, until

from srb.engine.sampling_params import SamplingParams
from srb.errors import HistoryError, NotFoundError
from srb.history import queries as find
from srb.history import writer
from srb.history.database import UnusableError
from srb.history.history import History
from srb.history.queries import unfinished
from srb.llama.model.chat_template import ChatTemplate
from srb.server.http.exchange import ENGINE, LIMITS
from srb.server.run.history import HISTORY

TEMPLATE = ChatTemplate("{% for each in messages %}{{ each.content }}{% endfor %}")
LONG = {"prompt": "p", "n": 3, "seed": 0, "max_tokens": 40, "ignore_eos": True, "detach": True}


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.01)
    with History(tmp_path / "history.db", keep_seconds=900) as history:
        yield history


async def read(answer: ClientResponse) -> AsyncIterator[tuple[int | None, dict[str, Any]]]:
    """The events of a stream, with their ids."""
    number = None
    async for line in answer.content:
        if line.startswith(b"id: "):
            number = int(line[4:])
        elif line.startswith(b"data: "):
            yield number, json.loads(line[6:])


async def run(client: Client, **body: Any) -> tuple[str, list[tuple[int | None, dict[str, Any]]]]:
    """Runs a request to its end: its id, and its events."""
    async with client.post("/v1/completions", json=body) as answer:
        assert answer.status == 200, await answer.text()
        return answer.headers["X-Request-Id"], [each async for each in read(answer)]


async def go_on(client: Client, *, goes_on: bool) -> None:
    """What the server does at its start."""
    app = client.app
    await app[HISTORY].resume_all(app[ENGINE], app[LIMITS].model, enabled=goes_on)


async def get(client: Client, path: str, status: int = 200, **headers: str) -> Any:
    async with client.get(path, headers=headers) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


def texts(events: list[tuple[int | None, dict[str, Any]]]) -> dict[int, str]:
    result: dict[int, str] = {}
    for _, event in events:
        if event["event"] == "stream":
            result[event["index"]] = result.get(event["index"], "") + event["text"]
    return result


async def test_a_request_is_stored_completely(connect: Connect, history: History) -> None:
    client = await connect(FakeBackend(script=says(b"one\xc3\xa9", b"two. three", prompt=2)), history=history)
    body = {
        "prompt": "ab",
        "seed": 0,
        "branches": [{"temperature": 1.5, "label": "wild"}, {"stop": ["."]}, {"stop_token_ids": [101]}],
        "logit_bias": {"5": False},
    }
    request_id, _ = await run(client, **body)
    stored = await get(client, f"/v1/history/{request_id}")
    assert (stored["body"], stored["path"], stored["status"], stored["title"]) == (
        body,
        "/v1/completions",
        "finished",
        "ab",
    )
    assert (stored["usage"]["prompt_tokens"], stored["detached"], stored["model"]) == (2, False, "fake")
    wild, stopped, by_token = stored["choices"]
    assert (wild["text"], wild["tokens"], wild["label"], wild["seed"]) == ("oneé", list("oneé".encode()), "wild", 0)
    assert wild["settings"] == {"temperature": 1.5, "logit_bias": [[5, False]]}
    assert (stopped["text"], stopped["finish_reason"], stopped["stop_reason"]) == ("two", "stop", ".")
    assert (by_token["text"], by_token["finish_reason"], by_token["stop_reason"]) == ("on", "stop", "101")
    assert [each["id"] for each in (await get(client, "/v1/history"))["data"]] == [request_id]
    assert (await get(client, "/v1/history?q=two"))["data"][0]["request"] == request_id


async def test_an_echoed_prompt_is_not_the_models_word(connect: Connect, history: History) -> None:
    client = await connect(FakeBackend(script=says(b"xyz", prompt=2)), history=history)
    request_id, _ = await run(client, prompt="ab", n=1, echo=True)
    assert (await get(client, f"/v1/history/{request_id}"))["choices"][0]["text"] == "xyz"


async def begin(client: Client, *parts: dict[str, Any]) -> str:
    async with client.post("/v1/stories", json={"title": "A tale", "nodes": list(parts)}) as answer:
        return str((await answer.json())["id"])


async def test_alternatives_become_children_of_a_node(connect: Connect, history: History) -> None:
    backend = FakeBackend(script=says(b"xy", prompt=4))
    client = await connect(backend, history=history)
    story = await begin(client, {"id": 1, "text": "ab"}, {"id": 2, "parent": 1, "text": "cd", "tokens": [99, 100]})
    request_id, events = await run(client, story=story, node=2, n=2, temperature=1.25)
    start = events[0][1]
    assert (start["prompt_tokens"], start["nodes"]) == (4, [3, 4])
    nodes = (await get(client, f"/v1/stories/{story}"))["nodes"]
    assert [(node["id"], node["parent"], node["text"], node["author"]) for node in nodes[2:]] == [
        (3, 2, "xy", "model"),
        (4, 2, "xy", "model"),
    ]
    node = nodes[3]
    assert (node["request"], node["index"], node["seed"]) == (request_id, 1, start["seeds"][1])
    assert (node["tokens"], node["settings"], node["finish_reason"]) == ([120, 121], {"temperature": 1.25}, "stop")
    _, events = await run(client, story=story, node=4, n=1, max_tokens=0)
    assert events[0][1]["prompt_tokens"] == 6
    assert [each["story"] for each in (await get(client, f"/v1/history?story={story}"))["data"]] == [story, story]


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"story": "none", "node": 1}, 404, "story"),
        ({"story": "STORY", "node": 9}, 404, "node"),
        ({"story": "STORY", "node": 9, "prompt": "a"}, 404, "node"),
        ({"story": "STORY"}, 400, "node"),
        ({"node": 1}, 400, "node"),
        ({"story": "STORY", "node": 1, "echo": True}, 400, "echo"),
        ({"story": "STORY", "node": 2**63}, 400, "node"),
        ({"story": "STORY", "node": -1}, 400, "node"),
        ({"story": "\ud800", "node": 1}, 400, "story"),
        ({"prompt": "p", "avoid": [{"request": "\ud800"}]}, 400, "avoid[0].str"),
    ],
)
async def test_a_place_that_is_none_is_refused(
    connect: Connect, history: History, body: dict[str, Any], status: int, param: str
) -> None:
    client = await connect(FakeBackend(), history=history)
    story = await begin(client, {"text": "a"})
    body = {name: story if value == "STORY" else value for name, value in body.items()}
    answer = await client.post("/v1/completions", json=body)
    assert (answer.status, (await answer.json())["error"]["param"]) == (status, param)


async def test_stories_without_a_history_are_refused(connect: Connect) -> None:
    client = await connect(FakeBackend())
    answer = await client.post("/v1/completions", json={"story": "a", "node": 1})
    assert answer.status == 501


async def test_a_watcher_sees_the_texts_grow(connect: Connect, history: History) -> None:
    gate = Gate(backend := FakeBackend())
    gate.step(3)
    client = await connect(backend, history=history)
    story = await begin(client, {"text": "a"})
    async with client.get(f"/v1/stories/{story}/nodes?since=1", headers={"Accept": "text/event-stream"}) as answer:
        watching = read(answer)
        body = {"story": story, "node": 1, "n": 2, "max_tokens": 30, "ignore_eos": True, "seed": 1}
        running = asyncio.ensure_future(run(client, **body))
        grown, ended, pieces = {2: "", 3: ""}, 0, 0
        while ended < 2:
            _, event = await anext(watching)
            gate.step()  # the model writes on when what it wrote was seen
            if event["event"] == "text":
                grown[event["node"]] += event["text"]
                pieces += 1
            elif event["event"] == "node":  # a story event comes, too, if the request begins before the first read
                node = event["node"]
                assert node["text"].startswith(grown[node["id"]])
                grown[node["id"]] = node["text"]
                ended += node["finish_reason"] is not None
        _, events = await running
        assert {node - 2: text for node, text in grown.items()} == texts(events)
        assert pieces > 0


@pytest.mark.parametrize("last", ["x", "9" * 20, "9" * 5000])
async def test_an_id_that_is_none_begins_where_the_query_says(connect: Connect, history: History, last: str) -> None:
    client = await connect(FakeBackend(), history=history)
    story = await begin(client, {"text": "a"})
    headers = {"Accept": "text/event-stream", "Last-Event-ID": last}
    async with client.get(f"/v1/stories/{story}/nodes?since=0", headers=headers) as answer:
        assert answer.status == 200
        watching = read(answer)
        assert (await anext(watching))[1]["event"] == "story"  # it may have changed since then, too
        assert (await anext(watching))[1]["node"]["text"] == "a"


async def test_a_node_that_grows_is_no_place_to_go_on_from(connect: Connect, history: History) -> None:
    gate = Gate(backend := FakeBackend())
    client = await connect(backend, history=history)
    story = await begin(client, {"text": "a"})
    answer = await client.post("/v1/completions", json={"story": story, "node": 1, "n": 1})
    refused = await client.post("/v1/completions", json={"story": story, "node": 2, "n": 1})
    assert (refused.status, (await refused.json())["error"]["param"]) == (400, "node")
    gate.open()
    await answer.read()


def snapshot(history: History, target: Path) -> None:
    """What a killed process leaves, when all that it has told was committed."""
    history.write(lambda _db: None).result()
    with closing(sqlite3.connect(history.path)) as db, closing(sqlite3.connect(target)) as copy:
        db.backup(copy)


def snapshot_at(backend: FakeBackend, history: History, decode: int = 11) -> Path:
    """Takes one in the middle of this decode of the backend, counted from 1."""
    path = history.path.with_name(f"{decode}.db")

    def take() -> None:
        if backend.decodes == decode:
            snapshot(history, path)

    backend.on_decode = take
    return path


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stop": ["ab", "\u00e9"], "max_tokens": 60},
        {"logprobs": 2, "return_tokens": True},
        {"n": 1, "branches": [{"max_tokens": 3}]},
    ],
)
async def test_a_request_goes_on_after_a_crash(connect: Connect, tmp_path: Path, options: dict[str, Any]) -> None:
    """Its stream, read on from anywhere, is the one that it would have been."""
    with History(tmp_path / "history.db") as history:
        backend = FakeBackend()
        client = await connect(backend, history=history)
        paths: list[Path] = []

        def take() -> None:
            if backend.decodes % 13 == 4:
                paths.append(tmp_path / f"{backend.decodes}.db")
                snapshot(history, paths[-1])

        backend.on_decode = take
        request_id, undisturbed = await run(client, **LONG | options)
    for number, path in enumerate(paths):
        with History(path) as history:
            (left,) = history.read(unfinished)
            after = len(left.events) * number // len(paths)
            again = await connect(FakeBackend(), history=history)
            await go_on(again, goes_on=True)
            async with again.get(f"/v1/completions/{request_id}/events?starting_after={after}") as answer:
                rest = [each async for each in read(answer)]
            assert [each for each, _ in rest] == [each for each, _ in undisturbed[after:]]
            assert by_index(rest) == by_index(undisturbed[after:])
            stored = history.read(find.get_request, None, request_id)
            assert stored.summary.status == "finished"
            assert {each.index: each.text for each in stored.alternatives} == {
                each.index: texts(undisturbed).get(each.index, "") for each in stored.alternatives
            }
            await again.app[ENGINE].stop()


def by_index(numbered: list[tuple[int | None, dict[str, Any]]]) -> dict[int | None, list[dict[str, Any]]]:
    """The events of each alternative. Which comes first may change: what was held back is drawn again."""
    result: dict[int | None, list[dict[str, Any]]] = {}
    for _, event in numbered:
        stored = {name: value for name, value in event.items() if name not in ("timings", "usage")}
        result.setdefault(event.get("index"), []).append(stored)
    return result


@pytest.mark.parametrize("stop", [[], ["hijklmnopqrstuvw!"]])
async def test_a_request_that_was_ended_by_the_servers_end_goes_on(
    connect: Connect, tmp_path: Path, stop: list[str]
) -> None:
    """SIGTERM: readers are told of no end, and the next start goes on. Text that was held back isn't said twice."""
    script, body = says(b"abcdefghijklmnopqrstuvwxyz"), LONG | {"stop": stop}
    with History(tmp_path / "history.db") as history:
        _, undisturbed = await run(await connect(FakeBackend(script=script), history=history), **body)
    gate = Gate(backend := FakeBackend(script=script))
    gate.step(12)
    path = tmp_path / "stopped.db"
    with History(path) as history:
        client = await connect(backend, history=history)
        async with client.post("/v1/completions", json=body) as answer:
            request_id, seen = answer.headers["X-Request-Id"], read(answer)
            got = [await anext(seen) for _ in range(10)]
            stopping = asyncio.ensure_future(client.app[ENGINE].stop())
            gate.open()
            got += [each async for each in seen]
            await stopping
    assert not {"stop", "done"} & {event["event"] for _, event in got}
    with History(path) as history:
        again = await connect(FakeBackend(script=script), history=history)
        await go_on(again, goes_on=True)
        async with again.get(
            f"/v1/completions/{request_id}/events", headers={"Last-Event-ID": str(got[-1][0])}
        ) as answer:
            got += [each async for each in read(answer)]
    assert texts(got) == texts(undisturbed)
    assert [event["event"] for _, event in got].count("stop") == 3
    assert [number for number, _ in got] == list(range(1, len(got) + 1))


async def crash(connect: Connect, tmp_path: Path, **body: Any) -> tuple[str, Path]:
    """A request that was ended in the middle: its id, and the file that it left."""
    with History(tmp_path / "first.db") as history:
        backend = FakeBackend()
        client = await connect(backend, history=history)
        path = snapshot_at(backend, history)
        request_id, _ = await run(client, **body)
    return request_id, path


async def test_a_request_whose_engine_failed_goes_on(connect: Connect, tmp_path: Path) -> None:
    """As after kill -9: readers are told of no end, and the next start goes on."""
    with History(tmp_path / "history.db") as history:
        _, undisturbed = await run(await connect(FakeBackend(), history=history), **LONG)
    path = tmp_path / "failed.db"
    with History(path, keep_seconds=900) as history:
        gate = Gate(backend := FakeBackend())
        client = await connect(backend, history=history, max_failures=1)
        attached = await client.post("/v1/completions", json=LONG | {"detach": False})
        async with client.post("/v1/completions", json=LONG) as answer:
            request_id, seen = answer.headers["X-Request-Id"], read(answer)
            waiting = await client.post("/v1/completions", json=LONG | {"n": 6})
            gate.step(12)
            got = [await anext(seen) for _ in range(10)]
            backend.script = lambda _params, _tokens: 1 // 0
            gate.open()
            got += [each async for each in seen]
        assert not {"error", "stop", "done"} & {event["event"] for _, event in got}
        assert "ZeroDivisionError" in await attached.text()
        assert "error" not in await waiting.text()
        await get(client, f"/v1/completions/{request_id}/events", 503)
    with History(path, keep_seconds=900) as history:
        again = await connect(FakeBackend(), history=history)
        await go_on(again, goes_on=True)
        headers = {"Last-Event-ID": str(got[-1][0])}
        async with again.get(f"/v1/completions/{request_id}/events", headers=headers) as answer:
            got += [each async for each in read(answer)]
        stored = await get(again, f"/v1/completions/{waiting.headers['X-Request-Id']}")
        assert stored["status"] in ("waiting", "running", "finished")
        stored = await get(again, f"/v1/completions/{attached.headers['X-Request-Id']}")
        assert {each["finish_reason"] for each in stored["choices"]} == {"error"}
    assert texts(got) == texts(undisturbed)
    assert [event["event"] for _, event in got].count("stop") == 3


async def lost_while_it_ran(
    connect: Connect, path: Path, request_id: str, *, in_order: bool = False, steps: int = 0
) -> str:
    """A start of the server, which is lost after some steps: the status of a request there."""
    with History(path) as history:
        gate = Gate(backend := FakeBackend())
        client = await connect(backend, history=history, max_failures=1)
        await go_on(client, goes_on=True)
        try:
            client.app[ENGINE].find(request_id)
        except NotFoundError:
            await asyncio.wrap_future(history.write(lambda _db: None))
            return str((await get(client, f"/v1/history/{request_id}"))["status"])
        if in_order:
            stopping = asyncio.ensure_future(client.app[ENGINE].stop())
            await until(lambda: client.app[ENGINE].health.status == "stopping")
            gate.open()
            await stopping
            return "running"
        for _ in range(steps):
            gate.step()
        await until(lambda: backend.decodes > steps)
        await asyncio.wrap_future(history.write(lambda _db: None))
        backend.script = lambda _params, _tokens: 1 // 0
        gate.open()
        await client.app[ENGINE].died()
        await client.app[ENGINE].stop()
        return "running"


async def test_a_request_that_ends_each_server_is_interrupted(connect: Connect, tmp_path: Path) -> None:
    request_id, path = await crash(connect, tmp_path, **LONG)
    for _ in range(3):  # an end in order counts for nothing
        assert await lost_while_it_ran(connect, path, request_id, in_order=True) == "running"
    for _ in range(3):
        assert await lost_while_it_ran(connect, path, request_id) == "running"
        assert await lost_while_it_ran(connect, path, request_id, steps=3) == "running"  # with a token more
    statuses = [await lost_while_it_ran(connect, path, request_id) for _ in range(4)]
    assert statuses == ["running", "running", "running", "interrupted"]


async def test_a_request_that_waits_while_servers_are_lost_goes_on(connect: Connect, tmp_path: Path) -> None:
    """It had begun before the first of them was lost, but none of the others came to it."""
    request_id, path = await crash(connect, tmp_path, **LONG)
    for _ in range(5):
        with History(path) as history:
            gate = Gate(backend := FakeBackend(n_cells=400))
            client = await connect(backend, history=history, max_failures=1)
            fills_the_cells = {"prompt": "q", "n": 8, "max_tokens": 48, "ignore_eos": True}
            other = await client.post("/v1/completions", json=fills_the_cells)
            gate.step()
            await go_on(client, goes_on=True)
            gate.step(2)
            backend.script = lambda _params, _tokens: 1 // 0
            gate.open()
            await client.app[ENGINE].died()
            other.close()
            await client.app[ENGINE].stop()
    with History(path) as history:
        client = await connect(FakeBackend(), history=history)
        await go_on(client, goes_on=True)
        assert (await get(client, f"/v1/completions/{request_id}"))["status"] != "interrupted"
        await client.app[ENGINE].stop()  # it can tell nothing any more when the file is closed


@pytest.mark.parametrize("stream", few(True, many=[False]))
@pytest.mark.parametrize("path", ["/v1/completions", "/openai/v1/completions/", "/v1/chat/completions"])
async def test_openais_formats_are_read_again_after_a_restart(
    connect: Connect, tmp_path: Path, path: str, stream: bool
) -> None:
    what = {"messages": [{"role": "user", "content": "p"}]} if "chat" in path else {"prompt": "p"}
    body = what | {
        "n": 3,
        "max_tokens": 40,
        "detach": True,
        "stream": stream,
        "logprobs": True if "chat" in path else 1,
        "seed": 0,
        "ignore_eos": True,
    }
    with History(tmp_path / "first.db", keep_seconds=900) as history:
        backend = FakeBackend(chat_template=TEMPLATE)
        cut = snapshot_at(backend, history)
        client = await connect(backend, history=history)
        async with client.post(path, json=body) as answer:
            assert answer.status == 200, await answer.text()
            request_id, undisturbed = answer.headers["X-Request-Id"], await answer.text()
    for left in (cut, tmp_path / "first.db"):
        with History(left, keep_seconds=900) as history:
            again = await connect(FakeBackend(chat_template=TEMPLATE), history=history)
            await go_on(again, goes_on=True)
            async with again.get(f"/v1/completions/{request_id}/events") as answer:
                assert sorted_lines(await answer.text()) == sorted_lines(undisturbed)
            async with again.get(f"/v1/completions/{request_id}/events?starting_after=0") as answer:
                assert (await answer.text()).startswith("id: 1")
            await again.app[ENGINE].stop()


def sorted_lines(text: str) -> list[str]:
    """Which alternative says something first may change after a crash, and what a chat tells of its time."""
    return sorted(re.sub(r', "timings": \{[^}]*\}', "", text).split("\n\n"))


async def test_a_story_that_is_gone_leaves_native_events(connect: Connect, tmp_path: Path) -> None:
    with History(tmp_path / "first.db", keep_seconds=900) as history:
        client = await connect(FakeBackend(), history=history)
        async with client.post("/v1/completions", json={"prompt": "p", "stream": True, "detach": True}) as answer:
            request_id = answer.headers["X-Request-Id"]
            await answer.read()
        other = history.write(
            lambda db: db.execute(
                "UPDATE requests SET body = ?", (zlib.compress(b'{"story": "gone", "stream": true}'),)
            )
        )
        await asyncio.wrap_future(other)
    with History(tmp_path / "first.db", keep_seconds=900) as history:
        again = await connect(FakeBackend(), history=history)
        async with again.get(f"/v1/completions/{request_id}/events") as answer:
            assert (await answer.text()).startswith("id: 1")


@pytest.mark.parametrize(
    ("change", "detach", "resumes", "status"),
    [
        ("", True, False, "interrupted"),
        ("UPDATE requests SET model = 'other'", True, True, "interrupted"),
        ("", False, True, "finished"),
    ],
    ids=["no resume", "another model", "attached"],
)
async def test_requests_that_do_not_go_on(
    connect: Connect, tmp_path: Path, change: str, detach: bool, resumes: bool, status: str
) -> None:
    request_id, path = await crash(connect, tmp_path, **LONG | {"detach": detach})
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(change)
    with History(path) as history:
        client = await connect(FakeBackend(), history=history)
        if not detach:  # until it is known whether it goes on, it isn't gone
            await get(client, f"/v1/completions/{request_id}/events", 503)
        await go_on(client, goes_on=resumes)
        await asyncio.wrap_future(history.write(lambda _db: None))
        stored = await get(client, f"/v1/history/{request_id}")
        assert stored["status"] == status
        assert all(each["text"] and each["finish_reason"] == "abort" for each in stored["choices"])
        assert {each["stop_reason"] for each in stored["choices"]} == {"shutdown"}
        if status == "interrupted":
            state = await get(client, f"/v1/completions/{request_id}")
            texts_so_far = [each["text"] for each in stored["choices"]]
            assert (state["status"], [each["text"] for each in state["choices"]]) == (status, texts_so_far)
            await get(client, f"/v1/completions/{request_id}/events", 410)


async def test_an_interruption_is_written_as_soon_as_the_file_can_be(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(_db: sqlite3.Connection) -> None:
        if problems:
            raise problems[0]

    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.01)
    request_id, path = await crash(connect, tmp_path, **LONG)
    problems = [MemoryError()]
    with History(path) as history:
        client = await connect(FakeBackend(), history=history)
        history.writer.record(lambda: [change], lambda: None)
        await go_on(client, goes_on=False)
        assert (await get(client, f"/v1/history/{request_id}"))["status"] == "running"
        problems.clear()
        await until(lambda: history.writer.problem is None)
        assert (await get(client, f"/v1/history/{request_id}"))["status"] == "interrupted"


async def test_a_subscriber_is_notified_of_what_is_written_when_there_is_room(
    connect: Connect, history: History
) -> None:
    client = await connect(FakeBackend(), history=history)
    story = await begin(client, {"text": "a"})
    headers = {"Accept": "text/event-stream"}
    async with client.get(f"/v1/stories/{story}/nodes?since=1", headers=headers) as answer:
        (pages,) = await asyncio.wrap_future(history.write(lambda db: db.execute("PRAGMA page_count").fetchone()))
        await asyncio.wrap_future(history.write(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchone()))
        note = secrets.token_hex(50_000)
        await run(client, story=story, node=1, n=1, max_tokens=8, ignore_eos=True, note=note)
        history.writer._db.execute("PRAGMA max_page_count = 1000000").fetchone()
        async with asyncio.timeout(60):  # nothing else has to happen
            while (event := (await anext(read(answer)))[1])["event"] != "node" or not event["node"]["finish_reason"]:
                pass


async def test_a_full_disk_keeps_nobody_from_reading(connect: Connect, history: History) -> None:
    client = await connect(FakeBackend(), history=history)
    (pages,) = await asyncio.wrap_future(history.write(lambda db: db.execute("PRAGMA page_count").fetchone()))
    await asyncio.wrap_future(history.write(lambda db: db.execute(f"PRAGMA max_page_count = {pages}").fetchone()))
    note = secrets.token_hex(50_000)  # nobody can make that smaller
    _, events = await run(client, prompt="x", n=4, seed=0, max_tokens=8, ignore_eos=True, note=note)
    assert len(texts(events)) == 4
    health = await get(client, "/health")
    assert ("disk is full" in health["history"], health["history_owed"] > 0) == (True, True)
    assert health["status"] == "degraded"
    assert f"srb_history_owed {health['history_owed']}.0" in await (await client.get("/metrics")).text()
    refused = await client.post("/v1/stories", json={"title": "x" * 1_000})
    assert refused.status == 503
    history.writer._db.execute("PRAGMA max_page_count = 1000000").fetchone()
    await until(lambda: history.writer.problem is None)
    health = await get(client, "/health")
    assert (health["history"], health["history_owed"], health["status"]) == ("ok", 0, "ok")
    assert "srb_history_owed 0.0" in await (await client.get("/metrics")).text()


async def test_a_removed_story_ends_what_writes_there(connect: Connect, history: History) -> None:
    gate = Gate(backend := FakeBackend())
    gate.step(5)
    client = await connect(backend, history=history)
    story = await begin(client, {"text": "a"})
    body = LONG | {"story": story, "prompt": "b", "n": 1}
    async with client.post("/v1/completions", json=body) as answer:  # it is accepted
        assert (await client.delete(f"/v1/stories/{story}?permanent=true")).status == 204
        gate.open()
        events = [each async for _, each in read(answer)]
    assert events[-2]["stop_reason"] == "cancelled"
    assert (await get(client, "/v1/history"))["data"] == []
    assert (await get(client, "/health"))["history"] == "ok"


async def test_a_detached_request_whose_client_goes_at_once_is_stored(connect: Connect, history: History) -> None:
    client = await connect(backend := FakeBackend(), history=history)
    added, may_go = threading.Event(), threading.Event()
    compile_ = backend.compile

    def slow(branches: Any, special_tokens: bool = False, post_sampling_probs: bool = False) -> Any:
        added.set()
        assert may_go.wait(10)
        return compile_(branches, special_tokens)

    backend.compile = slow  # type: ignore[method-assign]
    waiting = asyncio.ensure_future(run(client, **LONG))
    await asyncio.to_thread(added.wait)
    (event_log,) = client.app[ENGINE].requests
    waiting.cancel()
    await Clock().forward(1)  # the server has seen that the client is gone
    may_go.set()
    await until(lambda: event_log.done)
    stored = history.read(find.get_request, None, event_log.request.id)
    assert stored.summary.status == "finished"
    assert [each.length for each in stored.alternatives] == [40] * 3


async def test_what_is_forgotten_cannot_be_read_again_from_the_file(connect: Connect, history: History) -> None:
    client = await connect(FakeBackend(), history=history, keep_seconds=900, keep_bytes=1 << 20)
    request_id, _ = await run(client, prompt="p", n=1, max_tokens=3)
    await get(client, f"/v1/completions/{request_id}")
    async with client.delete(f"/v1/completions/{request_id}") as answer:
        assert answer.status == 204
    await get(client, f"/v1/completions/{request_id}", 404)
    assert history.read(find.get_request, None, request_id).summary.status == "finished"


async def test_token_ids_that_the_model_does_not_have_are_refused_and_not_stored(
    connect: Connect, history: History
) -> None:
    client = await connect(FakeBackend(), history=history)
    for token in (-1, 10**6, 2**70):
        async with client.post("/v1/completions", json={"prompt": [1, token]}) as answer:
            assert answer.status == 400
            assert "has the token id" in (await answer.json())["error"]["message"]
    assert history.read(lambda connection: connection.execute("SELECT count(*) FROM requests").fetchone()[0]) == 0


async def test_texts_of_a_request_that_is_stored_are_avoided(connect: Connect, history: History) -> None:
    whole = "a b c d e f g h i j"

    def script(params: SamplingParams, tokens: tuple[int, ...]) -> int:
        return ord(whole[(len(tokens) - 1) % 19])

    client = await connect(backend := FakeBackend(script=script), history=history)
    common = {"prompt": "p", "n": 1, "max_tokens": 19}
    first, events = await run(client, **common)
    assert texts(events) == {0: whole}
    avoid: list[dict[str, Any]]
    for avoid in ([{"request": first}], [{"request": first, "index": "0"}]):
        _, events = await run(client, **common, avoid=avoid)
        assert texts(events)[0] != whole
        _, events = await run(client, **common, branches=[{"avoid": avoid}])
        assert texts(events)[0] != whole
    echoing, _ = await run(client, **common, echo=True)
    for avoid, message in (
        ([{"request": "cmpl-nothing"}], "request cmpl-nothing isn't stored"),
        ([{"request": first, "index": 1}], "has the alternatives 0 to 0, not 1"),
        ([{"request": echoing}], "begin with its prompt"),
        ([{"request": f"cmpl-{k}"} for k in range(101)], "names 101 requests; the limit is 100"),
        ([{"index": 0}], "avoid"),
    ):
        async with client.post("/v1/completions", json=common | {"avoid": avoid}) as answer:
            assert answer.status == 400
            assert message in (await answer.json())["error"]["message"]
    async with client.post("/completion", json=common | {"avoid": [{"request": first}]}) as answer:
        assert (await answer.json())["content"] != whole
    assert backend.open_samplers == 0


async def test_a_detached_request_may_stop_at_the_word_shutdown(connect: Connect, history: History) -> None:
    client = await connect(FakeBackend(script=says(b"on shutdown")), history=history)
    request_id, events = await run(client, prompt="p", n=1, stop="shutdown", detach=True)
    assert events[-1][1]["event"] == "done"
    stored = await get(client, f"/v1/history/{request_id}")
    assert (stored["status"], stored["choices"][0]["stop_reason"]) == ("finished", "shutdown")


async def test_what_still_comes_of_a_removed_request_isnt_another_ones(connect: Connect, history: History) -> None:
    gate = Gate(backend := FakeBackend())
    gate.step(2)
    client = await connect(backend, history=history)
    story = await begin(client, {"text": "a"})
    body = {"story": story, "node": 1, "n": 1, "detach": True, "ignore_eos": True, "max_tokens": 20}
    first = await client.post("/v1/completions", json=body)
    await first.content.readline()
    assert (await client.delete(f"/v1/stories/{story}")).status == 204
    second = await client.post("/v1/completions", json={"prompt": "b", "n": 1, "max_tokens": 5, "ignore_eos": True})
    gate.open()
    await first.read()
    seen = [event async for event in read(second)]
    async with client.get(f"/v1/completions/{second.headers['X-Request-Id']}/events") as answer:
        assert [event async for event in read(answer)] == seen
    stored = await get(client, f"/v1/history/{second.headers['X-Request-Id']}")
    assert (stored["status"], stored["choices"][0]["length"]) == ("finished", 5)


@pytest.mark.parametrize("path", ["/completion", "/api/v1/generate", "/api/generate"])
async def test_a_reader_of_a_request_that_resumes_later_gets_a_503(
    connect: Connect, history: History, path: str
) -> None:
    # Not all of these formats have `seed` and `ignore_eos` in the same place, so only the script decides where it ends.
    gate = Gate(backend := FakeBackend(script=says(b"a" * 250)))
    client = await connect(backend, history=history)
    body = {"prompt": "p", "detach": True, "stream": False, "raw": True}
    posting = asyncio.ensure_future(client.post(path, json=body))
    gate.step(3)
    await until(lambda: gate.holds and client.app[ENGINE].health.running == 1)
    stopping = asyncio.ensure_future(client.app[ENGINE].stop())
    gate.open()
    answer = await posting
    assert (answer.status, "resumes with its next start" in await answer.text()) == (503, True)
    await stopping


async def test_a_request_of_another_version_is_interrupted_and_its_nodes_end(connect: Connect, tmp_path: Path) -> None:
    with History(tmp_path / "first.db") as history:
        client = await connect(backend := FakeBackend(), history=history)
        story = await begin(client, {"text": "a"})
        path = snapshot_at(backend, history)
        body = {"story": story, "node": 1, "n": 2, "max_tokens": 30, "ignore_eos": True, "detach": True}
        request_id, events = await run(client, **body)
    with closing(sqlite3.connect(path)) as db, db:
        other = zlib.compress(b'{"branches": [], "a field of another version": 1}')
        db.execute("UPDATE requests SET request = ?", (other,))
    with History(path) as history:
        client = await connect(FakeBackend(), history=history)
        await go_on(client, goes_on=True)
        await get(client, f"/v1/completions/{request_id}", 404)
        stored = await get(client, f"/v1/history/{request_id}")
        assert stored["status"] == "interrupted"
        nodes = (await get(client, f"/v1/stories/{story}"))["nodes"][1:]
        for index, (choice, node) in enumerate(zip(stored["choices"], nodes, strict=True)):
            assert node["text"] == choice["text"]
            assert choice["text"]
            assert texts(events)[index].startswith(choice["text"])
            assert (node["finish_reason"], choice["stop_reason"]) == ("abort", "shutdown")
        await run(client, story=story, node=2, n=1, max_tokens=1)
        assert (await client.delete(f"/v1/history/{request_id}")).status == 204


async def test_numbers_that_are_too_large_leave_the_history_json(connect: Connect, history: History) -> None:
    client = await connect(FakeBackend(), history=history)
    story = await begin(client, {"text": "a"})
    node = b'{"text": "b", "settings": {"temperature": 1e999}}'
    async with client.post(f"/v1/stories/{story}/nodes", data=node) as answer:
        assert (answer.status, (await answer.json())["error"]["param"]) == (400, "settings")
    body = b'{"prompt": "p", "max_tokens": 1, "n": 1, "a field of others": [1e999, 1.5]}'
    async with client.post("/v1/completions", data=body) as answer:
        request_id = answer.headers["X-Request-Id"]
        await answer.read()
    async with client.get(f"/v1/history/{request_id}") as answer:
        stored = json.loads(await answer.text(), parse_constant=pytest.fail)
    assert stored["body"]["a field of others"] == ["1e999", 1.5]


async def test_a_restart_keeps_the_nodes_that_a_request_writes(connect: Connect, tmp_path: Path) -> None:
    finished, killed = tmp_path / "finished.db", tmp_path / "killed.db"
    with History(finished, keep_seconds=900) as history:
        backend = FakeBackend()
        client = await connect(backend, history=history)
        story = await begin(client, {"text": "a"})
        backend.on_decode = lambda: snapshot(history, killed) if backend.decodes == 11 else None
        body = {"story": story, "node": 1, "n": 2, "max_tokens": 30, "ignore_eos": True, "detach": True, "extra": 1}
        request_id, events = await run(client, **body)
        # A copy of the story, and a fork in it, name the request as well.
        fork = {"parent": 1, "text": "b", "author": "model", "request": request_id, "index": 0}
        copy = {"title": "A copy", "nodes": [fork | {"parent": None}]}
        for path, sent in ((f"/v1/stories/{story}/nodes", fork), ("/v1/stories", copy)):
            assert (await client.post(path, json=sent)).status == 200
    start = events[0][1]
    assert (start["nodes"], start["ignored"]) == ([2, 3], ["extra"])
    for file in (finished, killed):
        with History(file, keep_seconds=900) as history:
            client = await connect(FakeBackend(), history=history)
            await go_on(client, goes_on=True)
            async with client.get(f"/v1/completions/{request_id}/events") as answer:
                assert (await anext(read(answer)))[1] == start
            await client.app[ENGINE].stop()


async def test_a_history_that_cant_be_opened_at_the_start_is_opened_later(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("srb.server.run.history.REOPEN_SECONDS", 0.01)
    with History(tmp_path / "undisturbed.db") as history:
        _, undisturbed = await run(await connect(FakeBackend(), history=history), **LONG)
    request_id, path = await crash(connect, tmp_path, **LONG)
    is_full = True

    def reopen() -> History:
        if is_full:
            raise HistoryError("the disk is full")
        return History(path, keep_seconds=900)

    gate = Gate(backend := FakeBackend())
    client = await connect(backend, history=HistoryError("the disk is full"), reopen=reopen)
    await go_on(client, goes_on=True)
    async with client.post("/v1/completions", json=LONG) as answer:  # it runs before, and ends after that
        seen = read(answer)
        gate.step(3)
        early = [await anext(seen)]
        assert (await get(client, "/health"))["history"] == "the disk is full"
        await get(client, "/v1/stories", 503)
        await get(client, f"/v1/completions/{request_id}/events", 503)
        is_full = False
        await until(lambda: client.app[HISTORY].is_on)
        gate.open()
        early += [each async for each in seen]
    assert texts(early) == texts(undisturbed)
    assert (await get(client, "/health"))["history"] == "ok"
    async with client.get(f"/v1/completions/{request_id}/events") as answer:
        assert texts([each async for each in read(answer)]) == texts(undisturbed)
    story = await begin(client, {"text": "a"})
    await run(client, story=story, node=1, n=1, max_tokens=1)
    listed = (await get(client, "/v1/history"))["data"]
    assert [(each["story"], each["status"]) for each in listed] == [(story, "finished"), (None, "finished")]
    await client.app[HISTORY].close()


async def test_a_damaged_history_isnt_opened_again(connect: Connect) -> None:
    client = await connect(FakeBackend(), history=UnusableError("it is damaged"), reopen=pytest.fail)
    await go_on(client, goes_on=True)
    health = await get(client, "/health")
    assert (health["history"], health["status"]) == ("it is damaged", "degraded")
    await client.app[HISTORY].close()


async def test_a_detached_request_without_a_history_learns_that_the_server_ends(connect: Connect) -> None:
    """Its readers don't come back for it: the next start doesn't know it."""
    gate = Gate(backend := FakeBackend())
    client = await connect(backend, history=HistoryError("the disk is full"))
    async with client.post("/v1/completions", json=LONG) as answer:
        gate.step(3)
        await answer.content.readline()
        stopping = asyncio.ensure_future(client.app[ENGINE].stop())
        gate.open()
        events = [event async for _, event in read(answer)]
        await stopping
    assert events[-1]["event"] == "done"


async def test_a_request_that_comes_before_others_go_on_isnt_taken_for_an_interrupted_one(
    connect: Connect, tmp_path: Path
) -> None:
    """For example while --preload is evaluated."""
    old, path = await crash(connect, tmp_path, **LONG)
    with History(path, keep_seconds=900) as history:
        gate = Gate(backend := FakeBackend())
        client = await connect(backend, history=history)
        async with client.post("/v1/completions", json=LONG | {"detach": False}) as answer:
            gate.step(3)
            await answer.content.readline()
            await go_on(client, goes_on=True)
            gate.open()
            events = [event async for _, event in read(answer)]
        new = await get(client, f"/v1/history/{answer.headers['X-Request-Id']}")
        assert (events[-1]["event"], new["status"]) == ("done", "finished")
        assert [each["finish_reason"] for each in new["choices"]] == ["length"] * 3
        async with client.get(f"/v1/completions/{old}/events") as answer:
            assert '"event": "done"' in await answer.text()


@pytest.mark.parametrize("detach", [True, False])
async def test_an_interrupted_request_with_wrong_events_doesnt_keep_the_server_from_starting(
    connect: Connect, tmp_path: Path, detach: bool
) -> None:
    request_id, path = await crash(connect, tmp_path, **LONG | {"detach": detach})
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE steps SET events = replace(events, '[2,', '[9,')")
    with History(path, keep_seconds=900) as history:
        client = await connect(FakeBackend(), history=history)
        await go_on(client, goes_on=True)
        await asyncio.wrap_future(history.write(lambda _db: None))
        stored = await get(client, f"/v1/history/{request_id}")
        assert stored["status"] == "interrupted"
        assert [(each["finish_reason"], bool(each["text"])) for each in stored["choices"]] == [
            ("abort", True),
            ("abort", True),
            ("abort", False),
        ]


async def test_events_whose_texts_cant_be_written_are_not_dropped(connect: Connect, tmp_path: Path) -> None:
    _, path = await crash(connect, tmp_path, **LONG)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE steps SET events = replace(events, '[2,', '[[],')")
    with History(path) as history:
        await go_on(await connect(FakeBackend(), history=history), goes_on=True)
        (n_steps,) = await asyncio.wrap_future(
            history.write(lambda db: db.execute("SELECT count(*) FROM steps").fetchone())
        )
        assert n_steps > 0


async def test_a_finished_request_with_wrong_events_is_said(connect: Connect, tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with History(path, keep_seconds=900) as history:
        request_id, _ = await run(await connect(FakeBackend(), history=history), **LONG)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE steps SET events = replace(events, '[2,', '[9,')")
    with History(path, keep_seconds=900) as history:
        client = await connect(FakeBackend(), history=history)
        for place in (request_id, f"{request_id}/events"):
            refused = await get(client, f"/v1/completions/{place}", 503)
            assert "is damaged: move it away" in refused["error"]["message"]


async def test_finished_requests_can_be_read_after_a_restart_with_another_model(
    connect: Connect, tmp_path: Path
) -> None:
    path, chat = tmp_path / "history.db", {"messages": [{"role": "user", "content": "p"}], "detach": True}
    with History(path, keep_seconds=900) as history:
        client = await connect(FakeBackend(chat_template=TEMPLATE), history=history)
        request_id, events = await run(client, **LONG)
        async with client.post("/v1/chat/completions", json=chat | {"max_tokens": 3}) as answer:
            chat_id, said = answer.headers["X-Request-Id"], await answer.json()
    with History(path, keep_seconds=900) as history:
        client = await connect(FakeBackend(chat_template=TEMPLATE), history=history, model="other")
        for after in (0, 5):
            async with client.get(f"/v1/completions/{request_id}/events?starting_after={after}") as answer:
                assert [event async for event in read(answer)] == events[after:]
        assert (await get(client, f"/v1/completions/{chat_id}/events"))["model"] == said["model"]
        assert (await get(client, f"/v1/completions/{request_id}"))["status"] == "finished"
        assert (await client.delete(f"/v1/history/{request_id}")).status == 204
        assert (await client.delete(f"/v1/history/{request_id}")).status == 404
        await get(client, f"/v1/completions/{request_id}", 404)
