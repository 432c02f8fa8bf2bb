"""/v1/messages as Anthropic's package asks for it, and /v1/responses as OpenAI's does. On the fake backend."""

import json
from typing import Any

from aiohttp import ClientResponse
from fake_backend import END, FakeBackend, says
from server.conftest import Connect, posted

from srb.engine.sampling_params import SamplingParams
from srb.llama.model.chat_template import ChatTemplate

SOURCE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}a:"
HELLO = [{"role": "user", "content": "hi"}]  # "u:hi\na:"
ANTHROPIC: dict[str, Any] = {"model": "fake", "max_tokens": 9, "messages": HELLO, "seed": 0}
OPENAI: dict[str, Any] = {"model": "fake", "input": "hi", "seed": 0}


def backend(*texts: bytes, prompt: int = 7, **options: Any) -> FakeBackend:
    return FakeBackend(n_cells=4096, chat_template=ChatTemplate(SOURCE), script=says(*texts, prompt=prompt), **options)


async def events(response: ClientResponse) -> list[dict[str, Any]]:
    """The data of a stream's events, each of which is called what its type is."""
    assert response.status == 200, await response.text()
    *blocks, end = (await response.text()).split("\n\n")
    assert end == ""
    data = [json.loads(block.partition("data: ")[2]) for block in blocks]
    assert [block.partition("\n")[0] for block in blocks] == [f"event: {each['type']}" for each in data]
    return data


async def test_what_is_left_out_of_a_conversation_is_reported(connect: Connect) -> None:
    client = await connect(backend(b"ab"))
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    turns = [*HELLO, {"role": "assistant", "content": [{"type": "text", "text": "A"}, search]}, *HELLO]
    response = await client.post("/v1/messages", json=ANTHROPIC | {"messages": turns})
    assert (response.status, response.headers["x-srb-ignored"]) == (200, "messages[1].content[1] (server_tool_use)")
    items = [{"type": "web_search_call", "id": "ws_1"}, *HELLO]
    response = await client.post("/v1/responses", json=OPENAI | {"input": items})
    assert (response.status, response.headers["x-srb-ignored"]) == (200, "input[0] (web_search_call)")
    counted = await posted(client, "/v1/responses/input_tokens", {"model": "fake", "input": items})
    assert counted["input_tokens"] == 7


async def test_structured_outputs_in_all_notations(connect: Connect) -> None:
    """Each format's own, and OpenAI's in all."""
    seen: list[str | None] = []

    def script(params: SamplingParams, _tokens: tuple[int, ...]) -> int:
        seen.append(params.json_schema)
        return END

    client = await connect(FakeBackend(n_cells=4096, chat_template=ChatTemplate(SOURCE), script=script))
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "schema": schema}
    nested = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    sent: list[tuple[str, dict[str, Any]]] = [
        ("/v1/messages", ANTHROPIC | {"output_config": {"format": form}}),
        ("/v1/messages", ANTHROPIC | {"output_format": form}),
        ("/v1/messages", ANTHROPIC | {"response_format": nested}),
        ("/v1/responses", OPENAI | {"text": {"format": form | {"name": "x"}}}),
        ("/v1/responses", OPENAI | {"text": {"format": nested}}),
        ("/v1/responses", OPENAI | {"response_format": nested}),
        ("/v1/chat/completions", {"messages": HELLO, "response_format": form}),
        ("/v1/completions", {"prompt": "p", "response_format": form, "stream": False}),
        ("/completion", {"prompt": "p", "response_format": nested}),
        ("/api/v1/generate", {"prompt": "p", "response_format": nested}),
        ("/api/chat", {"messages": HELLO, "format": schema, "stream": False}),
    ]
    anything = ANTHROPIC | {"output_format": {"type": "json_schema", "schema": True}}
    await posted(client, "/v1/messages", anything)
    for path, body in sent:
        seen.clear()
        await posted(client, path, body)
        assert {text and json.dumps(json.loads(text)) for text in seen} == {json.dumps(schema)}, path

    free: list[tuple[str, dict[str, Any]]] = [
        ("/v1/messages", ANTHROPIC | {"output_config": {"effort": "high"}}),
        ("/v1/messages", ANTHROPIC | {"output_config": {"format": None}, "output_format": None}),
        ("/v1/responses", OPENAI | {"text": {"format": {}}}),
        ("/v1/chat/completions", {"messages": HELLO, "response_format": {}}),
    ]
    for path, body in free:
        seen.clear()
        await posted(client, path, body)
        assert {*seen} == {None}, path
    response = await client.post("/v1/messages", json=free[0][1])
    assert response.headers["x-srb-ignored"] == "output_config.effort"


async def test_errors_of_messages(connect: Connect) -> None:
    client = await connect(backend(b"ab"))
    image = {"role": "user", "content": [{"type": "image", "source": {}}]}
    bad: list[tuple[dict[str, Any], str]] = [
        ({"n": 2}, "n is 2"),
        ({"output_config": {"format": {"type": "yaml"}}}, "output_config.format must be"),
        ({"output_format": {"type": "json_schema", "schema": None}}, "output_format must be"),
        ({"tool_choice": {"type": "tool", "name": "y"}, "tools": [{"name": "x", "input_schema": {}}]}, "tool_choice"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "1"}]}]}, "messages[0]"),
        ({"messages": [image]}, "the type image"),
        ({"messages": None}, "messages"),
        ({"top_p": 2}, "top_p"),
    ]
    for fields, expected in bad:
        answer = await posted(client, "/v1/messages", ANTHROPIC | fields, 400)
        assert answer["type"] == "error"
        assert answer["error"]["type"] == "invalid_request_error"
        assert expected in answer["error"]["message"]
    client = await connect(backend(b"ab"), api_keys=(b"key",))
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        assert (await posted(client, path, ANTHROPIC, 401))["error"]["type"] == "authentication_error"
    client = await connect(backend(b"ab", fail_decodes={1, 2}))
    *_, fault, _block_end, end, _last = await events(
        await client.post("/v1/messages", json=ANTHROPIC | {"stream": True})
    )
    assert (fault["error"]["type"], end["delta"]["stop_reason"]) == ("api_error", "pause_turn")


async def test_instructions_are_enough(connect: Connect) -> None:
    await posted(await connect(backend(b"k")), "/v1/responses", {"input": [], "instructions": "be"})
