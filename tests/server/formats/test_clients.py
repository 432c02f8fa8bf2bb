"""Requests as real clients send them, each answered with what that client reads.

The bodies are in clients/, written down from what is known of these clients.
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from fake_backend import END, FakeBackend, says
from server.conftest import Client, Connect
from server.formats.test_tools import Model, assembled, call

from srb.engine.model import SpecialTokens
from srb.llama.model.chat_template import ChatTemplate
from srb.wire.tools.calls import PLAIN

CLIENTS = Path(__file__).parent / "clients"
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"


def server(n_cells: int = 4096) -> FakeBackend:
    return FakeBackend(n_cells=n_cells, chat_template=ChatTemplate(TEMPLATE), script=lambda _params, tokens: 97)


def recorded(name: str) -> Any:
    """The body of a recorded request."""
    return json.loads((CLIENTS / f"{name}.json").read_text())["body"]


async def send(client: Client, name: str, status: int = 200) -> Any:
    """The reply to a recorded request: its object, or its chunks."""
    request = json.loads((CLIENTS / f"{name}.json").read_text())
    response = await client.post(request["path"], json=request["body"])
    text = await response.text()
    assert response.status == status, text
    if not request["body"].get("stream"):
        return json.loads(text)
    events = text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def joined(chunks: list[Any], index: int = 0) -> str:
    """The text of one choice of a stream."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["text"] if "text" in choice else choice["delta"].get("content", "") for choice in choices)


SAID: dict[str, list[str]] = {
    "basemode_prefill": ["a" * 8],
    "big_agi_beam": ["a" * 8],
    "kobold_lite": ["a" * 8],
    "lm_eval_gguf": ["Once upona"],
    "logitloom": ["aaa"],
    "loomsidian": ["a" * 6] * 5,
    "mikupad_openai": ["a" * 8],
    "minihf_weave": ["a"] * 4,
    "miniloom": ["a" * 8] * 3,
    "promptfoo": ["a" * 8],
    "promptfoo_http": ["a" * 8],  # without `model` and `stream`, like the next two
    "sillytavern_generic": ["a" * 8],
    "sillytavern_tabby": ["a" * 8] * 2,  # with all fields of its 1.19
    "sillytavern_chat": ["a" * 8] * 2,
    "socketteer_loom": ["Once upon a timeaaaaaa"] * 2,
    "tapestry_loom": ["a" * 10],
    "wool": ["a" * 8],
}
"""What a model that says a answers to requests."""


@pytest.mark.parametrize("name", SAID)
async def test_the_texts_that_a_client_reads(connect: Connect, name: str) -> None:
    reply = await send(await connect(server()), name)
    choices = [] if isinstance(reply, list) else reply["choices"]
    texts = [each["text"] if "text" in each else each["message"]["content"] for each in choices] or [joined(reply)]
    assert texts == SAID[name]


async def test_openai(connect: Connect) -> None:
    chunks = await send(await connect(server(n_cells=200)), "openai_chat_n_stream")
    said = [joined(chunks, index) for index in range(4)]
    assert set(said) == {"a" * len(said[0])}  # as much as there is room for, since the client doesn't say
    assert chunks[-1]["usage"]["completion_tokens"] == 4 * len(said[0]) > 4 * 32


async def test_loomsidian_reads_an_error(connect: Connect) -> None:
    assert (await send(await connect(server()), "loomsidian_bad", 400))["error"]["message"]


async def test_the_likeliest_tokens_that_clients_of_looms_ask_for(connect: Connect) -> None:
    client = await connect(server())
    for name, count in (("tapestry_loom", 20), ("minihf_weave", 25), ("lm_eval_gguf", 10), ("mikupad_openai", 10)):
        reply = await send(client, name)
        logprobs = (reply[0] if isinstance(reply, list) else reply)["choices"][0]["logprobs"]
        assert len(logprobs["top_logprobs"][-1]) in (count, count + 1), name
    content = (await send(client, "tapestry_loom_chat"))["choices"][0]["logprobs"]["content"]
    assert [len(token["top_logprobs"]) for token in content] == [20] * 10


async def test_anthropic_reads_the_list_of_models(connect: Connect) -> None:
    client = await connect(server())
    (model,) = (await (await client.get("/v1/models")).json())["data"]
    assert (model["id"], model["type"], model["display_name"]) == ("fake", "model", "fake")
    assert datetime.fromisoformat(model["created_at"]).timestamp() == model["created"]


async def test_logitloom_with_chats_sees_the_end_of_the_model(connect: Connect) -> None:
    fake = FakeBackend(n_cells=4096, chat_template=ChatTemplate(TEMPLATE), script=lambda _params, _tokens: END)
    choice = (await send(await connect(fake), "logitloom_chat"))["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert [token["token"] for token in choice["logprobs"]["content"]] == ["<END>"]


async def test_lm_eval_newest_gguf(connect: Connect) -> None:
    """It forces each token of a continuation, and reads its id and its score."""
    client = await connect(server())
    body = {"prompt": [79, 110, 99], "temperature": 0.0, "max_tokens": 1, "logprobs": 2, "logit_bias": [[97, 100]]}
    reply = await (await client.post("/openai/v1/completions", json=body)).json()
    logprobs = reply["choices"][0]["logprobs"]
    (token,) = logprobs["content"]
    assert (token["id"], [token["token"]], [token["logprob"]]) == (97, logprobs["tokens"], logprobs["token_logprobs"])
    assert [set(each) for each in token["top_logprobs"]] == [{"id", "token", "logprob", "bytes"}] * 2
    tokens = await (await client.post("/openai/tokenize", json={"content": "Once"})).json()
    assert tokens == {"tokens": [79, 110, 99, 101]}
    assert (await (await client.get("/openai/props")).json())["model_alias"] == reply["model"]


async def test_lm_eval(connect: Connect) -> None:
    reply = await send(await connect(server()), "lm_eval")
    for choice, text in zip(reply["choices"], ("Once u", "Once v"), strict=True):
        logprobs = choice["logprobs"]
        assert logprobs["tokens"] == [*text, "a"]
        for token, value, top in list(zip(*(logprobs[key] for key in TOKENS), strict=True))[1:]:
            assert top[token] == value  # it asks whether the text is what the model would have said
            assert max(top.values()) >= value


async def test_sillytavern_with_llama_server(connect: Connect) -> None:
    sent = recorded("sillytavern_llamacpp")
    script = says(b"ab", prompt=len(sent["prompt"]))
    client = await connect(FakeBackend(script=script, chat_template=ChatTemplate("{{ messages }}")))
    assert (await (await client.get("/v1/models")).json())["data"][0]["id"] == "fake"
    assert (await (await client.get("/props")).json())["chat_template"] == "{{ messages }}"
    assert (await (await client.post("/tokenize", json={"content": "ab"})).json())["tokens"] == [97, 98]
    response = await client.post("/completion", json=sent | {"stream": False})
    several = await response.json()
    assert [each["content"] for each in several] == ["ab", "ab"]
    assert {"tfs_z", "api_server", "samplers.tfs_z"} <= set(response.headers["x-srb-ignored"].split(", "))
    response = await client.post("/completion", json=sent | {"stream": True})
    chunks = [json.loads(line[6:]) for line in (await response.text()).split("\n\n")[:-1]]
    for index in (0, 1):
        own = [chunk for chunk in chunks if chunk["index"] == index]
        assert "".join(chunk["content"] for chunk in own) == "ab"
        assert len(own[0]["completion_probabilities"][0]["top_logprobs"]) == 2
        assert own[-1]["stop"] is True


async def test_mikupad_with_llama_server(connect: Connect) -> None:
    client = await connect(FakeBackend(script=says("hé".encode(), prompt=4)))
    tokens = (await (await client.post("/tokenize", json={"content": "Once"})).json())["tokens"]
    assert (await (await client.post("/detokenize", json={"tokens": tokens})).json())["content"] == "Once"
    response = await client.post("/completion", json=recorded("mikupad_llamacpp"))
    chunks = [json.loads(line[6:]) for line in (await response.text()).split("\n\n")[:-1]]
    assert "".join(chunk["content"] for chunk in chunks) == "hé"
    for chunk in chunks[:-1]:
        (probability,) = chunk["completion_probabilities"]
        assert len(probability["top_logprobs"]) == 10
    assert chunks[-1]["stop"]


async def test_promptfoo_with_llama_server(connect: Connect) -> None:
    client = await connect(FakeBackend(script=says(b"ab", prompt=4)))
    assert (await (await client.post("/completion", json=recorded("promptfoo_llamacpp"))).json())["content"] == "ab"


async def test_llama_vim(connect: Connect) -> None:
    backend = FakeBackend()
    backend.tokenizer.special = SpecialTokens(fim_pre=1, fim_suf=2, fim_mid=3)
    client = await connect(backend)
    response = await client.post("/infill", json=recorded("llama_vim"))
    assert set(await response.json()) == set(recorded("llama_vim")["response_fields"])
    ignored = ["n_indent", "id_slot", "t_max_prompt_ms", "samplers.infill", "input_extra.time"]
    assert sorted(response.headers["x-srb-ignored"].split(", ")) == sorted(ignored)


WITH_TOOLS = {
    "openai_run_tools": "weather",
    "vercel_ai_tools": "weather",
    "langchain_bind_tools": "weather",
    "langchain_tool_message": "weather",
    "langchain_structured": "City",
    "llm_tools": "llm_version",
    "pydantic_ai_output": "final_result",
    "instructor_tools": "User",
    "instructor_iterable": "IterableUser",
}
"""Requests with tools, and the name of what they may call."""


@pytest.mark.parametrize(("sent", "name"), WITH_TOOLS.items())
async def test_clients_with_tools(connect: Connect, sent: str, name: str) -> None:
    model = Model(PLAIN.write([call(name, {"a": [1]})]))
    reply = await send(await connect(model.backend), sent)
    if isinstance(reply, list):
        _, (called,), reason = assembled(reply, 0)
    else:
        (called,), reason = reply["choices"][0]["message"]["tool_calls"], reply["choices"][0]["finish_reason"]
    assert (called["function"], reason) == ({"name": name, "arguments": '{"a": [1]}'}, "tool_calls")
    assert f'"name": "{name}"' in model.prompt
    assert ("<tool_response>\nIt rains." in model.prompt) == (sent == "langchain_tool_message")


TOKENS = ("tokens", "token_logprobs", "top_logprobs")


def test_every_recorded_request_is_sent() -> None:
    used = "".join(path.read_text() for path in CLIENTS.parent.glob("*.py"))
    assert all(f'"{path.stem}"' in used for path in CLIENTS.glob("*.json"))
