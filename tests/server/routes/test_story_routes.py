"""Stories over HTTP, on the fake backend."""

import asyncio
import gc
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from aiohttp import ClientResponse
from fake_backend import FakeBackend
from server.conftest import Client, Connect
from waiting import Clock, until

from srb.errors import HistoryError
from srb.history.history import History


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with History(tmp_path / "history.db") as history:
        yield history


@pytest.fixture
async def client(connect: Connect, history: History) -> Client:
    return await connect(FakeBackend(), history=history)


async def call(client: Client, method: str, path: str, body: Any = None, status: int = 200, **headers: str) -> Any:
    answer = await client.request(method, path, json=body, headers=headers)
    assert answer.status == status, await answer.text()
    return None if status == 204 else await answer.json()


async def begin(client: Client, **body: Any) -> str:
    story = await call(client, "POST", "/v1/stories", {"title": "A tale"} | body)
    assert story["object"] == "story"
    return str(story["id"])


async def events(answer: ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.content:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


async def test_a_story_is_written_and_read(client: Client) -> None:
    story = await begin(client)
    nodes = f"/v1/stories/{story}/nodes"
    root = await call(client, "POST", nodes, {"text": "Once upon a time,"})
    child = await call(client, "POST", nodes, {"parent": root["id"], "text": " there", "tokens": [5], "notes": "hm"})
    assert (root["id"], root["parent"], root["author"]) == (1, None, "person")
    assert (child["id"], child["parent"], child["tokens"], child["notes"]) == (2, 1, [5], "hm")
    stored = await call(client, "PATCH", f"{nodes}/2", {"kept": True})
    assert (stored["kept"], stored["notes"]) == (True, "hm")
    assert (await call(client, "GET", f"{nodes}/2"))["remarks"][0]["value"] is True
    whole = await call(client, "GET", f"/v1/stories/{story}")
    assert whole["nodes"] == [root, stored]
    assert await call(client, "GET", nodes, None) == {"object": "list", "data": [root, stored], "change": 3}
    assert await call(client, "GET", f"{nodes}?since=2") == {"object": "list", "data": [stored], "change": 3}
    answer = await client.get(f"/v1/stories/{story}?format=markdown")
    assert (answer.content_type, await answer.text()) == ("text/markdown", "# A tale\n\nOnce upon a time, there\n")
    assert (await call(client, "PATCH", f"/v1/stories/{story}", {"title": "Better"}))["title"] == "Better"
    assert [each["title"] for each in (await call(client, "GET", "/v1/stories"))["data"]] == ["Better"]
    await call(client, "DELETE", f"/v1/stories/{story}", status=204)
    await call(client, "GET", f"/v1/stories/{story}", status=404)
    assert (await call(client, "GET", "/v1/stories"))["data"] == []
    [trashed] = (await call(client, "GET", "/v1/stories?deleted=true"))["data"]
    assert (trashed["id"], type(trashed["deleted"])) == (story, int)
    assert (await call(client, "PATCH", f"/v1/stories/{story}", {"deleted": None}))["deleted"] is None
    assert (await call(client, "GET", f"/v1/stories/{story}"))["nodes"] == whole["nodes"]
    for _ in range(2):  # also from the trash
        await call(client, "DELETE", f"/v1/stories/{story}?permanent=true", status=204)
        story = await begin(client)
        await call(client, "DELETE", f"/v1/stories/{story}", status=204)
    assert [each["id"] for each in (await call(client, "GET", "/v1/stories?deleted=true"))["data"]] == [story]
    error = (await call(client, "DELETE", f"/v1/stories/{story}?permanent=yes", status=400))["error"]
    assert error["message"] == "permanent is true or false, got yes"


@pytest.mark.parametrize("path", ["/v1/completions", "/completion", "/api/v1/generate"])
async def test_every_format_with_alternatives_writes_to_a_story(client: Client, path: str) -> None:
    story = await begin(client)
    body = {"prompt": "p", "model": "fake", "n": 2, "max_tokens": 3, "ignore_eos": True, "story": story}
    await call(client, "POST", path, body)
    assert [node["parent"] for node in (await call(client, "GET", f"/v1/stories/{story}"))["nodes"]] == [None, None]
    body |= {"story": "none"}
    assert (await call(client, "POST", path, body, status=404))["error"]["param"] == "story"


async def test_drafts_are_stored_with_their_story_and_watched(client: Client) -> None:
    story = await begin(client)
    path = f"/v1/stories/{story}/drafts/0"
    async with client.get(f"/v1/stories/{story}/nodes", headers={"Accept": "text/event-stream"}) as answer:
        seen = events(answer)
        draft = await call(client, "PUT", path, {"text": "Once", "metadata": {"marks": "w4"}})
        assert await anext(seen) == {"event": "draft", "draft": draft}
        assert (draft["node"], draft["text"], draft["metadata"]) == (0, "Once", {"marks": "w4"})
        error = (await call(client, "PUT", path, {"text": "Twice"}, status=409))["error"]
        assert (error["code"], error["param"]) == ("conflict", "since")
        assert await call(client, "GET", path) == draft
        assert (await call(client, "GET", f"/v1/stories/{story}"))["drafts"] == [draft]
        await call(client, "PATCH", f"/v1/stories/{story}", {"place": {"node": 0, "cursor": 4}})
        assert (await anext(seen))["story"]["place"] == {"node": 0, "cursor": 4}
        removed = await call(client, "PUT", path, {"text": None, "since": draft["change"]})
        assert await anext(seen) == {"event": "draft", "draft": removed}
        assert (removed["text"], removed["change"] > draft["change"]) == (None, True)
        await call(client, "PUT", path, {"text": "Twice", "since": draft["change"]}, status=409)
        await call(client, "PUT", f"/v1/stories/{story}/drafts/7", {"text": "Once"}, status=404)


async def test_what_was_exported_can_be_imported(client: Client) -> None:
    story = await begin(client)
    for parent, text in ((None, "a"), (1, "b"), (1, "c")):
        node = {"parent": parent, "text": text, "tokens": [1, 2], "suffix_logprob": -1.5}
        assert (await call(client, "POST", f"/v1/stories/{story}/nodes", node))["suffix_logprob"] == -1.5
    await call(client, "PATCH", f"/v1/stories/{story}/nodes/3", {"kept": False, "notes": "no"})
    short = await call(client, "PATCH", f"/v1/stories/{story}/nodes/2", {"ends_at": 0})
    assert (short["text"], short["tokens"]) == ("", None)
    await call(client, "PATCH", f"/v1/stories/{story}/nodes/2", {"ends_at": -1}, 400)
    await call(client, "PUT", f"/v1/stories/{story}/drafts/2", {"text": "typed", "metadata": {"marks": "w5"}})
    whole = await call(client, "GET", f"/v1/stories/{story}")
    answer = await client.post("/v1/stories", json=whole)
    assert "x-srb-ignored" not in answer.headers
    copy = await call(client, "GET", f"/v1/stories/{(await answer.json())['id']}")
    for each in (*whole["nodes"], *copy["nodes"]):
        del each["change"], each["ends_at"]
    assert copy["nodes"] == whole["nodes"]
    [draft] = copy["drafts"]
    assert (draft["node"], draft["text"], draft["metadata"]) == (2, "typed", {"marks": "w5"})
    lost = {"title": "A tale", "drafts": [{"node": 7, "text": "typed"}]}
    assert (await call(client, "POST", "/v1/stories", lost, 400))["error"]["param"] == "drafts"
    assert copy["title"] == whole["title"]


async def test_the_context_of_a_story_is_stored_with_it_and_shown(client: Client) -> None:
    context = {"memory": "It rains.", "lore": [{"keys": "Ada", "always": False, "depth": None}]}
    story = await begin(client, context=context)
    path = f"/v1/stories/{story}"
    assert (await call(client, "GET", path))["context"] == context
    assert "context" not in (await call(client, "GET", "/v1/stories"))["data"][0]
    assert (await call(client, "PATCH", path, {"title": "Better"}))["context"] == context
    error = (await call(client, "PATCH", path, {"title": "Best", "since": 0}, 409))["error"]
    assert (error["code"], error["param"]) == ("conflict", "since")
    assert (await call(client, "PATCH", path, {"context": context, "since": 0}))["title"] == "Better"
    async with client.get(f"{path}/nodes", headers={"Accept": "text/event-stream"}) as answer:
        await call(client, "POST", f"{path}/nodes", {"text": "a"})
        seen = events(answer)
        assert (await anext(seen))["event"] == "node"
        changed = await call(client, "PATCH", path, {"context": {"memory": "It snows."}})
        assert (changed["title"], changed["context"]) == ("Better", {"memory": "It snows."})
        assert await anext(seen) == {"event": "story", "story": changed}
    async with client.get(f"{path}/nodes?since=1", headers={"Accept": "text/event-stream"}) as late:
        assert (await anext(events(late)))["story"] == changed
    copy = await call(client, "POST", "/v1/stories", await call(client, "GET", path))
    assert copy["context"] == {"memory": "It snows."}
    assert (await call(client, "PATCH", path, {"context": None}))["context"] is None
    for wrong in (
        '{"context": []}',
        '{"context": {"a": 1e999}}',
        '{"context": {"a": ' + "[" * 5000 + "]" * 5000 + "}}",
    ):
        refused = await client.patch(path, data=wrong)
        assert (refused.status, "context" in await refused.text() or "deeply" in await refused.text()) == (400, True)


async def test_a_node_of_a_bridge_says_how_well_the_rest_follows_it(client: Client) -> None:
    story = await begin(client)
    await call(client, "POST", f"/v1/stories/{story}/nodes", {"text": "p"})
    body = {"story": story, "node": 1, "suffix": "the end", "n": 2, "max_tokens": 4, "stream": "events"}
    async with client.post("/v1/completions", json=body) as answer:
        scores = [event["suffix_logprob"] async for event in events(answer) if event["event"] == "stop"]
    whole = await call(client, "GET", f"/v1/stories/{story}")
    assert sorted(node["suffix_logprob"] for node in whole["nodes"][1:]) == pytest.approx(sorted(scores), abs=1e-6)


async def test_a_watcher_of_a_new_story_misses_no_context(client: Client) -> None:
    """It was set after the watcher had read the story, which had no change, and before it watched."""
    story = await begin(client)
    await call(client, "PATCH", f"/v1/stories/{story}", {"context": {"memory": "It rains."}})
    headers = {"Accept": "text/event-stream", "Last-Event-ID": "0"}
    async with client.get(f"/v1/stories/{story}/nodes", headers=headers) as answer:
        assert (await anext(events(answer)))["story"]["context"] == {"memory": "It rains."}


async def test_a_watcher_sees_what_others_write(client: Client) -> None:
    story = await begin(client)
    nodes = f"/v1/stories/{story}/nodes"
    await call(client, "POST", nodes, {"text": "a"})
    async with client.get(nodes, headers={"Accept": "text/event-stream"}) as answer:
        seen = events(answer)
        assert (await anext(seen))["node"]["text"] == "a"
        await call(client, "POST", nodes, {"text": "b", "parent": 1})
        assert (await anext(seen))["node"]["text"] == "b"
        await call(client, "PATCH", f"{nodes}/1", {"kept": True})
        changed = await anext(seen)
        assert (changed["event"], changed["node"]["id"], changed["node"]["kept"]) == ("node", 1, True)
        await call(client, "PATCH", f"/v1/stories/{story}", {"title": "Better"})
        assert (await anext(seen))["story"]["title"] == "Better"
        async with client.get(f"{nodes}?since=4", headers={"Accept": "text/event-stream"}) as second:
            await call(client, "DELETE", f"/v1/stories/{story}", status=204)
            assert [each["event"] async for each in events(second)] == ["deleted"]
        assert [each["event"] async for each in seen] == ["deleted"]


async def test_a_watcher_of_a_quiet_story_gets_pings_and_then_what_is_new(client: Client) -> None:
    clock = Clock()
    nodes = f"/v1/stories/{await begin(client)}/nodes"
    async with client.get(nodes, headers={"Accept": "text/event-stream"}) as answer:
        for _ in range(3):
            line = b""
            while line != b": ping\n":
                reading = asyncio.ensure_future(answer.content.readline())
                await clock.until(reading.done, by=1)
                line = reading.result()
                assert not answer.content.at_eof()
        await call(client, "POST", nodes, {"text": "a"})
        assert (await anext(events(answer)))["node"]["text"] == "a"


async def test_a_story_is_seen_with_the_key_that_made_it(connect: Connect, history: History) -> None:
    client = await connect(FakeBackend(), history=history, api_keys=(b"one", b"two"))
    story = (await call(client, "POST", "/v1/stories", {"title": "Mine"}, Authorization="Bearer one"))["id"]
    await call(client, "GET", f"/v1/stories/{story}", Authorization="Bearer one")
    await call(client, "GET", f"/v1/stories/{story}", status=404, Authorization="Bearer two")
    assert (await call(client, "GET", "/v1/stories", Authorization="Bearer two"))["data"] == []
    await call(client, "GET", "/v1/stories", status=401)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "text"),
        ({"text": 1}, "text"),
        ({"text": "\ud800"}, "text"),
        ({"text": "a", "parent": "x"}, "parent"),
        ({"text": "a", "parent": -1}, "parent"),
        ({"text": "a", "tokens": [2**31]}, "tokens[0]"),
        ({"text": "a", "author": "nobody"}, "author"),
        ({"text": "a", "index": 2**63}, "index"),
    ],
)
async def test_what_is_no_node_is_refused(client: Client, body: dict[str, Any], param: str) -> None:
    story = await begin(client)
    assert (await call(client, "POST", f"/v1/stories/{story}/nodes", body, 400))["error"]["param"] == param


async def test_what_is_not_there_is_said(client: Client) -> None:
    story = await begin(client)
    nodes = f"/v1/stories/{story}/nodes"
    refused = await call(client, "POST", nodes, {"text": "a", "parent": 7}, 404)
    assert (refused["error"]["param"], refused["error"]["message"]) == ("parent", "there is no node 7 in this story")
    await call(client, "PATCH", f"{nodes}/7", {"kept": True}, 404)
    await call(client, "GET", f"{nodes}/x", status=404)
    await call(client, "GET", "/v1/stories/no/nodes", status=404, Accept="text/event-stream")
    await call(client, "POST", "/v1/stories", {"title": "x" * 1_001}, 400)
    await call(client, "POST", "/v1/stories", {"nodes": [{"text": "a", "parent": 1}]}, 400)
    answer = await client.post(nodes, json={"text": "a", "mood": "sad"})
    assert answer.headers["x-srb-ignored"] == "mood"


async def test_health_says_whether_there_is_a_history_and_routes_why_not(client: Client, connect: Connect) -> None:
    assert (await call(client, "GET", "/health"))["history"] == "ok"
    without = await connect(FakeBackend())
    assert "history" not in await call(without, "GET", "/health")
    refused = await call(without, "GET", "/v1/stories", status=501)
    assert "start it with --history FILE" in refused["error"]["message"]
    broken = await connect(FakeBackend(), history=HistoryError("the file is of a newer version"))
    assert (await call(broken, "GET", "/health"))["history"] == "the file is of a newer version"
    refused = await call(broken, "POST", "/v1/stories", {"title": "a"}, status=503)
    assert refused["error"]["message"] == "the file is of a newer version"
    await call(broken, "POST", "/v1/completions", {"prompt": "a", "n": 1, "stream": False})


async def test_search_and_list(client: Client) -> None:
    story = await begin(client)
    for text in ("a dragon", "a knight", "two dragons"):
        await call(client, "POST", f"/v1/stories/{story}/nodes", {"text": text})
    found = await call(client, "GET", "/v1/history?q=drag*&limit=1")
    assert [(each["story"], each["node"], each["snippet"]) for each in found["data"]] == [(story, 3, "two dragons")]
    found = await call(client, "GET", f"/v1/history?q=drag*&limit=1&before={found['before']}")
    assert [each["snippet"] for each in found["data"]] == ["a dragon"]
    assert await call(client, "GET", "/v1/history") == {"object": "list", "data": [], "before": None}
    for wrong in ("q=", "limit=0", "limit=x", "q=a&before=x", f"limit={10**6}"):
        await call(client, "GET", f"/v1/history?{wrong}", status=400)
    await call(client, "GET", "/v1/history/cmpl-none", status=404)


async def test_a_refused_change_of_who_has_left_is_no_problem(client: Client, history: History) -> None:
    problems: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, problem: problems.append(problem))
    go_on = threading.Event()
    history.write(lambda _db: go_on.wait(10))
    with mock.patch.object(history, "write", wraps=history.write) as write:
        adding = asyncio.create_task(client.post("/v1/stories/none/nodes", json={"text": "a"}))
        await until(lambda: write.called)
    adding.cancel()
    await until(lambda: not client.server.handler.connections)
    go_on.set()
    await begin(client)
    gc.collect()
    assert problems == []
