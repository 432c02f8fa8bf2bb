"""Alternatives that are drawn ahead, in each format, with a history, and for each key."""

import json
from pathlib import Path
from typing import Any

from fake_backend import FakeBackend
from mixed import ascii_babble
from server.conftest import Client, Connect, events_of
from waiting import until

from srb.history.history import History
from srb.server.http.exchange import ENGINE

ASCII = [[token, False] for token in range(128, 256)]
BODY: dict[str, Any] = {"prompt": "p", "n": 1, "max_tokens": 12, "logit_bias": ASCII, "ahead": 2, "ignore_eos": True}
NATIVE = BODY | {"stream": "events"}


def backend() -> FakeBackend:
    return FakeBackend(n_cells=2000, script=ascii_babble)


async def idle(client: Client, fake: FakeBackend) -> int:
    """Waits until all is drawn ahead; returns how many decodes that took, with all before."""
    assert client.app
    ahead = client.app[ENGINE].prefetcher
    await until(lambda: not ahead.is_running and fake.cells == 0)
    return fake.decodes


async def asked(client: Client, path: str = "/v1/completions", headers: Any = None, **body: Any) -> str:
    response = await client.post(path, json=body, headers=headers)
    assert response.status == 200, await response.text()
    return await response.text()


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event["text"] for event in events if event["event"] == "stream")


async def test_native_events_of_the_next_one(connect: Connect, tmp_path: Path) -> None:
    with History(tmp_path / "history.db") as history:
        client = await connect(fake := backend(), history=history, keep_seconds=60, keep_bytes=1 << 20)
        first = events_of(await asked(client, **NATIVE))
        n = await idle(client, fake)
        events = events_of(await asked(client, **NATIVE | {"ahead": 0}))  # after this nothing further is drawn
        assert fake.decodes == n
        (seed,) = events[0]["seeds"]
        assert seed == (first[0]["seeds"][0] + 1) % 2**32
        assert [events[0]["ignored"], events[0]["cached_tokens"]] == [[], 1]
        stop, done = events[-2:]
        assert done["usage"] == {
            "prompt_tokens": 1,
            "completion_tokens": stop["length"],
            "total_tokens": 1 + stop["length"],
            "cached_tokens": 1,
        }
        assert (done["timings"]["predicted_n"], done["timings"]["predicted_ms"]) == (stop["length"], 0)
        again = events_of(await asked(client, **NATIVE | {"seed": seed, "ahead": 0}))
        assert text_of(again) == text_of(events)
        stored = await (await client.get(f"/v1/completions/{events[0]['id']}")).json()
        assert [(each["seed"], each["text"]) for each in stored["choices"]] == [(seed, text_of(events))]
        listed = await (await client.get("/v1/history")).json()
        assert {each["id"] for each in listed["data"]} == {each[0]["id"] for each in (first, events, again)}


async def test_a_request_that_is_refused_takes_nothing(connect: Connect) -> None:
    client = await connect(fake := backend(), keep_seconds=60, keep_bytes=1 << 20)
    first = events_of(await asked(client, **NATIVE))
    n = await idle(client, fake)
    assert client.app
    engine = client.app[ENGINE]
    most, engine.max_queue = engine.max_queue, 0
    assert (await client.post("/v1/completions", json=NATIVE)).status == 429
    engine.max_queue = most
    events = events_of(await asked(client, **NATIVE | {"ahead": 0}))
    assert (events[0]["seeds"], fake.decodes) == ([(first[0]["seeds"][0] + 1) % 2**32], n)


async def test_the_seed_that_is_shown_is_that_of_the_text(connect: Connect) -> None:
    client = await connect(fake := backend())
    results = []
    for stream in (False, False, True, True):
        text = await asked(client, "/completion", **BODY | {"stream": stream})
        results.append(events_of(text)[-1] if stream else json.loads(text))
        await idle(client, fake)
    seeds = [each["generation_settings"]["seed"] for each in results]
    assert [seeds[1], seeds[3]] == [(seeds[0] + 1) % 2**32, (seeds[2] + 1) % 2**32]


async def test_each_key_has_its_own(connect: Connect) -> None:
    client = await connect(fake := backend(), api_keys=(b"one", b"other"), shares_prompts=True)
    one, other = ({"Authorization": f"Bearer {key}"} for key in ("one", "other"))
    first = events_of(await asked(client, headers=one, **NATIVE | {"seed": 5}))
    n = await idle(client, fake)
    await asked(client, headers=other, **NATIVE)
    assert await idle(client, fake) > n
    events = events_of(await asked(client, headers=one, **NATIVE))
    assert events[0]["seeds"] == [6]
    assert first[0]["seeds"] == [5]


async def test_it_is_counted_apart(connect: Connect) -> None:
    client = await connect(fake := backend())
    length = events_of(await asked(client, **NATIVE))[-2]["length"]
    await idle(client, fake)
    sampled = events_of(await asked(client, **NATIVE | {"ahead": 0}))[-2]["length"]
    await idle(client, fake)
    got = await (await client.get("/metrics")).text()
    numbers = dict(line.rsplit(" ", 1) for line in got.splitlines() if not line.startswith("#"))
    assert float(numbers["srb:ahead_taken_total"]) == 1
    assert float(numbers["srb:ahead_tokens_total"]) >= sampled
    ahead = float(numbers["srb:ahead_tokens_total"])
    assert float(numbers["llamacpp:tokens_predicted_total"]) == length + ahead
    assert numbers["llamacpp:requests_processing"] == "0.0"
