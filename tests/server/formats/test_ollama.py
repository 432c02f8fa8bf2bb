"""Ollama's routes, with what its packages and SillyTavern send. On the fake backend."""

import json
from dataclasses import replace
from typing import Any

import pytest
from fake_backend import FakeBackend, FakeReader, Gate, says
from server.conftest import Client, Connect, posted
from server.formats.test_clients import recorded
from server.routes.test_pooling import FakeEmbedder

from srb.llama.model.chat_template import ChatTemplate
from srb.server.http import sse

SOURCE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}{{ '' if enable_thinking else False }}a:"
HELLO = [{"role": "user", "content": "hi"}]  # "u:hi\na:"

SILLY_TAVERN = recorded("sillytavern_ollama")


def backend(*texts: bytes, prompt: int = 7, **options: Any) -> FakeBackend:
    return FakeBackend(n_cells=4096, chat_template=ChatTemplate(SOURCE), script=says(*texts, prompt=prompt), **options)


async def lines(client: Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    response = await client.post(path, json=body)
    assert response.status == 200, await response.text()
    assert response.content_type == "application/x-ndjson"
    *parts, end = (await response.text()).split("\n")
    assert end == ""
    return [json.loads(part) for part in parts]


async def test_silly_tavern(connect: Connect) -> None:
    client = await connect(backend(b"ab\nYou: c", prompt=4))
    *parts, last = await lines(client, "/api/generate", SILLY_TAVERN | {"options": {"seed": 0, "stop": ["\nYou:"]}})
    assert [each["response"] for each in parts] == ["a", "b"]
    assert not any(each["done"] for each in parts)
    assert {last[name] for name in ("model", "response", "done", "done_reason")} == {"fake", "", True, "stop"}
    assert (last["prompt_eval_count"], last["eval_count"]) == (4, 7)
    assert last["total_duration"] >= last["prompt_eval_duration"] + last["eval_duration"]
    response = await client.post("/api/generate", json=SILLY_TAVERN | {"stream": False})
    assert set(response.headers["x-srb-ignored"].split(", ")) == {
        *("keep_alive", "options.num_ctx", "options.num_batch", "options.num_keep", "options.tfs_z"),
        "options.penalize_newline",
    }
    answer = await response.json()
    assert (answer["response"], answer["done"], answer["done_reason"]) == ("ab\nY", True, "length")


async def test_a_prompt_is_a_message_unless_it_is_raw(connect: Connect) -> None:
    client = await connect(backend(b"ab"))
    body: dict[str, Any] = {"model": "fake", "prompt": "hi", "stream": False, "options": {"seed": 0}}
    assert (await posted(client, "/api/generate", body))["response"] == "ab"
    client = await connect(backend(b"ab", prompt=len("s:be\nu:hi\nFalsea:")))
    answer = await posted(client, "/api/generate", body | {"system": "be", "think": False, "images": []})
    assert (answer["response"], answer["prompt_eval_count"]) == ("ab", 17)


async def test_a_format_is_a_schema(connect: Connect) -> None:
    served = backend(b"{}")
    client = await connect(served)
    given: list[Any] = []
    sampler = served.sampler
    served.sampler = lambda params, *rest: given.append(params) or sampler(params, *rest)  # type: ignore[method-assign,func-returns-value]
    body: dict[str, Any] = {"messages": HELLO, "stream": False}
    for form in ("json", {"type": "integer"}, ""):
        await posted(client, "/api/chat", body | {"format": form, "options": {"num_predict": -2}})
    assert [each.json_schema for each in given] == ['{"type": "object"}', '{"type": "integer"}', None]
    assert given[0].max_tokens == -1


async def test_errors_are_in_its_own_shape(connect: Connect) -> None:
    client = await connect(backend(b"ab"), api_keys=(b"key",))
    for path in ("/api/chat", "/api/tags", "/api/embed"):
        response = await client.request("GET" if path == "/api/tags" else "POST", path, json={})
        assert (response.status, type((await response.json())["error"])) == (401, str)
    client = await connect(backend(b"ab"))
    bad: list[tuple[str, dict[str, Any], str]] = [
        ("/api/chat", {"messages": HELLO, "n": 2}, "n is 2"),
        ("/api/chat", {"messages": [HELLO[0] | {"images": ["AAAA"]}]}, "--mmproj"),
        ("/api/chat", {"messages": [HELLO[0] | {"images": ["?"]}]}, "base64"),
        ("/api/chat", {"messages": HELLO, "format": "yaml"}, "format"),
        ("/api/chat", {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ("/api/generate", {"prompt": "p", "options": {"temperature": -1}}, "temperature"),
        ("/api/generate", {"prompt": "p", "options": {"top_k": "x"}}, "options.top_k"),
        ("/api/generate", {"prompt": "p", "suffix": "s", "options": {"diversity": 1}}, "a bridge to the suffix"),
        ("/api/embed", {"input": "p"}, "--embeddings"),
    ]
    for path, body, expected in bad:
        answer = await posted(client, path, body, 501 if path == "/api/embed" else 400)
        assert expected in answer["error"]
    for method, path in (("POST", "/api/pull"), ("DELETE", "/api/delete"), ("GET", "/api/chat")):
        response = await client.request(method, path)
        assert path in (await response.json())["error"]
    client = await connect(FakeBackend(chat_template=ChatTemplate(SOURCE), fail_decodes={1, 2}))
    *_, fault, last = await lines(client, "/api/chat", {"messages": HELLO})
    assert "llama_decode" in fault["error"]
    assert last["done_reason"] == "error"


async def test_what_there_is_to_know(connect: Connect) -> None:
    client = await connect(backend(b""))
    (model,) = (await (await client.get("/api/tags")).json())["models"]
    assert (model["name"], model["model"], model["details"]["format"]) == ("fake", "fake", "gguf")
    (model,) = (await (await client.get("/api/ps")).json())["models"]
    assert model["context_length"] == 4096
    assert (await (await client.get("/api/version")).json())["version"].count(".") == 2
    response = await client.post("/api/show", json={"model": "other", "verbose": True})
    shown = await response.json()
    assert (shown["template"], shown["capabilities"]) == (SOURCE, ["completion", "tools", "thinking"])
    assert response.headers["x-srb-ignored"] == "verbose, model"


async def test_embeddings(connect: Connect) -> None:
    client = await connect(FakeBackend(embedder=FakeEmbedder()))
    answer = await posted(client, "/api/embed", {"model": "fake", "input": ["aa", "b"], "embd_normalize": -1})
    assert answer == {"model": "fake", "embeddings": [[194, 2], [98, 1]], "prompt_eval_count": 3}
    answer = await posted(client, "/api/embeddings", {"model": "fake", "prompt": "aa", "embd_normalize": -1})
    assert answer == {"embedding": [194, 2]}
    empty: list[dict[str, Any]] = [{"input": []}, {"input": ""}, {}]
    for none in empty:
        assert (await posted(client, "/api/embed", none))["embeddings"] == []
    assert await posted(client, "/api/embeddings", {"prompt": ""}) == {"embedding": []}
    for path, name in (("/api/embed", "input"), ("/api/embeddings", "prompt")):
        long = {name: "a" * 10_000}
        assert await posted(client, path, long)
        assert "the limit is" in (await posted(client, path, long | {"truncate": False}, 400))["error"]
    assert (await (await client.post("/api/show", json={})).json())["capabilities"] == ["completion", "embedding"]


async def test_what_the_model_can_do(connect: Connect) -> None:
    metadata = {"general.architecture": "llama", "general.file_type": 15, "llama.context_length": 9, "tokens": ["a"]}
    info = replace(
        FakeBackend().model_info,
        architecture="llama",
        n_params=8_030_000_000,
        metadata=metadata,
        n_bytes=9,
        digest="ab" * 32,
        n_bytes_gpu=5,
    )
    client = await connect(backend(b"", model_info=info, media=FakeReader()))
    shown = await posted(client, "/api/show", {"model": "fake"})
    assert "vision" in shown["capabilities"]
    assert shown["details"]["family"] == "llama"
    assert (shown["details"]["parameter_size"], shown["details"]["quantization_level"]) == ("8.0B", "Q4_K_M")
    assert shown["model_info"]["llama.context_length"] == 4096
    assert "tokens" not in shown["model_info"]
    for path in ("/api/tags", "/api/ps"):
        (model,) = (await (await client.get(path)).json())["models"]
        assert (model["details"], model["size"], model["digest"]) == (shown["details"], 9, "ab" * 32)
        assert model.get("size_vram") == (5 if path == "/api/ps" else None)
    (model,) = (await (await client.get("/v1/models")).json())["data"]
    assert (model["max_model_len"], model["meta"]["n_ctx"]) == (4096, 4096)


@pytest.mark.parametrize(("keep_alive", "reason"), [(0, "unload"), ("0s", "unload"), (-1, "load"), ("5m", "load")])
async def test_a_model_is_loaded_and_unloaded_without_a_prompt(keep_alive: Any, reason: str, connect: Connect) -> None:
    client = await connect(backend(b""))
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/api/generate", {}),
        ("/api/chat", {}),
        ("/api/chat", {"messages": []}),
    ]
    for path, more in bodies:
        answer = await posted(client, path, {"model": "fake", "keep_alive": keep_alive} | more)
        assert (answer["done"], answer["done_reason"]) == (True, reason)


async def test_lines_without_text_while_nothing_comes(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "PING_SECONDS", 0.01)
    for path, body in (("/api/generate", {"prompt": "hi"}), ("/api/chat", {"messages": HELLO})):
        gate = Gate(served := backend(b"ab"))
        client = await connect(served)
        response = await client.post(path, json=body)
        ping = json.loads(await response.content.readline())
        assert (ping["model"], ping["done"], text_of(ping)) == ("fake", False, "")
        gate.open()
        rest = [json.loads(line) for line in (await response.text()).splitlines()]
        assert "".join(map(text_of, rest)) == "ab"
        assert rest[-1]["done"]


def text_of(line: dict[str, Any]) -> Any:
    return line["response"] if "response" in line else line["message"]["content"]
