"""Responses that are asked for again: in the background, streamed from a number on, cancelled, continued, deleted."""

import asyncio
import time
from typing import Any

import pytest
from fake_backend import END, FakeBackend
from server.conftest import Client, Connect, posted
from server.formats.test_messages_responses import OPENAI, SOURCE, backend, events
from server.formats.test_tools import PARIS, Model

from srb.llama.model.chat_template import ChatTemplate
from srb.serving import event_log

KEPT = {"keep_seconds": 900, "keep_bytes": 1 << 20}
ENDED = ("completed", "incomplete", "cancelled", "failed")


async def got(client: Client, response_id: str, status: int = 200, path: str = "/v1/responses") -> dict[str, Any]:
    response = await client.get(f"{path}/{response_id}")
    answer: dict[str, Any] = await response.json()
    assert response.status == status, answer
    return answer


async def ended(client: Client, response_id: str) -> dict[str, Any]:
    """A response when it's over, asked for as clients do it."""
    while (response := await got(client, response_id))["status"] not in ENDED:
        assert response["status"] in ("queued", "in_progress")
        await asyncio.sleep(0)
    return response


def slow() -> FakeBackend:
    """It says 4,000 tokens, and takes 20 seconds at least."""
    served = backend(b"x" * 4000)
    served.on_decode = lambda: time.sleep(0.005)
    return served


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


async def test_a_response_in_the_background(connect: Connect) -> None:
    client = await connect(backend(b"ab"), **KEPT)
    for path in ("/v1/responses", "/openai/v1/responses"):
        first = await posted(client, path, OPENAI | {"background": True, "store": True})
        assert (first["status"], first["output"], first["background"]) == ("queued", [], True)
        last = await ended(client, first["id"])
        assert (last["status"], text_of(last), last["usage"]["output_tokens"]) == ("completed", "ab", 3)
        assert await got(client, first["id"], path=path) == last


async def test_every_response_can_be_asked_for_again(connect: Connect) -> None:
    client = await connect(backend(b"ab"), **KEPT)
    response = await posted(client, "/v1/responses", OPENAI)
    assert await got(client, response["id"]) == response
    assert "resp_no" in (await got(client, "resp_no", 404))["error"]["message"]
    chat = await posted(client, "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
    assert "isn't a response" in (await got(client, chat["id"], 404))["error"]["message"]


async def test_a_stream_goes_on_after_any_number(connect: Connect) -> None:
    client = await connect(backend(b"abc"), **KEPT)
    body = OPENAI | {"background": True, "stream": True}
    received = await events(await client.post("/v1/responses", json=body))
    response_id = received[0]["response"]["id"]
    assert received[-1]["type"] == "response.completed"
    for after in (None, *range(len(received))):
        query = {"stream": "true"} | ({} if after is None else {"starting_after": str(after)})
        again = await client.get(f"/v1/responses/{response_id}", params=query)
        expected = received if after is None else received[after + 1 :]
        assert expected == (await events(again) if expected else [])
    wrong = await client.get(f"/v1/responses/{response_id}", params={"stream": "true", "starting_after": "x"})
    assert (wrong.status, (await wrong.json())["error"]["param"]) == (400, "starting_after")


async def test_late_readers_count_as_the_first_one_does(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "MERGE_ABOVE", 50)
    client = await connect(backend(b"x" * 100), **KEPT)
    received = await events(await client.post("/v1/responses", json=OPENAI | {"stream": True}))
    assert len(received) > 100
    query = {"stream": "true", "starting_after": "9"}
    again = await events(await client.get(f"/v1/responses/{received[0]['response']['id']}", params=query))
    assert again == received[10:]


async def test_a_response_that_waits_or_runs_is_cancelled_and_deleted(connect: Connect) -> None:
    client = await connect(slow(), **KEPT)
    for body in (OPENAI | {"background": True}, OPENAI | {"background": True, "ignore_eos": True}):
        first = await posted(client, "/v1/responses", body)
        cancelled = await posted(client, f"/v1/responses/{first['id']}/cancel", {})
        assert (cancelled["id"], cancelled["status"]) == (first["id"], "cancelled")
        assert await got(client, first["id"]) == cancelled
        assert await posted(client, f"/v1/responses/{first['id']}/cancel", {}) == cancelled
        first = await posted(client, "/v1/responses", body)
        gone = await client.delete(f"/openai/v1/responses/{first['id']}")
        assert await gone.json() == {"id": first["id"], "object": "response", "deleted": True}
        await got(client, first["id"], 404)
    assert (await client.delete("/v1/responses/resp_no")).status == 404
    assert (await client.post("/v1/responses/resp_no/cancel")).status == 404


async def test_a_response_continues_another(connect: Connect) -> None:
    asked: list[str] = []

    def say(params: Any, tokens: tuple[int, ...]) -> int:
        prompt = bytes(tokens).decode()
        asked.append(prompt)
        said = prompt.rpartition("a:")[2]
        return ord("k") if not said else END

    served = FakeBackend(n_cells=4096, chat_template=ChatTemplate(SOURCE), script=say)
    client = await connect(served, **KEPT)
    one = await posted(client, "/v1/responses", OPENAI | {"instructions": "be"})
    two = await posted(client, "/v1/responses", OPENAI | {"input": "so", "previous_response_id": one["id"]})
    assert two["previous_response_id"] == one["id"]
    body = OPENAI | {"input": "yes", "instructions": "nice", "previous_response_id": two["id"]}
    await posted(client, "/v1/responses", body)
    assert asked[0] == "s:be\nu:hi\na:"
    assert "u:hi\na:k\nu:so\na:" in asked
    assert "s:nice\nu:hi\na:k\nu:so\na:k\nu:yes\na:" in asked
    await client.delete(f"/v1/responses/{two['id']}")
    error = (await posted(client, "/v1/responses", body, 400))["error"]
    assert (error["param"], error["code"]) == ("previous_response_id", "previous_response_not_found")
    assert "send the whole conversation" in error["message"]


async def test_a_reference_to_the_message_of_a_stored_response(connect: Connect) -> None:
    client = await connect(backend(b"ab"), **KEPT)
    first = await posted(client, "/v1/responses", OPENAI)
    (message,) = first["output"]
    assert message["id"].startswith("msg_")
    reference = {"type": "item_reference", "id": message["id"]}
    hello = {"role": "user", "content": "hi"}
    items = [hello, reference, {"type": "item_reference", "id": "rs_1"}, hello]
    response = await client.post("/v1/responses", json=OPENAI | {"input": items})
    assert response.status == 200, await response.text()
    assert response.headers["x-srb-ignored"] == "input[2] (item_reference)"
    answer = await response.json()
    assert answer["usage"]["input_tokens"] == len("u:hi\na:ab\nu:hi\na:")


async def test_the_result_of_a_call_continues_the_response_that_called(connect: Connect) -> None:
    model = Model(PARIS)
    client = await connect(model.backend, **KEPT)
    tools = [{"type": "function", "name": "weather", "parameters": {"type": "object"}}]
    one = await posted(client, "/v1/responses", OPENAI | {"tools": tools})
    result = {"type": "function_call_output", "call_id": one["output"][0]["call_id"], "output": "rain"}
    await posted(client, "/v1/responses", OPENAI | {"input": [result], "previous_response_id": one["id"]})
    assert model.prompt == f"<user>hi\n<assistant>{PARIS}\n<user><tool_response>\nrain\n</tool_response>\n"


async def test_what_is_still_written_cannot_be_continued(connect: Connect) -> None:
    client = await connect(slow(), **KEPT)
    first = await posted(client, "/v1/responses", OPENAI | {"background": True, "ignore_eos": True})
    body = OPENAI | {"previous_response_id": first["id"]}
    assert "cancel it" in (await posted(client, "/v1/responses", body, 400))["error"]["message"]
    await posted(client, f"/v1/responses/{first['id']}/cancel", {})


async def test_others_do_not_see_it(connect: Connect) -> None:
    client = await connect(backend(b"ab"), api_keys=(b"a", b"b"), **KEPT)
    mine, other = {"Authorization": "Bearer a"}, {"Authorization": "Bearer b"}
    response = await (await client.post("/v1/responses", json=OPENAI, headers=mine)).json()
    assert (await client.get(f"/v1/responses/{response['id']}", headers=mine)).status == 200
    assert (await client.get(f"/v1/responses/{response['id']}", headers=other)).status == 404
    body = OPENAI | {"previous_response_id": response["id"]}
    assert (await client.post("/v1/responses", json=body, headers=other)).status == 400
