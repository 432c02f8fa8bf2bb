"""OpenAI's format of /v1/completions, on the fake backend."""

import json
from typing import Any

import pytest
from aiohttp import ClientTimeout
from fake_backend import END, FakeBackend, Gate, babble, says, score
from server.conftest import Connect, refused
from waiting import until

from srb.engine.engine import Engine
from srb.engine.events import DoneEvent, StopEvent, Timings, Usage
from srb.server.http.exchange import ENGINE
from srb.wire.answer import Response
from srb.wire.openai.completions import Completion


async def chunks(connect: Connect, backend: FakeBackend, **body: Any) -> list[Any]:
    client = await connect(backend)
    response = await client.post("/v1/completions", json={"prompt": "p", "stream": True, "seed": 0} | body)
    assert response.status == 200, await response.text()
    lines = (await response.text()).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


async def completion(connect: Connect, backend: FakeBackend, status: int = 200, **body: Any) -> dict[str, Any]:
    client = await connect(backend)
    response = await client.post("/v1/completions", json={"prompt": "p", "model": "fake", "seed": 0} | body)
    result: dict[str, Any] = await response.json()
    assert response.status == status, result
    return result


async def test_openais_address_and_openais_default_format_need_neither_model_nor_stream(connect: Connect) -> None:
    body = {"prompt": "p", "seed": 0, "max_tokens": 1}
    address, default = await connect(FakeBackend()), await connect(FakeBackend(), openai=True)
    for client, path in ((address, "/openai/v1/completions"), (default, "/v1/completions")):
        for slash in ("", "/"):
            reply = await (await client.post(path + slash, json=body)).json()
            assert (reply["object"], len(reply["choices"])) == ("text_completion", 1)
        events = await (await client.post(path, json=body | {"stream": "events"})).text()
        assert events.startswith('id: 1\ndata: {"event": "start", "count": 4,')
    assert (await (await address.post("/v1/completions", json=body)).text()).startswith(
        'id: 1\ndata: {"event": "start"'
    )
    for name in ("/models/fake", "/models/fake/"):
        assert await (await address.get(f"/openai/v1{name}")).json() == await (await address.get(f"/v1{name}")).json()
    for path in ("/models", "/models/"):
        assert (await (await address.get(f"/openai/v1{path}")).json())["data"][0]["id"] == "fake"
    reply = await (await address.post("/openai/v1/chat/completions", json={})).json()
    assert reply["error"]["param"] == "messages"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("text", "body", "offsets"),
    [
        ("1\n2", {"stop": ["\nX"]}, [0, 1, 2, 3]),
        ("1\n2", {"stop": ["\nX"], "echo": True}, [0, 1, 2, 3, 4]),
        ("aXXXXb", {"stop": ["XXXXX"]}, [0, 1, 2, 3, 4, 5, 6]),
        ("aXéXb", {"stop": ["XéXX"]}, [0, 1, 2, 2, 3, 4, 5]),
        ("a\n\nb", {"stop": ["\n\n"], "include_stop_str_in_output": True}, [0, 1, 2]),
        ("a\n\nb", {"stop": ["\n\n"]}, [0]),
        ("a\n", {"stop": ["\n\n"]}, [0, 1, 2]),
    ],
)
async def test_offsets_are_those_of_the_tokens_also_where_text_waits(
    connect: Connect, stream: bool, text: str, body: dict[str, Any], offsets: list[int]
) -> None:
    backend = FakeBackend(script=says(text.encode()))
    body = {"prompt": "p", "logprobs": 0, **body}
    if stream:
        found = [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in await chunks(connect, backend, **body)]
        assert [offset for part in found for offset in part] == offsets
    else:
        assert (await completion(connect, backend, **body))["choices"][0]["logprobs"]["text_offset"] == offsets


async def test_the_best_of_several_prompts_have_their_ids(connect: Connect) -> None:
    body: dict[str, Any] = {"prompt": ["one", "two!"], "n": 2, "best_of": 3, "return_token_ids": True, "max_tokens": 4}
    body["prompt_logprobs"] = 0
    choices = (await completion(connect, FakeBackend(script=babble), **body))["choices"]
    assert [bytes(choice["prompt_token_ids"]) for choice in choices] == [b"one", b"one", b"two!", b"two!"]
    for choice in choices:
        asked = [next(iter(each.values()))["decoded_token"] for each in choice["prompt_logprobs"][1:]]
        assert "".join(asked) == bytes(choice["prompt_token_ids"][1:]).decode()
        shown = bytes(choice["token_ids"]).decode(errors="replace")
        assert shown.rstrip("\ufffd") == choice["text"].rstrip("\ufffd") != ""


def test_placeholders_of_images_have_no_ids() -> None:
    form = Completion(head={}, per_prompt=1, n=1, prompts=((5, -7, -8, 6),))
    done = DoneEvent("cmpl-1", 1, Usage(4, 0, 0), Timings(0, 4, 0, 0, 0))
    reply = Response(form).object([StopEvent("cmpl-1", 0, 0, "length", None), done])
    assert reply["choices"][0]["prompt_token_ids"] == [5, -1, -1, 6]


async def test_token_ids_of_a_healed_echo_are_refused(connect: Connect) -> None:
    body = {"prompt": "a ", "model": "fake", "return_token_ids": True, "heal": True, "echo": True}
    await refused(await connect(FakeBackend()), "/v1/completions", body, "heal")


async def test_prompt_logprobs_are_evaluated_once_and_bounded(connect: Connect) -> None:
    backend = FakeBackend(n_cells=4000)
    client = await connect(backend)
    asked = {"prompt": "x" * 100, "n": 8, "prompt_logprobs": 1, "max_tokens": 1, "model": "fake"}
    await (await client.post("/v1/completions", json=asked)).json()
    assert backend.rows == 100
    many = asked | {"prompt": ["x" * 2000], "prompt_logprobs": 100}
    await refused(client, "/v1/completions", many, "prompt_logprobs", "makes 202000 log-probabilities")
    await refused(client, "/v1/completions", asked | {"prompt_logprobs": 101}, "prompt_logprobs", "from 0 to 100")


async def test_texts_that_are_scored_share_their_beginnings(connect: Connect) -> None:
    backend = FakeBackend(n_cells=1000)
    client = await connect(backend, make=lambda backend: Engine(backend, cache_bytes=100_000))
    context = b"What comes behind a long context? "
    prompts = [list(context + end) for end in (b"this", b"that", b"something else")]
    body = {"prompt": prompts, "model": "lm-eval", "echo": True, "logprobs": 1, "max_tokens": 1, "seed": 1234}
    first, again = [await (await client.post("/v1/completions", json=body)).json() for _ in range(2)]
    assert first["choices"] == again["choices"]
    for choice, ids in zip(first["choices"], prompts, strict=True):
        expected = [None, *(round(score(tuple(ids[:i]), ids[i]), 6) for i in range(1, len(ids)))]
        assert choice["logprobs"]["token_logprobs"][:-1] == expected
        assert choice["logprobs"]["text_offset"] == list(range(len(ids) + 1))
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 2 * len(context + b"t") - 2
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == sum(map(len, prompts))


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("text", "last"), [(b"", "<END>"), (b"\xc3", "bytes:\\xc3")])
async def test_a_scored_text_has_all_its_tokens(connect: Connect, stream: bool, text: bytes, last: str) -> None:
    """lm-eval takes the last one off, whatever it is: the end token, or half a character."""
    backend = FakeBackend(script=says(text))
    body: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 1}
    if stream:
        all_logprobs = [chunk["choices"][0]["logprobs"] for chunk in await chunks(connect, backend, **body)]
    else:
        all_logprobs = [(await completion(connect, backend, **body))["choices"][0]["logprobs"]]
    assert [token for logprobs in all_logprobs for token in logprobs["tokens"]] == ["p", last]
    assert [offset for logprobs in all_logprobs for offset in logprobs["text_offset"]] == [0, 1]


async def test_best_of_returns_the_likeliest(connect: Connect) -> None:
    texts = [b"a", b"b", b"c", b"d"]
    likeliest = sorted(texts, key=lambda t: -(score((112,), t[0]) + score((112, t[0]), END)))
    for prompt in ("p", ["p", "p"]):
        reply = await completion(connect, FakeBackend(script=says(*texts)), prompt=prompt, n=2, best_of=4)
        expected = [text.decode() for text in likeliest[:2]] * (1 if prompt == "p" else 2)
        assert [choice["text"] for choice in reply["choices"]] == expected
        assert [choice["index"] for choice in reply["choices"]] == list(range(len(expected)))
        assert all(choice["logprobs"] is None for choice in reply["choices"])
        assert reply["usage"]["completion_tokens"] == 8 * len(expected) // 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"best_of": 5, "n": 4, "stream": True}, "best_of (5) can't be more than n (4) in a stream"),
        ({"best_of": 1, "n": 2}, "best_of must be at least n (2), got 1"),
        ({"best_of": 9}, "best_of must be at most 8 (--max-n), got 9"),
        ({"best_of": 3, "branches": [{}, {}]}, "exclude each other"),
        ({"best_of": 4, "prompt": ["p"] * 3}, "3 prompts with n = 4 make 12"),
    ],
)
async def test_best_of_has_limits(connect: Connect, body: dict[str, Any], message: str) -> None:
    reply = await completion(connect, FakeBackend(), 400, **body)
    assert message in reply["error"]["message"]


async def test_fields_without_effect_are_named_in_a_header(connect: Connect) -> None:
    client = await connect(FakeBackend(script=says(b"a")))
    for stream in (True, False):
        body = {"prompt": "p", "stream": stream, "user": "me", "top\r\nä": 1, "model": "gpt"}
        response = await client.post("/v1/completions/", json=body)
        assert response.headers["x-srb-ignored"] == "user, top\\r\\n\\xe4, model"


async def test_a_client_that_leaves_ends_its_request(connect: Connect) -> None:
    gate = Gate(backend := FakeBackend(n_cells=10_000))
    client = await connect(backend)
    with pytest.raises(TimeoutError):
        await client.post(
            "/v1/completions",
            json={"prompt": "p", "model": "m", "max_tokens": 9_000, "ignore_eos": True},
            timeout=ClientTimeout(total=0.05),
        )
    gate.open()
    engine = client.app[ENGINE]
    await until(lambda: not engine.requests and not backend.open_samplers)
    health = await (await client.get("/health")).json()
    assert health["tokens_generated"] < 9_000
