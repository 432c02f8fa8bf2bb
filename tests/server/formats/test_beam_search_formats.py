"""Searches in each format: the best text comes first, and what is known of it is said where there is a place for it."""

from typing import Any

from fake_backend import FakeBackend
from server.conftest import Connect, events_of

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
