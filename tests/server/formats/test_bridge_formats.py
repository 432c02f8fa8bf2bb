"""Bridges in each format: the middle that the suffix follows best comes first, and native events say its rank."""

from typing import Any

import pytest
from aiohttp.test_utils import TestClient
from fake_backend import FakeBackend, score
from mixed import ascii_babble
from server.conftest import Connect, events_of, refused

ASCII = [[token, False] for token in range(128, 256)]
BODY: dict[str, Any] = {"prompt": "p", "suffix": "the end", "n": 4, "max_tokens": 12, "logit_bias": ASCII, "seed": 3}


def backend() -> FakeBackend:
    return FakeBackend(n_cells=2000, n_parallel=20, script=ascii_babble)


def likelihood(text: str) -> float:
    tokens = [*f"p{text}the end".encode()]
    return sum(score(tuple(tokens[:k]), tokens[k]) for k in range(len(tokens) - 7, len(tokens)))


async def streamed(client: TestClient[Any, Any], **body: Any) -> list[dict[str, Any]]:
    response = await client.post("/v1/completions", json=BODY | {"stream": "events"} | body)
    assert response.status == 200, await response.text()
    return events_of(await response.text())


def texts_of(events: list[dict[str, Any]]) -> list[str]:
    texts = [""] * events[0]["count"]
    for event in events:
        if event["event"] == "stream":
            texts[event["index"]] += event["text"]
    return texts


@pytest.mark.parametrize("candidates", [4, 9])
async def test_every_format_has_the_same_middles(connect: Connect, candidates: int) -> None:
    client = await connect(backend(), keep_seconds=60, keep_bytes=1 << 20)
    events = await streamed(client, candidates=candidates)
    texts, stops = texts_of(events), {event["index"]: event for event in events if event["event"] == "stop"}
    assert (events[0]["infill"], events[0]["ignored"]) == ("bridge", [])
    assert [stops[k]["suffix_logprob"] for k in range(4)] == pytest.approx([likelihood(text) for text in texts])
    best_first = sorted(texts, key=lambda text: -likelihood(text))
    assert [texts[k] for k in sorted(range(4), key=lambda k: stops[k]["rank"])] == best_first
    assert (texts == best_first) == (candidates == 9)

    stored = await (await client.get(f"/v1/completions/{events[0]['id']}")).json()
    assert [each["rank"] for each in stored["choices"]] == [stops[k]["rank"] for k in range(4)]
    body = BODY | {"candidates": candidates}
    openai = await (await client.post("/v1/completions", json=body | {"stream": False})).json()
    assert [each["text"] for each in openai["choices"]] == best_first
    llama = await (await client.post("/completion", json=body)).json()
    assert [each["content"] for each in llama] == best_first
    infill = BODY | {"input_prefix": "p", "input_suffix": "the end", "candidates": candidates}
    infill = {name: value for name, value in infill.items() if name not in ("prompt", "suffix")}
    llama = await (await client.post("/infill", json=infill)).json()
    assert [each["content"] for each in llama] == best_first


async def test_one_middle_is_the_best_of_eight(connect: Connect) -> None:
    client = await connect(backend())
    texts = texts_of(await streamed(client, n=8, suffix=None))
    best = max(texts, key=likelihood)
    for asked in ({}, {"best_of": 8}, {"candidates": "8"}, {"suffix": [*b"the end"]}):
        body = BODY | {"n": 1, "stream": False} | asked
        answer = await (await client.post("/v1/completions", json=body)).json()
        assert [each["text"] for each in answer["choices"]] == [best]
        assert answer["usage"]["completion_tokens"] == sum(len(text) for text in texts) + sum(
            len(text) < 12 for text in texts
        )
    options = {"num_predict": 12, "seed": 3, "logit_bias": ASCII}
    body = {"prompt": "p", "suffix": "the end", "stream": False, "options": options}
    assert (await (await client.post("/api/generate", json=body)).json())["response"] == best


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({"candidates": 3}, "candidates"),
        ({"candidates": 30}, "candidates"),
        ({"best_of": 2}, "candidates"),
        ({"suffix": [5.5]}, "suffix"),
        ({"suffix": [-1]}, "suffix"),
        ({"stop_at_suffix": "maybe"}, "stop_at_suffix"),
    ],
)
async def test_what_is_refused(connect: Connect, sent: dict[str, Any], param: str) -> None:
    await refused(await connect(backend()), "/v1/completions", BODY | sent, param)
