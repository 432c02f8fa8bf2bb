"""Tools in the formats of Anthropic, of OpenAI's responses and of Ollama, on the fake backend."""

import json
from typing import Any

import pytest
from server.conftest import Client, Connect
from server.formats.test_messages_responses import events, posted
from server.formats.test_tools import BOTH, CITY, NATIVE, PARIS, Model

HELLO = [{"role": "user", "content": "hi"}]
ANTHROPIC: dict[str, Any] = {
    "messages": HELLO,
    "seed": 0,
    "tools": [
        {"name": "weather", "description": "It rains?", "input_schema": CITY},
        {"name": "time", "input_schema": {"type": "object"}, "cache_control": {"type": "ephemeral"}},
    ],
}
OPENAI: dict[str, Any] = {
    "input": "hi",
    "seed": 0,
    "tools": [
        {"type": "function", "name": "weather", "description": "It rains?", "parameters": CITY, "strict": True},
        {"type": "function", "name": "time", "parameters": None},
    ],
}
OLLAMA: dict[str, Any] = {
    "messages": HELLO,
    "options": {"seed": 0},
    "tools": [
        {"type": "function", "function": {"name": "weather", "description": "It rains?", "parameters": CITY}},
        {"type": "function", "function": {"name": "time"}},
    ],
}
TEXT = f"Well:\n{BOTH}"
CALLS = [("weather", {"city": "é"}), ("time", {})]


async def lines(client: Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = await client.post("/api/chat", json=body)
    assert response.status == 200, await response.text()
    return [json.loads(line) for line in (await response.text()).splitlines()]


async def test_a_message_with_calls_streamed_and_not(connect: Connect) -> None:
    client = await connect(Model(TEXT).backend)
    message = await posted(client, "/v1/messages", ANTHROPIC)
    text, *calls = message["content"]
    assert (text, message["stop_reason"]) == ({"type": "text", "text": "Well:"}, "tool_use")
    assert [(call["type"], call["name"], call["input"]) for call in calls] == [("tool_use", *call) for call in CALLS]
    assert len({call["id"] for call in calls}) == 2

    start, *received, end, _stop = await events(await client.post("/v1/messages", json=ANTHROPIC | {"stream": True}))
    assert (start["message"]["content"], end["delta"]["stop_reason"]) == ([], "tool_use")
    blocks: list[dict[str, Any]] = []
    inputs: list[str] = []
    for each in received:
        if each["type"] == "content_block_start":
            blocks.append(each["content_block"])
            inputs.append("")
        assert each["index"] == len(blocks) - 1, "one ends before the next one begins"
        if each["type"] == "content_block_delta":
            delta = each["delta"]
            assert delta["type"] == ("input_json_delta" if blocks[-1]["type"] == "tool_use" else "text_delta")
            inputs[-1] += delta.get("partial_json") or delta.get("text")
    assert [each["type"] for each in received].count("content_block_stop") == 3
    assert blocks[1]["input"] == {}
    assert (inputs[0], [json.loads(each) for each in inputs[1:]]) == ("Well:", [call for _, call in CALLS])


async def test_a_response_with_calls_streamed_and_not(connect: Connect) -> None:
    client = await connect(Model(TEXT).backend)
    response = await posted(client, "/v1/responses", OPENAI)
    message, *calls = response["output"]
    assert (message["content"][0]["text"], response["status"]) == ("Well:", "completed")
    expected = [("function_call", "completed", *call) for call in CALLS]
    assert [(c["type"], c["status"], c["name"], json.loads(c["arguments"])) for c in calls] == expected
    assert len({c["call_id"] for c in calls} | {c["id"] for c in calls}) == 4
    assert [tool["name"] for tool in response["tools"]] == ["weather", "time"]

    received = await events(await client.post("/v1/responses", json=OPENAI | {"stream": True}))
    assert [each["sequence_number"] for each in received] == list(range(len(received)))
    arguments = {1: "", 2: ""}
    for each in received:
        match each["type"].removeprefix("response."):
            case "function_call_arguments.delta":
                arguments[each["output_index"]] += each["delta"]
            case "function_call_arguments.done":
                assert each["arguments"] == arguments[each["output_index"]]
            case "output_item.added":
                assert (each["item"]["status"], each["item"].get("arguments", "")) == ("in_progress", "")
    assert [json.loads(each) for each in arguments.values()] == [call for _, call in CALLS]
    done = [each["item"] for each in received if each["type"] == "response.output_item.done"]
    assert done == received[-1]["response"]["output"]


async def test_a_chat_of_ollama_with_calls_streamed_and_not(connect: Connect) -> None:
    client = await connect(Model(TEXT).backend)
    answer = await posted(client, "/api/chat", OLLAMA | {"stream": False})
    assert (answer["message"]["content"], answer["done_reason"]) == ("Well:", "stop")
    called = [(c["function"]["name"], c["function"]["arguments"]) for c in answer["message"]["tool_calls"]]
    assert called == CALLS
    streamed = await lines(client, OLLAMA)
    assert "".join(each["message"]["content"] for each in streamed) == "Well:"
    calls = [call["function"] for each in streamed for call in each["message"].get("tool_calls", ())]
    assert [(call["name"], call["arguments"]) for call in calls] == CALLS
    assert [each["done"] for each in streamed] == [False] * (len(streamed) - 1) + [True]


async def test_what_was_called_and_what_came_of_it_is_the_same_conversation_in_all(connect: Connect) -> None:
    expected = f"<user>hi\n<assistant>Well:\n{PARIS}\n<user><tool_response>\nrain\n</tool_response>\n<user>and?\n"
    model = Model("ok")
    client = await connect(model.backend)
    no_tools: dict[str, Any] = {"tools": []}
    used = {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Paris"}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "rain"}]}
    conversation = [
        *HELLO,
        {"role": "assistant", "content": [{"type": "text", "text": "Well:"}, used]},
        {"role": "user", "content": [result]},
        {"role": "user", "content": "and?"},
    ]
    await posted(client, "/v1/messages", ANTHROPIC | no_tools | {"messages": conversation})
    assert model.prompt == expected
    both = [*conversation[:2], {"role": "user", "content": [{"type": "text", "text": "and?"}, result]}]
    await posted(client, "/v1/messages", ANTHROPIC | no_tools | {"messages": both})
    assert model.prompt == expected
    items = [
        *HELLO,
        {"role": "assistant", "content": "Well:"},
        {"type": "function_call", "id": "fc_1", "call_id": "1", "name": "weather", "arguments": '{"city": "Paris"}'},
        {"type": "function_call_output", "call_id": "1", "output": "rain"},
        {"role": "user", "content": "and?"},
    ]
    await posted(client, "/v1/responses", OPENAI | no_tools | {"input": items})
    assert model.prompt == expected
    called = {"function": {"name": "weather", "arguments": {"city": "Paris"}}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": "Well:", "tool_calls": [called]},
        {"role": "tool", "tool_name": "weather", "content": "rain"},
        {"role": "user", "content": "and?"},
    ]
    await posted(client, "/api/chat", OLLAMA | no_tools | {"messages": messages, "stream": False})
    assert model.prompt == expected


@pytest.mark.parametrize("source", [NATIVE, NATIVE.replace("arguments | tojson", "arguments")])
async def test_a_template_gets_the_arguments_as_it_takes_them(connect: Connect, source: str) -> None:
    model = Model("ok", source=source)
    client = await connect(model.backend)
    called = {"function": {"name": "weather", "arguments": {"city": "Paris"}}}
    messages = [*HELLO, {"role": "assistant", "tool_calls": [called]}, {"role": "tool", "content": "rain"}]
    await posted(client, "/api/chat", OLLAMA | {"tools": [], "messages": messages, "stream": False})
    expected = '<user>hi<assistant>[weather]{"city": "Paris"}[/]<tool>rain'
    assert model.prompt == expected
    call = {"type": "function_call", "call_id": "1", "name": "weather", "arguments": '{"city": "Paris"}'}
    items = [*HELLO, call, {"type": "function_call_output", "call_id": "1", "output": "rain"}]
    await posted(client, "/v1/responses", OPENAI | {"tools": [], "input": items})
    assert model.prompt == expected


async def test_calls_of_ollama_get_ids_for_templates_that_want_them(connect: Connect) -> None:
    source = NATIVE.replace("[{{ c.function.name }}]", "{{ c.id }}[{{ c.function.name }}]").replace(
        "{{ m.content }}", "{{ m.content }}{{ m.tool_call_id }}"
    )
    model = Model("ok", source=source)
    client = await connect(model.backend)
    called: list[dict[str, Any]] = [{"function": {"name": name, "arguments": {}}} for name in ("weather", "time")]
    results = [{"role": "tool", "tool_name": each["function"]["name"], "content": "x"} for each in called]
    messages = [*HELLO, {"role": "assistant", "tool_calls": called}, *results, {"role": "tool", "content": "too many"}]
    await posted(client, "/api/chat", OLLAMA | {"tools": [], "messages": messages, "stream": False})
    one, two = "000000001", "000000002"
    calls = f"{one}[weather]{{}}[/]{two}[time]{{}}[/]"
    assert model.prompt == f"<user>hi<assistant>{calls}<tool>x{one}<tool>x{two}<tool>too many"


async def test_thoughts_go_to_the_template(connect: Connect) -> None:
    source = "{% for m in messages %}({{ m.reasoning_content }}){{ m.content }}\n{% endfor %}<assistant>"
    model = Model("ok", source=source)
    thoughts = [{"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "redacted_thinking", "data": "y"}]
    turn = {"role": "assistant", "content": [*thoughts, {"type": "text", "text": "ho"}]}
    client = await connect(model.backend)
    await posted(client, "/v1/messages", ANTHROPIC | {"tools": None, "messages": [*HELLO, turn, *HELLO]})
    assert model.prompt == "()hi\n(hm)ho\n()hi\n"


@pytest.mark.parametrize(
    ("anthropic", "openai", "calls"),
    [
        ({"type": "none"}, "none", 0),
        ({"type": "any"}, "required", 1),
        ({"type": "tool", "name": "weather"}, {"type": "function", "name": "weather"}, 1),
        ({"type": "auto", "disable_parallel_tool_use": True}, None, 1),
    ],
)
async def test_choices(connect: Connect, anthropic: Any, openai: Any, calls: int) -> None:
    model = Model(PARIS)
    client = await connect(model.backend)
    content = (await posted(client, "/v1/messages", ANTHROPIC | {"tool_choice": anthropic}))["content"]
    asked = model.grammar
    more = {"parallel_tool_calls": False} if openai is None else {"tool_choice": openai}
    output = (await posted(client, "/v1/responses", OPENAI | more))["output"]
    assert model.grammar == asked
    assert [block["type"] for block in content].count("tool_use") == calls
    assert [item["type"] for item in output].count("function_call") == calls


async def test_a_call_cut_short(connect: Connect) -> None:
    client = await connect(Model(PARIS).backend)
    limit = {"max_tokens": len(PARIS) - 20}
    message = await posted(client, "/v1/messages", ANTHROPIC | limit)
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")
    response = await posted(client, "/v1/responses", OPENAI | limit)
    (call,) = response["output"]
    assert (call["type"], call["status"], response["status"]) == ("function_call", "incomplete", "incomplete")
    *_, last = await lines(client, OLLAMA | {"options": {"seed": 0, "num_predict": limit["max_tokens"]}})
    assert (last["done_reason"], "tool_calls" in last["message"]) == ("length", False)


async def test_log_probabilities_are_those_of_the_text(connect: Connect) -> None:
    client = await connect(Model(TEXT).backend)
    body = OPENAI | {"include": ["message.output_text.logprobs"]}
    message = (await posted(client, "/v1/responses", body))["output"][0]
    received = await events(await client.post("/v1/responses", json=body | {"stream": True}))
    shown = [token for each in received if each["type"].endswith("text.delta") for token in each["logprobs"]]
    assert shown == message["content"][0]["logprobs"]
    assert "".join(token["token"] for token in shown).startswith("Well:")


async def test_tools_count(connect: Connect) -> None:
    client = await connect(Model("ok").backend)
    for path, body in (("/v1/messages/count_tokens", ANTHROPIC), ("/v1/responses/input_tokens", OPENAI)):
        with_tools = await posted(client, path, body)
        assert with_tools["input_tokens"] > (await posted(client, path, body | {"tools": None}))["input_tokens"]
