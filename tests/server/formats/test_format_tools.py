"""Tools in the formats of Anthropic, of OpenAI's responses and of Ollama, on the fake backend."""

from typing import Any

import pytest
from server.conftest import Connect, posted
from server.formats.test_tools import CITY, NATIVE, PARIS, SIMPLE, Model

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


PLAIN = f"<user>hi\n<assistant>Well:\n{PARIS}\n<user><tool_response>\nrain\n</tool_response>\n<user>and?\n"
OWN = '<user>hi<assistant>Well:[weather]{"city": "Paris"}[/]<tool>rain<user>and?'


@pytest.mark.parametrize(
    ("source", "expected"), [(SIMPLE, PLAIN), (NATIVE, OWN), (NATIVE.replace("arguments | tojson", "arguments"), OWN)]
)
async def test_what_was_called_and_what_came_of_it_is_the_same_conversation_in_all(
    connect: Connect, source: str, expected: str
) -> None:
    model = Model("ok", source=source)
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
