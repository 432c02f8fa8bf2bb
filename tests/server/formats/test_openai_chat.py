"""/v1/chat/completions and /v1/models, on the fake backend."""

import json
import re
from typing import Any

import pytest
from fake_backend import FakeBackend, babble, says
from server.conftest import Connect

from srb.llama.model.chat_template import ChatTemplate

SOURCE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}a:{{ mood }}"
HELLO = [{"role": "user", "content": "hi"}]  # "u:hi\na:"
PROMPT = tuple(b"u:hi\na:")


def backend(*texts: bytes, source: str = SOURCE) -> FakeBackend:
    script = says(*texts, prompt=len(PROMPT)) if texts else babble
    return FakeBackend(chat_template=ChatTemplate(source), script=script)


async def chat(connect: Connect, fake: FakeBackend, status: int = 200, **body: Any) -> dict[str, Any]:
    client = await connect(fake)
    response = await client.post("/v1/chat/completions", json={"messages": HELLO, "seed": 0} | body)
    result: dict[str, Any] = await response.json()
    assert response.status == status, result
    return result


async def prompt(connect: Connect, messages: list[Any], source: str = SOURCE, **body: Any) -> str:
    """What the model gets."""
    reply = await chat(
        connect, backend(source=source), messages=messages, echo=True, max_tokens=0, model="fake", **body
    )
    text: str = reply["choices"][0]["message"]["content"]
    return text


async def test_an_answer_that_nobody_gave_a_length_ends(connect: Connect) -> None:
    def endless() -> FakeBackend:  # one for each engine: an earlier one may not have given its cells back yet
        return FakeBackend(n_cells=1200, chat_template=ChatTemplate(SOURCE), script=lambda params, tokens: 65)

    reply = await chat(connect, endless())
    assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (1024, "length")
    for asked, most in (
        ({}, 1024),
        ({"max_tokens": -1}, 1200 - len(PROMPT) + 1),
        ({"branches": [{"max_tokens": -1}]}, 1200 - len(PROMPT) + 1),
        ({"branches": [{"max_tokens": 7}, {}]}, 1024),
    ):
        client = await connect(endless())
        body = {"messages": HELLO, "stream": "events"} | asked
        async with client.post("/v1/chat/completions", json=body) as answer:
            while not (line := await answer.content.readline()).startswith(b"data: "):
                pass
        assert json.loads(line.removeprefix(b"data: "))["max_tokens"] == most, asked


async def test_the_stop_strings_of_a_chat_template_are_never_shown(connect: Connect) -> None:
    fake = backend(b"ab#cd|")
    fake.chat_template = ChatTemplate(SOURCE, stop=("#", "|"))
    for stop, text in ((None, "ab"), ("b", "ab"), ("#", "ab#")):
        reply = await chat(connect, fake, include_stop_str_in_output=True, stop=stop)
        assert reply["choices"][0]["message"]["content"] == text


async def test_what_the_template_gets(connect: Connect) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert await prompt(connect, [{"role": "user", "content": parts}]) == "u:one\ntwo\na:"
    assert await prompt(connect, HELLO, chat_template_kwargs={"mood": "glad"}) == "u:hi\na:glad"
    assert await prompt(connect, [{"role": "developer", "content": "x"}]) == "s:x\na:"
    knows_developers = "{% if messages[0].role == 'developer' %}yes{% endif %}"
    assert await prompt(connect, [{"role": "developer", "content": "x"}], source=knows_developers) == "yes"


async def test_fields_of_openai_without_effect_are_named(connect: Connect) -> None:
    client = await connect(backend())
    names = ["user", "store", "metadata", "reasoning_effort", "service_tier", "parallel_tool_calls", "tool_choice"]
    body = {"messages": HELLO, "max_completion_tokens": 1, "tools": [], **dict.fromkeys(names, "x")}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.headers["x-srb-ignored"] == ", ".join(names)
    body = {"prompt": "p", "model": "fake", "chat_template_kwargs": {"mood": "glad"}}
    response = await client.post("/v1/completions", json=body)
    assert response.headers["x-srb-ignored"] == "chat_template_kwargs"


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}

BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": None}, "messages", "messages is missing"),
    ({"messages": []}, "messages", "must not be empty"),
    ({"messages": "hi"}, "messages", "list"),
    ({"messages": ["hi"]}, "messages[0]", "an object"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role", "required"),
    ({"messages": [{"role": 5, "content": "hi"}]}, "messages[0].role", "string"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "string"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content", "should have a URL"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages[0].content", "part 0"),
    ({"messages": [{"role": "user", "content": ["hi"]}]}, "messages[0].content", "part 0"),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, "prompt", "not valid Unicode"),
    ({"messages": [*HELLO, *[{"role": "assistant", "content": "a"}] * 2]}, "messages", "two messages of the assistant"),
    ({"prompt": "hi"}, "prompt", "exclude each other"),
    ({"functions": [{"name": "f"}], "function_call": {"name": "f"}}, "function_call", "send tools and tool_choice"),
    ({"top_logprobs": 5}, "top_logprobs", '"logprobs": true'),
    ({"logprobs": True, "top_logprobs": 101}, "logprobs", "from 0 to 100"),
    ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs", "can't set tools"),
    ({"suffix": "x"}, "suffix", "not supported in chats"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs", "dictionary"),
    ({"n": 4, "best_of": 5, "stream": True}, "best_of", "stream"),
]


async def test_bad_input_is_refused(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    client = await connect(fake := backend(b"a"))
    for body, param, message in BAD:
        response = await client.post("/v1/chat/completions", json={"messages": HELLO} | body)
        case = f"{str(body)[:80]} -> {await response.text()}"
        assert response.status == 400, case
        error = (await response.json())["error"]
        assert error["type"] == "invalid_request_error", case
        assert error["param"] == param, case
        assert message in error["message"], case
    assert fake.decodes == 0
    assert "hi" not in re.findall(r"\w+", caplog.text)  # messages are prompts, and these aren't logged


async def test_a_prompt_that_is_too_long_is_refused_as_by_llama_server(connect: Connect) -> None:
    client = await connect(backend())
    long = "x" * 300
    messages = [{"role": "user", "content": long}]
    for path, body, n in (
        ("/v1/chat/completions", {"messages": messages}, 305),
        ("/v1/chat/completions", {"messages": messages, "stream": True}, 305),
        ("/completion", {"prompt": long}, 300),
        ("/v1/completions", {"prompt": list(long.encode())}, 300),
    ):
        response = await client.post(path, json=body)
        error = (await response.json())["error"]
        assert (response.status, error["type"], error["code"]) == (
            *(400, "exceed_context_size_error"),
            "context_length_exceeded",
        )
        assert (error["n_prompt_tokens"], error["n_ctx"], error["param"]) == (n, 256, "prompt")
        assert f"{n} tokens, more than the 256 cells" in error["message"]


async def test_without_any_template_a_chat_is_refused(connect: Connect) -> None:
    reply = await chat(connect, FakeBackend(), 400)
    assert reply["error"]["code"] == "no_chat_template"
    assert "--chat-template none; send a prompt to /v1/completions" in reply["error"]["message"]


async def test_a_template_that_refuses_says_why(connect: Connect) -> None:
    reply = await chat(connect, backend(source="{{ raise_exception('system first') }}"), 400)
    assert reply["error"]["message"] == "the model's chat template can't take these messages: system first"


async def test_models(connect: Connect) -> None:
    client = await connect(FakeBackend())
    model = await (await client.get("/v1/models/fake")).json()
    assert (model["id"], model["object"], model["owned_by"]) == ("fake", "model", "llamacpp")
    assert await (await client.get("/v1/models/fake/")).json() == model
    for path in ("/v1/models", "/v1/models/", "/models"):
        assert await (await client.get(path)).json() == {"object": "list", "data": [model]}
    response = await client.get("/v1/models/org/other")
    assert response.status == 404
    error = (await response.json())["error"]
    assert error["code"] == "model_not_found"
    assert "no model org/other; there is fake" in error["message"]
