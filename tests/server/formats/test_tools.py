"""Chats with tools, on the fake backend: what the model gets, what it says, and what a client sees of it."""

import json
import random
from typing import Any

import pytest
from driver import few
from fake_backend import END, FakeBackend
from odd_tools import odd_tool
from server.conftest import Client, Connect

from srb.engine.sampling_params import SamplingParams
from srb.llama.model.chat_template import ChatTemplate
from srb.wire.tools.calls import PLAIN

SIMPLE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
NATIVE = (
    "{% if tools %}<tools>{{ tools | tojson }}\n{% endif %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls %}[{{ c.function.name }}]{{ c.function.arguments | tojson }}[/]{% endfor %}\n{% endfor %}"
    "<assistant>"
)
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "weather", "description": "It rains?", "parameters": CITY}}
OTHER = {"type": "function", "function": {"name": "time"}}
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL, OTHER], "seed": 0}


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": json.dumps(arguments)}}


PARIS = PLAIN.write([call("weather", {"city": "Paris"})])


class Model:
    """A model that says texts[seed], and knows what it was asked."""

    def __init__(self, *texts: str, source: str = SIMPLE) -> None:
        self.prompt = ""
        self.params: list[SamplingParams] = []
        self._texts = [text.encode() for text in texts]
        self.backend = FakeBackend(n_cells=4096, chat_template=ChatTemplate(source), script=self._say)

    def _say(self, params: SamplingParams, tokens: tuple[int, ...]) -> int:
        prompt, _, said = bytes(tokens).rpartition(b"<assistant>")
        self.prompt = prompt.decode()
        self.params.append(params)
        text = self._texts[params.seed % len(self._texts)]
        return text[len(said)] if len(said) < len(text) else END

    @property
    def grammar(self) -> str | None:
        return self.params[-1].grammar


async def chat(connect: Connect, model: Model, status: int = 200, **body: Any) -> Any:
    client = await connect(model.backend)
    return await send(client, status, **body)


async def send(client: Client, status: int = 200, **body: Any) -> Any:
    response = await client.post("/v1/chat/completions", json=ASK | body)
    text = await response.text()
    assert response.status == status, text
    if not body.get("stream"):
        return json.loads(text)
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n")[:-2]]


def assembled(chunks: list[Any], index: int) -> tuple[str, list[Any], str]:
    """The content, the calls and the finish_reason of a choice, put together as clients do it."""
    content, reason = "", ""
    calls: list[Any] = []
    for choice in (choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index):
        content += choice["delta"].get("content") or ""
        for delta in choice["delta"].get("tool_calls", ()):
            if delta["index"] == len(calls):
                calls.append({"id": delta["id"], "type": delta["type"], "function": dict(delta["function"])})
            else:
                assert delta.keys() == {"index", "function"}
                calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
        assert not reason, "nothing comes after the end"
        reason = choice["finish_reason"] or ""
    return content, calls, reason


async def test_a_template_that_knows_tools_gets_them_and_says_how_calls_are_written(connect: Connect) -> None:
    model = Model('[weather]{"city": "Rome"}[/]', source=NATIVE)
    history = [
        *ASK["messages"],
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function"} | call("time", {"a": 1})],
        },
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "noon"}]},
    ]
    choice = (await chat(connect, model, messages=history))["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}
    first, said = model.prompt.split("<user>")
    described = [each["function"] for each in json.loads(first.removeprefix("<tools>"))]
    assert described == [
        TOOL["function"],
        {"name": "time", "description": "", "parameters": {"type": "object", "properties": {}}},
    ]
    assert said == 'hi<assistant>[time]{"a": 1}[/]<tool>noon'


async def test_what_may_be_called(connect: Connect) -> None:
    one: dict[str, Any] = {"type": "function", "function": {"name": "time"}}
    some: dict[str, Any] = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [one]}}
    model = Model("x")
    client = await connect(model.backend)
    for choice, names, text in (
        (None, ("weather", "time"), True),
        ("auto", ("weather", "time"), True),
        ("required", ("weather", "time"), False),
        ("any", ("weather", "time"), False),
        ({"type": "any"}, ("weather", "time"), False),
        ({"type": "auto"}, ("weather", "time"), True),
        ({}, ("weather", "time"), True),
        (one, ("time",), False),
        ({"type": "tool", "name": "time"}, ("time",), False),
        (some, ("time",), False),
        (some["allowed_tools"] | {"type": "allowed_tools", "mode": "auto"}, ("time",), True),
    ):
        await send(client, tool_choice=choice)
        grammar = model.grammar or ""
        assert [name for name in ("weather", "time") if f'"{name}\\"' in grammar] == list(names), choice
        assert ("TEXT" in grammar) == text, choice
        assert all((f'"name": "{name}"' in model.prompt) == (name in names) for name in ("weather", "time"))
    left_out: list[dict[str, Any]] = [{"tool_choice": "none"}, {"tools": []}, {"tools": None}]
    for body in left_out:
        await send(client, **body)
        assert model.grammar is None
        assert model.prompt == "<user>hi\n"


async def test_several_calls_where_the_template_writes_such_or_the_client_asks(connect: Connect) -> None:
    for source, parallel, several in (
        (SIMPLE, None, False),
        (SIMPLE, True, True),
        (NATIVE, None, True),
        (NATIVE, False, False),
    ):
        model = Model("x", source=source)
        await chat(connect, model, parallel_tool_calls=parallel)
        assert ("call)*" in (model.grammar or "")) == several


async def test_a_schema_for_the_answer_with_tools(connect: Connect) -> None:
    model = Model("{}")
    schema = {"type": "object", "properties": {"answer": {"const": 42}}}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    assert (await chat(connect, model, response_format=form))["choices"][0]["message"]["content"] == "{}"
    assert model.params[-1].json_schema is None
    assert '"const": 42' in (model.grammar or "")


async def test_what_a_call_need_not_match_is_reported(connect: Connect) -> None:
    parameters = {
        "properties": {
            "uniqueItems": {"type": "array", "uniqueItems": True},
            "choice": {"oneOf": [{"type": "string", "format": "password"}, {"not": {"type": "string"}}]},
            "when": {"type": "string", "format": "date", "default": {"not": "a keyword"}},
            "email": {"type": "string", "format": "email", "pattern": r"^(?!\.)[^@ ]+@[^@ ]+$"},
            "file": {"type": "file"},
        },
        "required": None,
    }
    client = await connect(Model(PARIS).backend)
    names = ("uniqueItems", "oneOf", "format=password", "not", "pattern", "type")
    for path, body in each_format([{"name": "weather", "parameters": parameters}, OTHER]):
        response = await client.post(path, json=body)
        ignored = response.headers["x-srb-ignored"].split(", ")
        assert sorted(ignored) == sorted(f"tools.weather.{name}" for name in names), path


async def test_flat_tools_are_read_and_tools_of_other_types_left_out(connect: Connect) -> None:
    model = Model(PARIS, source=NATIVE)
    client = await connect(model.backend)
    function: Any = TOOL["function"]
    flat: dict[str, Any] = {"type": "function", **function}
    custom: dict[str, Any] = {"type": "custom", "custom": {"name": "patch"}}
    others = [custom, {"type": "web_search"}, {"type": "namespace", "name": "crm", "tools": [flat]}]
    names = "tools.patch, tools.web_search, tools.crm"
    chat_body = {"messages": ASK["messages"], "seed": 0, "stream": False}
    responses = {"input": "hi", "seed": 0}
    sent: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("/v1/chat/completions", chat_body, flat),
        ("/v1/chat/completions", chat_body, TOOL),
        ("/v1/responses", responses, flat),
        ("/v1/responses", responses, TOOL),
        ("/api/chat", chat_body, flat),
    ]
    for path, body, tool in sent:
        response = await client.post(path, json=body | {"tools": [tool, *others]})
        assert response.status == 200, await response.text()
        assert names in response.headers["x-srb-ignored"], path
        assert model.prompt.count('"name": "weather"') == 1
        assert not [name for name in ("patch", "web_search", "crm") if name in model.prompt]

    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
    body = {"messages": ASK["messages"], "seed": 0, "max_tokens": 99}
    tool = {"name": "weather", "input_schema": CITY}
    response = await client.post("/v1/messages", json=body | {"tools": [search, tool]})
    assert response.headers["x-srb-ignored"] == "tools.web_search"
    assert model.prompt.count('"name": "weather"') == 1

    response = await client.post("/v1/chat/completions", json=chat_body | {"tools": others, "tool_choice": "auto"})
    assert response.headers["x-srb-ignored"] == f"{names}, tool_choice"
    assert model.grammar is None


UNUSABLE: list[tuple[Any, str]] = [
    (None, "tools[1]"),
    ("a text", "tools[1]"),
    ({"type": "function"}, "tools[1]"),
    ({"type": "function", "function": None}, "tools[1]"),
    ({"function": {"name": ""}}, "tools[1]"),
    ({"function": {"name": "a b"}}, "tools[1] (a b)"),
    ({"function": {"name": 5, "parameters": CITY}}, "tools[1]"),
    ({"type": 5}, "tools.5"),
    (TOOL, "tools[1] (weather)"),
]


async def test_tools_that_cannot_be_called_are_left_out(connect: Connect) -> None:
    model = Model("x", source=NATIVE)
    client = await connect(model.backend)
    for tool, reported in UNUSABLE:
        for path, body in each_format([TOOL, tool]):
            response = await client.post(path, json=body)
            assert response.status == 200, (path, tool, await response.text())
            assert response.headers["x-srb-ignored"] == reported, (path, tool)
            assert model.prompt.count('"name": ') == 1, (path, tool)
        response = await client.post("/apply-template", json=ASK | {"tools": [TOOL, tool]})
        assert (await response.json())["prompt"].count('"name": ') == 1, tool


def each_format(tools: Any) -> list[tuple[str, dict[str, Any]]]:
    """A body with these tools, in each format that has tools."""
    messages = {"messages": ASK["messages"], "seed": 0}
    return [
        ("/v1/chat/completions", messages | {"tools": tools}),
        ("/v1/responses", {"input": "hi", "seed": 0, "tools": tools}),
        ("/v1/messages", messages | {"max_tokens": 99, "tools": tools}),
        ("/api/chat", {"messages": ASK["messages"], "stream": False, "tools": tools}),
    ]


async def test_schemas_that_are_none(connect: Connect) -> None:
    none: Any = {"type": "object", "properties": {}}
    cases: list[tuple[dict[str, Any], Any, str | None]] = [
        ({"parameters": []}, none, None),
        ({"parameters": {}}, none, None),
        ({"parameters": ""}, none, None),
        ({"parameters": "[]"}, none, None),
        ({"parameters": json.dumps(CITY)}, CITY, None),
        ({"input_schema": CITY}, CITY, None),
        ({"inputSchema": CITY}, CITY, None),
        ({"parameters": True}, {"type": "object"}, None),
        ({"input_schema": True}, {"type": "object"}, None),
        ({"parameters": "a text"}, {"type": "object"}, "tools.weather.parameters"),
        ({"parameters": ["city"]}, {"type": "object"}, "tools.weather.parameters"),
        ({"parameters": CITY, "description": ["It rains?"]}, CITY, "tools.weather.description"),
    ]
    model = Model("x", source=NATIVE)
    client = await connect(model.backend)
    for function, schema, reported in cases:
        flat = {"name": "weather", "description": "It rains?"} | function
        for path, body in each_format([flat]):
            response = await client.post(path, json=body)
            assert response.status == 200, (path, function, await response.text())
            assert response.headers.get("x-srb-ignored") == reported, (path, function)
            (described,) = json.loads(model.prompt.partition("<user>")[0].removeprefix("<tools>"))
            assert described["function"]["parameters"] == schema, (path, function)


async def test_templates_that_read_schemas_get_usual_ones_if_they_must(connect: Connect) -> None:
    source = NATIVE.replace(
        "{{ tools | tojson }}",
        "{% for t in tools %}{{ t.function.name }} {% set p = t.function.parameters %}"
        "{% for name, each in p.properties.items() %}{{ name }}:{{ each['type'] | upper }} {% endfor %}"
        "{% if 'a' in p.required %}must{% endif %}{% endfor %}",
    )
    model = Model("x", source=source)
    client = await connect(model.backend)
    cases: list[tuple[dict[str, Any], str]] = [
        (CITY, "city:STRING "),
        ({"properties": {"a": {"type": "string"}}, "required": None}, "a:STRING "),
        ({"properties": {"a": {"type": "string"}, "b": None, "c": "text"}, "required": ["a"]}, "a:STRING b: c: must"),
        ({"type": "object", "properties": None}, ""),
        ({"anyOf": [CITY]}, ""),
    ]
    for parameters, shown in cases:
        for path, body in each_format([{"name": "weather", "input_schema": parameters}]):
            response = await client.post(path, json=body)
            assert response.status == 200, (path, parameters, await response.text())
            assert model.prompt.partition("<user>")[0] == f"<tools>weather {shown}", (path, parameters)


async def test_a_value_that_is_no_list_of_tools(connect: Connect) -> None:
    model = Model("x")
    client = await connect(model.backend)
    for tools, reported in (({}, None), ("", None), (False, None), ("all", "tools[0]"), (TOOL, None)):
        for path, body in each_format(tools):
            response = await client.post(path, json=body)
            assert response.status == 200, (path, tools, await response.text())
            assert response.headers.get("x-srb-ignored") == reported, (path, tools)
            assert bool(model.grammar) == (tools == TOOL), (path, tools)


async def test_functions_are_reported_and_a_demanded_one_is_refused(connect: Connect) -> None:
    client = await connect(Model("x").backend)
    body = {"messages": ASK["messages"], "functions": [{"name": "f"}], "function_call": "auto"}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.headers["x-srb-ignored"] == "functions, function_call"


@pytest.mark.parametrize("seeds", few(range(5), many=[range(5, 75)]), ids=str)
async def test_odd_tools_in_every_format(connect: Connect, seeds: range) -> None:
    client = await connect(Model("[tool_0]{}[/]", source=NATIVE).backend)
    for seed in seeds:
        rng = random.Random(seed)
        tools = [odd_tool(rng, k) for k in range(4)]
        for path, body in each_format(tools):
            response = await client.post(path, data=json.dumps(body).replace("Infinity", "1e999"))
            assert response.status == 200, (path, tools, await response.text())


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"tool_choice": "all"}, "tool_choice", 'must be "none", "auto", "required"'),
    ({"tool_choice": 5}, "tool_choice", 'must be "none", "auto", "required"'),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice", 'names "web_search", which is none of the tools: weather'),
    (
        {"tool_choice": "required", "tools": [{"function": {"name": "a b"}}, {"type": "web_search"}]},
        "tool_choice",
        'is "required", but no tool that it allows can be called: srb leaves out tools[0] (a b), tools.web_search',
    ),
    (
        {
            "tool_choice": {"type": "tool", "name": "web_search"},
            "tools": [{"type": "web_search_1", "name": "web_search"}],
        },
        "tool_choice",
        'names "web_search", which is no function: srb leaves out tools.web_search',
    ),
    (
        {
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "web_search"}],
            },
            "tools": [TOOL, {"type": "web_search"}],
        },
        "tool_choice",
        "but no tool that it allows can be called: srb leaves out tools.web_search",
    ),
    ({"tool_choice": {"type": "function", "function": {"name": "nope"}}}, "tool_choice", "none of the tools: weather"),
    ({"tool_choice": {"type": "function"}}, "tool_choice", "names None"),
    ({"tool_choice": {"type": [["web_search"]]}}, "tool_choice", "none of the tools: weather"),
    ({"parallel_tool_calls": "yes"}, "parallel_tool_calls", "true or false"),
    ({"grammar": 'root ::= "x"'}, "grammar", "exclude each other"),
    ({"regex": "x"}, "regex", "regex and tools exclude each other"),
    ({"echo": True}, "tools", "/apply-template"),
    ({"messages": None, "prompt": "p"}, "tools", "go with messages"),
    (
        {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]},
        "messages[0].tool_calls[0].function",
        "required",
    ),
]


async def test_bad_tools_are_refused(connect: Connect) -> None:
    client = await connect((model := Model("x")).backend)
    for body, param, message in BAD:
        error = (await send(client, 400, **body))["error"]
        assert error["param"] == param, body
        assert message in error["message"], body
    assert model.backend.decodes == 0


async def test_apply_template_and_counts_have_the_tools(connect: Connect) -> None:
    client = await connect(Model("x").backend)
    prompt = (await (await client.post("/apply-template", json=ASK)).json())["prompt"]
    assert json.dumps(TOOL) in prompt
    counted = await (await client.post("/v1/chat/completions/input_tokens", json=ASK)).json()
    assert counted["input_tokens"] == len(prompt)
