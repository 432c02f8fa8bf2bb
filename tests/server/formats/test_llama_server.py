"""llama-server's routes, over HTTP, on the fake backend."""

import json
import time
from collections.abc import Iterable
from typing import Any

import pytest
from aiohttp import ClientResponse
from fake_backend import END, ByteTokenizer, FakeBackend, Gate, says
from server.conftest import Connect

from srb.engine.model import SpecialTokens
from srb.llama.model.chat_template import ChatTemplate
from srb.server.app import create_app
from srb.serving.async_engine import AsyncEngine
from srb.wire.limits import Limits

MINIMAL: dict[str, Any] = {"prompt": "p", "seed": 0}


def endless(**options: Any) -> FakeBackend:
    """A model that never ends by itself."""
    return FakeBackend(script=lambda _params, _tokens: 10, **options)


async def post(connect: Connect, backend: FakeBackend, path: str = "/completion", **body: Any) -> ClientResponse:
    client = await connect(backend)
    return await client.post(path, json=body)


async def result(connect: Connect, backend: FakeBackend, path: str = "/completion", **body: Any) -> Any:
    response = await post(connect, backend, path, **MINIMAL | body)
    assert response.status == 200, await response.text()
    return await response.json()


async def error(connect: Connect, backend: FakeBackend, path: str = "/completion", **body: Any) -> tuple[int, Any]:
    response = await post(connect, backend, path, **body)
    answer = await response.json()
    assert set(answer) == {"error"}
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    return response.status, answer["error"]


async def chunks(connect: Connect, backend: FakeBackend, **body: Any) -> list[dict[str, Any]]:
    response = await post(connect, backend, **MINIMAL | {"stream": True} | body)
    assert response.status == 200, await response.text()
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    *lines, end = (await response.text()).split("\n\n")
    assert end == ""
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("path", ["/completion", "/completions"])
async def test_a_result(connect: Connect, path: str) -> None:
    answer = await result(connect, FakeBackend(script=says(b"a\nb")), path, n_predict=9, temperature=0.5)
    settings, timings = answer["generation_settings"], answer["timings"]
    assert (answer["content"], answer["has_new_line"]) == ("a\nb", True)
    assert (settings["n_predict"], settings["max_tokens"], settings["temperature"]) == (9, 9, 0.5)
    assert (settings["seed"], settings["stream"], settings["n_probs"], settings["grammar"]) == (0, False, 0, "")
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (0, 1, 4)
    assert timings["predicted_per_token_ms"] == pytest.approx(timings["predicted_ms"] / 4, abs=0.001)


async def test_how_it_stopped(connect: Connect) -> None:
    backend = FakeBackend(script=says(b"ab##c"))
    word = await result(connect, backend, stop=["##"], return_tokens=True)
    assert (word["content"], word["stop_type"], word["stopping_word"]) == ("ab", "word", "##")
    assert word["tokens"] == list(b"ab##")
    limit = await result(connect, backend, n_predict=2)
    assert (limit["content"], limit["stop_type"], limit["truncated"]) == ("ab", "limit", False)
    assert limit["generation_settings"]["n_predict"] == 2
    full = await result(connect, endless(), prompt="x" * 250)
    assert (full["stop_type"], full["truncated"]) == ("limit", True)
    assert full["generation_settings"]["n_predict"] == -1  # llama-server's default
    shifting = FakeBackend(script=lambda _params, _tokens: 10, shifts=True)
    longer = await result(connect, shifting, prompt="x" * 400, n_predict=300, context_shift=True, n_keep=9)
    assert (longer["truncated"], longer["tokens_predicted"], longer["generation_settings"]["n_keep"]) == (True, 300, 9)
    assert (longer["tokens_evaluated"], longer["tokens_cached"]) == (longer["timings"]["prompt_n"], 0)
    nothing = await result(connect, backend, n_predict=0)
    assert (nothing["content"], nothing["tokens_predicted"], nothing["timings"]["predicted_per_token_ms"]) == ("", 0, 0)


async def test_several_results_are_a_list(connect: Connect) -> None:
    backend = FakeBackend(script=says(b"ab", b"c"))
    several: list[dict[str, Any]] = [{"n": 2}, {"n_cmpl": 2}]
    for body in several:
        answer = await result(connect, backend, **body)
        assert [(each["index"], each["content"]) for each in answer] == [(0, "ab"), (1, "c")]
    prompts = ["p", [112], [112, "p"], {"prompt_string": "p"}]
    answer = await result(connect, FakeBackend(script=says(b"a", b"b")), prompt=prompts, n=2, n_predict=1)
    assert [each["index"] for each in answer] == list(range(8))
    assert [each["prompt"] for each in answer] == ["p", "p", "p", "p", "pp", "pp", "p", "p"]
    assert (await result(connect, backend, prompt=["p"]))["prompt"] == "p"  # one result is no list
    assert (await result(connect, backend, prompt=[112, "q", 114]))["prompt"] == "pqr"


async def test_a_schema_is_shown_as_it_was_sent(connect: Connect) -> None:
    schema = {"type": "string"}
    answer = await result(connect, FakeBackend(script=says(b"a")), json_schema=schema)
    settings = answer["generation_settings"]
    assert (settings["json_schema"], settings["grammar"]) == (schema, "")


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("token", [257, 2**40, -1])
async def test_a_prompt_outside_of_the_vocabulary_is_refused_before_anything_reads_it(
    connect: Connect, stream: bool, token: int
) -> None:
    """llama.cpp would end the process."""

    class Unread(ByteTokenizer):
        def detokenize(self, tokens: Iterable[int]) -> bytes:
            pytest.fail("it was detokenized")

    status, got = await error(connect, FakeBackend(tokenizer=Unread()), prompt=[112, token], stream=stream)
    assert (status, got["param"]) == (400, "prompt")


async def test_response_fields(connect: Connect) -> None:
    fields = ["content", "generation_settings/n_predict", "nothing", "prompt/x", "timings/prompt_n"]
    backend = FakeBackend(script=says(b"a"))
    answer = await result(connect, backend, n_predict=3, response_fields=fields)
    assert answer == {"content": "a", "generation_settings/n_predict": 3, "timings/prompt_n": 1}
    assert len(await result(connect, backend, response_fields=[])) > 10
    received = await chunks(connect, backend, response_fields=["stop"])
    assert received[-1] == {"stop": True}
    assert received[0]["content"] == "a"
    assert [each["content"] for each in await result(connect, backend, n=2, response_fields=["content"])] == ["a", "a"]


async def test_what_has_no_effect_is_in_a_header(connect: Connect) -> None:
    body: dict[str, Any] = {
        "prompt": "p",
        "id_slot": 0,
        "n_keep": 5,
        "best_of": 1,
        "model": "other",
        "return_progress": True,
        "timings_per_token": True,
        "reasoning_format": "none",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"function": {"name": "f"}}],
        "tool_choice": "auto",
        "top_logprobs": 2,
    }
    response = await post(connect, FakeBackend(script=says(b"a")), **body)
    assert {*response.headers["x-srb-ignored"].split(", ")} == body.keys() - {"prompt"}
    assert response.headers["X-Request-Id"].startswith("cmpl-")
    response = await post(connect, FakeBackend(script=says(b"a")), prompt="p", cache_prompt=False, stream=False)
    assert "x-srb-ignored" not in response.headers


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
async def test_a_grammar_that_leaves_no_token_is_the_callers_fault(connect: Connect, path: str) -> None:
    body = {"prompt": "p", "branches": [{"label": "stuck"}], "stream": False}
    status, got = await error(connect, FakeBackend(), path, **body)
    assert (status, got["code"], got["param"], got["type"]) == (400, "no_token", "grammar", "invalid_request_error")


async def test_tokenize_and_detokenize(connect: Connect) -> None:
    async def tokens(**body: Any) -> Any:
        return (await result(connect, FakeBackend(), "/tokenize", prompt=None, seed=None, **body))["tokens"]

    assert await tokens(content="hé") == list("hé".encode())
    assert await tokens(content=["a", 98, "c"]) == [97, 98, 99]
    assert await tokens(content="aé", with_pieces=True, add_special=True) == [
        {"id": 97, "piece": "a"},
        {"id": 195, "piece": [195]},
        {"id": 169, "piece": [169]},
    ]
    assert await tokens(content="x" * 1_000) == [120] * 1_000  # more than the context
    assert await tokens() == await tokens(content=None) == await tokens(content="") == []
    response = await post(connect, FakeBackend(), "/detokenize", tokens=[104, 195, 169, END, 195], top_a=1)
    assert await response.json() == {"content": "hé<END>\ufffd", "prompt": "hé<END>\ufffd"}
    assert response.headers["x-srb-ignored"] == "top_a"
    assert await (await post(connect, FakeBackend(), "/detokenize")).json() == {"content": "", "prompt": ""}


async def test_props(connect: Connect) -> None:
    client = await connect(FakeBackend(chat_template=ChatTemplate("{{ messages }}")))
    props = await (await client.get("/props")).json()
    assert props["default_generation_settings"]["n_ctx"] == 256
    assert props["default_generation_settings"]["params"]["n_predict"] == -1
    assert (props["total_slots"], props["model_alias"], props["chat_template"]) == (8, "fake", "{{ messages }}")
    assert (props["bos_token"], props["eos_token"]) == ("", "<END>")
    assert (props["kv_cache"]["layout"], props["kv_cache"]["preemptions"]) == ("unified", 0)
    assert props["cpu_variant"] == "fake"
    for path in ("/v1/health", "/models"):
        assert (await client.get(path)).status == 200


async def read_until_started(response: ClientResponse) -> None:
    while b'"stop": false' not in await response.content.readline():
        pass


async def test_slots(connect: Connect) -> None:
    gate = Gate(backend := endless(n_parallel=3))
    gate.step(2)
    client = await connect(backend)
    idle = {"n_ctx": 256, "speculative": False, "is_processing": False}
    assert await (await client.get("/slots")).json() == [{"id": number} | idle for number in range(3)]
    body = {"prompt": "secret", "n": 2, "stop": ["secret"], "stream": True, "seed": 5}
    async with client.post("/completion", json=body) as response:
        await read_until_started(response)
        text = await (await client.get("/slots")).text()
        assert "secret" not in text
        first, second, third = json.loads(text)
        assert (first["is_processing"], first["index"], second["index"]) == (True, 0, 1)
        assert (first["request_id"], first["n_prompt_tokens"]) == (response.headers["X-Request-Id"], 6)
        assert (first["params"]["seed"], second["params"]["seed"]) == (5, 6)
        assert third == {"id": 2} | idle
        assert (await client.get("/slots?fail_on_no_slot=1")).status == 200
        await client.delete(f"/v1/completions/{first['request_id']}")
        gate.open()
        *_, last = [line async for line in response.content if line.startswith(b"data: ")]
        assert json.loads(last.removeprefix(b"data: "))["stop_type"] == "none"


async def test_no_slot_is_left(connect: Connect) -> None:
    gate = Gate(backend := endless(n_parallel=1))
    gate.step(2)
    client = await connect(backend)
    async with client.post("/completion", json={"prompt": "p", "stream": True}) as response:
        await read_until_started(response)
        refused = await client.get("/slots?fail_on_no_slot=1")
        assert (refused.status, "Retry-After" in refused.headers) == (503, True)
        gate.open()


async def test_no_slots(aiohttp_client: Any) -> None:
    async with AsyncEngine(lambda _progress: FakeBackend()) as engine:
        client = await aiohttp_client(create_app(engine, Limits("fake", n=4, max_n=8, slots=False)))
        response = await client.get("/slots")
        assert response.status == 501
        assert (await response.json())["error"]["type"] == "not_supported_error"
        assert (await (await client.get("/props")).json())["endpoint_slots"] is False


# Fill-in-the-middle

PRE, SUF, MID, REP, SEP = 1, 2, 3, 4, 5
PLACES: dict[str, Any] = {"input_prefix": "<", "input_suffix": ">", "n_predict": 1, "return_tokens": True}


def fim_backend(n_cells: int = 256, **special: int) -> FakeBackend:
    backend = FakeBackend(n_cells=n_cells)
    special = {"fim_pre": PRE, "fim_suf": SUF, "fim_mid": MID} | special
    backend.tokenizer.special = SpecialTokens(**special)
    return backend


def prompt_of(answer: dict[str, Any]) -> str:
    return "".join("^|$RS"[ord(char) - 1] if ord(char) < 6 else char for char in answer["prompt"])


async def test_infill(connect: Connect) -> None:
    answer = await result(connect, fim_backend(), "/infill", **PLACES | {"prompt": None})
    assert prompt_of(answer) == "^<|>$"
    answer = await result(connect, fim_backend(), "/infill", **PLACES | {"prompt": "x = "})
    assert prompt_of(answer) == "^<x = |>$"
    extra = [{"filename": "f", "text": "F"}, {"text": "G"}]
    answer = await result(connect, fim_backend(), "/infill", **PLACES, input_extra=extra)
    assert prompt_of(answer) == "\n\nF\n\nG^<p|>$"
    backend = fim_backend(fim_rep=REP, fim_sep=SEP)
    answer = await result(connect, backend, "/infill", **PLACES, input_extra=extra)
    assert prompt_of(answer) == "Rrepository\nSf\nFSfile\nGSfile\n^<p|>$"


async def test_too_much_extra_is_cut_at_its_beginning_and_reported(connect: Connect) -> None:
    body: dict[str, Any] = PLACES | {"input_extra": [{"text": "a" * 30 + "b", "time": 5}], "n_predict": 4, "seed": 0}
    body["messages"] = [{"role": "user", "content": "hi"}]
    response = await post(connect, fim_backend(n_cells=20), "/infill", **body)
    answer = await response.json()
    assert prompt_of(answer) == "a" * 10 + "b^<|>$"
    assert response.headers["x-srb-ignored"] == "messages, input_extra.time, input_extra (its first 22 tokens)"


async def test_a_model_without_the_tokens_has_candidates_sampled(connect: Connect) -> None:
    extra = [{"filename": "f", "text": "F"}, {"text": "G"}]
    backend = FakeBackend()
    answer = await result(connect, backend, "/infill", **PLACES | {"prompt": "x = "}, input_extra=extra)
    assert answer["prompt"] == "F\n\nG\n\n<x = "
    assert backend.loads[-1].n_rows == 8


async def test_what_takes_too_long_is_ended(connect: Connect) -> None:
    backend = endless(n_cells=50_000)
    backend.on_decode = lambda: time.sleep(0.002)
    *_, last = await chunks(connect, backend, t_max_predict_ms=1)
    for each in (last, await result(connect, backend, t_max_predict_ms=1)):
        assert (each["stop_type"], each["truncated"]) == ("limit", False)
        assert each["tokens_predicted"] < 40_000


async def test_a_time_limit_may_be_any_number(connect: Connect) -> None:
    answer = await result(connect, FakeBackend(script=says(b"a\n")), t_max_predict_ms=10**400)
    assert (answer["content"], answer["stop_type"]) == ("a\n", "eos")
