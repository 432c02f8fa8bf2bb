"""KoboldAI's routes, with what KoboldAI Lite, SillyTavern, Mikupad and koboldapi send. On the fake backend."""

import asyncio
import json
from typing import Any

import pytest
from aiohttp import ClientResponse
from fake_backend import END, FakeBackend, Gate, says
from server.conftest import Connect, posted
from server.formats.test_clients import recorded

LITE = recorded("kobold_lite_kobold")
SILLY_TAVERN = recorded("sillytavern_kobold")


def backend(*texts: bytes, prompt: int = 4, **options: Any) -> FakeBackend:
    return FakeBackend(n_cells=8192, script=says(*texts, prompt=prompt), **options)


async def events(response: ClientResponse) -> list[dict[str, Any]]:
    """The data of a stream's events, each of which is called message."""
    assert response.status == 200, await response.text()
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    *blocks, end = (await response.text()).split("\n\n")
    assert end == ""
    assert all(block.startswith("event: message\ndata: ") for block in blocks)
    return [json.loads(block.partition("data: ")[2]) for block in blocks]


async def test_what_a_client_asks_first(connect: Connect) -> None:
    client = await connect(backend(b""))
    got = {
        "/api/v1/model": {"result": "fake"},
        "/api/v1/info/version": {"result": "1.2.5"},
        "/api/v1/config/max_context_length": {"value": 8192},
        "/api/v1/config/max_length": {"value": 896},
        "/api/extra/true_max_context_length": {"value": 8192},
    }
    for path, expected in got.items():
        assert await (await client.get(path)).json() == expected
    version = await (await client.get("/api/extra/version")).json()
    assert (version["result"], version["vision"], version["protected"]) == ("KoboldCpp", False, False)
    perf = await (await client.get("/api/extra/perf")).json()
    assert (perf["total_gens"], perf["last_token_count"], perf["idle"], perf["queue"]) == (0, 0, 1, 0)


async def test_kobold_lite(connect: Connect) -> None:
    served = backend(b"ab", prompt=9)
    client = await connect(served)
    response = await client.post("/api/extra/generate/stream", json=LITE)
    received = await events(response)
    assert received == [
        {"token": "a", "finish_reason": None},
        {"token": "b", "finish_reason": None},
        {"token": "", "finish_reason": "stop"},
    ]
    ignored = {"top_a", "tfs", "rep_pen_slope", "replace_instruct_placeholders"}
    assert set(response.headers["x-srb-ignored"].split(", ")) == ignored
    perf = await (await client.get("/api/extra/perf")).json()
    assert (perf["total_gens"], perf["last_token_count"], perf["last_input_count"], perf["stop_reason"]) == (1, 3, 9, 1)


async def test_the_logprobs_of_the_last_stream(connect: Connect) -> None:
    client = await connect(backend(b"ab", prompt=9))
    path, key = "/api/extra/last_logprobs", {"genkey": LITE["genkey"]}
    assert await posted(client, path, key) == {"logprobs": None}
    body = LITE | {"logprobs": True, "stop_sequence": []}
    await events(await client.post("/api/extra/generate/stream", json=body))
    shown = (await posted(client, path, key))["logprobs"]
    assert (shown["tokens"], shown["text_offset"]) == (["a", "b"], [0, 1])
    assert len(shown["content"][0]["top_logprobs"]) == 5
    assert shown == (await posted(client, "/api/v1/generate", body))["results"][0]["logprobs"]
    assert await posted(client, path, {"genkey": "KCPP2"}) == {"logprobs": None}
    assert await posted(client, path) == {"logprobs": None}
    await posted(client, "/api/v1/generate", LITE)
    assert await posted(client, path, key) == {"logprobs": None}, "the last one asked for none"


async def test_silly_tavern(connect: Connect) -> None:
    client = await connect(backend(b"ab\nYou: c"))
    assert (await posted(client, "/api/extra/tokencount", {"prompt": "hé"})) == {"value": 3, "ids": [104, 195, 169]}
    result = {"index": 0, "text": "ab\nY", "logprobs": None, "finish_reason": "length", "stop_reason": None}
    answer = await posted(client, "/api/v1/generate", SILLY_TAVERN)
    assert answer == {"results": [result | {"prompt_tokens": 4, "completion_tokens": 4}]}
    (result,) = (await posted(client, "/api/v1/generate", SILLY_TAVERN | {"max_length": 20}))["results"]
    assert (result["text"], result["finish_reason"]) == ("ab", "stop")


@pytest.mark.parametrize("name", ["mikupad_kobold", "koboldapi"])
async def test_the_texts_of_other_clients(connect: Connect, name: str) -> None:
    client, body = await connect(backend(b"ab")), recorded(name)
    received = await events(await client.post("/api/extra/generate/stream", json=body))
    assert "".join(each["token"] for each in received) == "ab"
    answer = await posted(client, "/api/v1/generate", body | {"stream": False, "max_length": 300})
    assert answer["results"][0]["text"] == "ab"
    assert (await posted(client, "/api/extra/abort"))["success"] is False  # Mikupad sends no body
    assert (await posted(client, "/api/extra/tokenize", {"prompt": "ab"}))["ids"] == [97, 98]
    assert (await posted(client, "/api/extra/detokenize", {"ids": [97, 98]}))["result"] == "ab"


async def test_n_results_and_one_in_a_stream(connect: Connect) -> None:
    client = await connect(backend(b"ab", b"c"))
    answer = await posted(client, "/api/v1/generate", {"prompt": "upon", "n": 2, "logprobs": True, "sampler_seed": 0})
    assert [each["text"] for each in answer["results"]] == ["ab", "c"]
    assert [each["completion_tokens"] for each in answer["results"]] == [3, 2]
    assert len(answer["results"][0]["logprobs"]["content"][0]["top_logprobs"]) == 5
    for several in ({"n": 2}, {"branches": [{}, {"top_k": 1}]}, {"directions": ["", "loud"]}):
        response = await client.post(
            "/api/extra/generate/stream", json={"prompt": "upon", "sampler_seed": 0, **several}
        )
        assert "".join(each["token"] for each in await events(response)) == "ab"
        assert response.headers["x-srb-ignored"].startswith(next(iter(several)))


async def test_settings_are_mapped(connect: Connect) -> None:
    served = backend(b"ab")
    client = await connect(served)
    body: dict[str, Any] = {
        **SILLY_TAVERN,
        "typical": 0.9,
        "use_default_badwordsids": True,
        "sampler_order": [0, 6, 5],
        "banned_tokens": ["x", "(?i)yz", "", 7],
        "banned_strings": ["bc"],
        "trim_stop": False,
        "render_special": True,
        "images": ["AAAA"],
    }
    params: list[Any] = []
    sampler = served.sampler

    def spy(given: Any, *rest: Any) -> Any:
        params.append(given)
        return sampler(given, *rest)

    served.sampler = spy  # type: ignore[method-assign, assignment]
    response = await client.post("/api/v1/generate", json=body)
    assert response.status == 200, await response.text()
    (given,) = params
    assert (given.typical_p, given.ignore_eos, given.repeat_penalty, given.repeat_last_n) == (0.9, True, 1.1, 600)
    assert given.samplers == ("dry", "top_n_sigma", "top_k", "penalties", "temperature", "xtc")
    assert given.logit_bias == ((7, -float("inf")),)
    assert given.banned_strings == ("(?i)bc", "(?i)x", "(?i)yz")
    assert given.stop == ("\nYou:",)
    ignored = set(response.headers["x-srb-ignored"].split(", "))
    assert given.include_stop_str_in_output
    assert {"render_special", "images"} <= ignored
    assert "trim_stop" not in ignored
    assert not any(name.startswith("banned") for name in ignored)
    both = {"prompt": "upon", "samplers": ["top_k"], "sampler_order": [6]}
    assert (await client.post("/api/v1/generate", json=both)).headers["x-srb-ignored"] == "sampler_order"


async def test_a_prompt_that_does_not_fit_is_truncated_after_the_memory(connect: Connect) -> None:
    served = FakeBackend(n_cells=64, script=lambda _params, _tokens: END)
    client = await connect(served)
    body: dict[str, Any] = {"memory": "mem:", "prompt": "x" * 90 + "yz", "max_length": 10}
    response = await client.post("/api/v1/generate", json=body)
    (result,) = (await response.json())["results"]
    assert (result["prompt_tokens"], response.headers["x-srb-ignored"]) == (54, "prompt (its first 42 tokens)")
    response = await client.post("/api/v1/generate", json=body | {"max_context_length": 20})
    assert (await response.json())["results"][0]["prompt_tokens"] == 10
    assert response.headers["x-srb-ignored"] == "prompt (its first 86 tokens)"
    (result,) = (await posted(client, "/api/v1/generate", {"prompt": "x" * 90}))["results"]
    assert result["prompt_tokens"] == 32  # half of the context is for what is generated


async def test_check_and_abort_by_genkey(connect: Connect) -> None:
    gate = Gate(served := FakeBackend(n_cells=4096, script=lambda _params, _tokens: 97))
    gate.step(3)
    client = await connect(served)
    body: dict[str, Any] = {"prompt": "upon", "max_length": 2000, "genkey": "KCPP1"}
    running = asyncio.ensure_future(client.post("/api/v1/generate", json=body))
    try:
        async with asyncio.timeout(10):
            while not (await posted(client, "/api/extra/generate/check", {"genkey": "KCPP1"}))["results"][0]["text"]:
                pass
        for other in ({"genkey": "KCPP2"}, {}):
            assert (await posted(client, "/api/extra/generate/check", other))["results"] == [{"text": ""}]
            assert (await posted(client, "/api/extra/abort", other))["success"] is False
        assert await (await client.get("/api/extra/generate/check")).json() == {"results": [{"text": ""}]}
        assert await posted(client, "/api/extra/abort", {"genkey": "KCPP1"}) == {"success": True, "done": True}
    finally:
        gate.open()
    (result,) = (await (await running).json())["results"]
    assert (set(result["text"]), result["finish_reason"]) == ({"a"}, "length")
    assert result["completion_tokens"] < 2000


async def test_without_a_genkey_the_only_one_is_ended_and_of_several_none(connect: Connect) -> None:
    gate = Gate(served := FakeBackend(n_cells=4096, script=lambda _params, _tokens: 97))
    gate.step(3)
    client = await connect(served)
    body: dict[str, Any] = {"prompt": "upon", "max_length": 900}
    try:
        async with (
            client.post("/api/extra/generate/stream", json=body) as first,
            client.post("/api/extra/generate/stream", json=body) as second,
        ):
            assert (await posted(client, "/api/extra/abort"))["success"] is False
            second.close()
            async with asyncio.timeout(10):
                while not (await posted(client, "/api/extra/abort"))["success"]:
                    pass
            gate.open()
            assert (await events(first))[-1] == {"token": "", "finish_reason": "length"}
    finally:
        gate.open()
