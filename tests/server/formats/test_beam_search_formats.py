"""Searches in each format: the best text comes first, and what is known of it is said where there is a place for it."""

from typing import Any

from fake_backend import FakeBackend
from server.conftest import Connect, events_of, refused

BODY: dict[str, Any] = {
    "prompt": "p",
    "search": "beam",
    "beams": 6,
    "n": 3,
    "max_tokens": 5,
    "logit_bias": [[token, False] for token in range(256) if token not in b"abc"],
}


async def test_every_format_has_the_same_texts(connect: Connect) -> None:
    client = await connect(FakeBackend(), keep_seconds=60, keep_bytes=1 << 20)
    events = events_of(await (await client.post("/v1/completions", json=BODY | {"temperature": 1})).text())
    texts = ["", "", ""]
    for event in events:
        if event["event"] == "stream":
            texts[event["index"]] += event["text"]
    stops = [event for event in events if event["event"] == "stop"]
    scores = [stop["logprob"] / stop["length"] for stop in stops]
    assert len(set(texts)) == 3
    assert [stop["index"] for stop in stops] == [0, 1, 2]
    assert scores == sorted(scores, reverse=True)
    assert events[0]["ignored"] == ["temperature"]

    stored = await (await client.get(f"/v1/completions/{events[0]['id']}")).json()
    assert [(each["text"], each["logprob"]) for each in stored["choices"]] == [
        (text, stop["logprob"]) for text, stop in zip(texts, stops, strict=True)
    ]
    openai = await (await client.post("/v1/completions", json=BODY | {"stream": False})).json()
    assert [each["text"] for each in openai["choices"]] == texts
    llama = await (await client.post("/completion", json=BODY)).json()
    assert [each["content"] for each in llama] == texts


async def test_a_search_that_there_is_not_samples_and_says_so(connect: Connect) -> None:
    client = await connect(FakeBackend())
    body = {name: value for name, value in BODY.items() if name != "search"} | {"model": "fake", "seed": 1}
    plain = await (await client.post("/v1/completions", json=body)).json()
    response = await client.post("/v1/completions", json=body | {"search": "best"})
    assert response.status == 200
    assert (await response.json())["choices"] == plain["choices"]
    assert response.headers["x-srb-ignored"].split(", ") == ["beams", "search"]


async def test_more_beams_than_there_is_room_for_are_refused(connect: Connect) -> None:
    client = await connect(FakeBackend(n_parallel=4))
    for sent, param in (({"beams": 5}, "beams"), ({"beams": 4, "max_tokens": 200}, "max_tokens")):
        await refused(client, "/v1/completions", BODY | sent, param)
