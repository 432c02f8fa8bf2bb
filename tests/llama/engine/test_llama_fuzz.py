"""Random bodies from a generator that knows the fields: no 500, no death, and every stream ends as it should.

FUZZ_BODIES=5000 runs more of them than the tests do every time.
"""

import dataclasses
import json
import math
import os
import random
from typing import Any

import pytest
from aiohttp.test_utils import TestClient
from tiny_model import N_VOCAB

from srb.engine.samplers import SAMPLERS
from srb.engine.sampling_params import SamplingParams
from srb.server.app import create_app
from srb.serving.async_engine import AsyncEngine
from srb.wire.limits import Limits

BODIES = int(os.environ.get("FUZZ_BODIES", "1000"))

GRAMMARS = [
    'root ::= "x"',
    "root ::= [a-c]+",
    "root ::= (",
    "",
    'root ::= "x" root',
    "root ::= [^\\x00-\\U0010FFFF]",
    "x",
]
SCHEMAS: list[Any] = [
    {"type": "object"},
    {"type": "integer"},
    {"enum": ["a", 1, None]},
    {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    {"type": "string", "maxLength": 10**12},
    {"$ref": "#/nowhere"},
    [],
    7,
]
JUNK: list[Any] = [
    None,
    True,
    False,
    "",
    "x",
    [],
    {},
    -1,
    0,
    1,
    1e308,
    -1e308,
    10**30,
    10**400,
    "[" * 50_000,
    "1e999",
    [[]],
    {"a": None},
    "\ud800",
]


def number(rng: random.Random, low: float, high: float) -> Any:
    """A number in or near a range, sometimes as a string."""
    is_whole = high > 200 or rng.random() < 0.3
    value: Any = rng.choice([low, high, low - 1, high + 1, rng.uniform(low, min(high, 10)), rng.uniform(low, high)])
    value = math.floor(value) if is_whole else value
    return str(value) if rng.random() < 0.1 else value


def sampling_fields(rng: random.Random) -> dict[str, Any]:
    """Some sampling fields, most of them valid."""
    fields: dict[str, Any] = {}
    numbers = [each for each in dataclasses.fields(SamplingParams) if each.metadata["range"]]
    for each in rng.sample(sorted(numbers, key=lambda number: number.name), rng.randrange(6)):
        fields[each.name] = number(rng, *each.metadata["range"])
    choices: dict[str, list[Any]] = {
        "stop": ["a", ["a", "bc"], ["x" * 999], [""], 5],
        "ignore_eos": [True, False, "true", 7],
        "grammar": GRAMMARS,
        "json_schema": SCHEMAS,
        "response_format": [{"type": "json_object"}, {"type": "text"}, {"type": "json_schema"}, {}],
        "samplers": [list(SAMPLERS), rng.sample(SAMPLERS, 4), [], ["tfs_z"], "top_k"],
        "logit_bias": [{"5": 3, "ab": False}, [[7, -100], [N_VOCAB, 1]], [[t, False] for t in range(N_VOCAB)], [1]],
        "banned_tokens": [["a"], list(range(256)), [-1], "a"],
        "banned_strings": [["a"], "a b", ["(?i)x", "\ud800"], [chr(k) for k in range(256)], ["x" * 201], [5]],
        "avoid": [[], ["a b"], "a", [[65, 66], "b"], [[-1]], [[N_VOCAB]], [5], ["\ud800"]],
        "dry_sequence_breakers": [["\n"], '["a"]', "a,b", []],
        "label": ["a", 5],
    }
    for name, values in choices.items():
        if rng.random() < 0.08:
            fields[name] = rng.choice(values)
    return fields


def body(rng: random.Random) -> dict[str, Any]:
    """A request body."""
    prompts = ["p", "héllo 🙂", ["a", "b"], [1, 2, 3], [[1], [2, 3]], "p" * 200, [], "", [N_VOCAB], 5]
    result = {"prompt": rng.choice(prompts[:6] if rng.random() < 0.85 else prompts), "max_tokens": rng.randrange(6)}
    result |= sampling_fields(rng)
    if rng.random() < 0.6:
        result["n"] = rng.choice([1, 2, 4, 8, 0, 9, "3"])
    if rng.random() < 0.2:
        result["branches"] = [sampling_fields(rng) for _ in range(rng.randrange(4))]
        result.pop("n", None)
    if rng.random() < 0.2:
        result["stream"] = rng.choice([True, False, "events"])
    for name in ("distinct", "echo", "return_tokens", "post_sampling_probs"):
        if rng.random() < 0.2:
            result[name] = rng.choice([True, True, False, "x"])
    for name in ("logprobs", "n_probs", "best_of"):
        if rng.random() < 0.15:
            result[name] = number(rng, 0, 100)
    if rng.random() < 0.15:
        result["search"] = rng.choice(["beam", "beam", "sample", "best"])
    searches: dict[str, list[Any]] = {
        "beams": [4, 8, 9, 0, "5"],
        "length_penalty": [0, -10, 10, 11],
        "early_stopping": [True, "never", "x"],
    }
    for name, values in searches.items():
        if rng.random() < 0.1:
            result[name] = rng.choice(values)
    if rng.random() < 0.1:
        result[rng.choice(sorted(result))] = rng.choice(JUNK)
    return result


async def test_no_body_ends_the_process_or_the_engine(load: Any, aiohttp_client: Any) -> None:
    engine = AsyncEngine(lambda _progress: load(ctx_size=512))
    engine.start()
    await engine.ready()
    client: TestClient[Any, Any] = await aiohttp_client(create_app(engine, Limits("tiny", n=2, max_n=8)))
    rng = random.Random(1)
    statuses = {200: 0, 400: 0}
    for _ in range(BODIES):
        sent = body(rng)
        response = await client.post("/v1/completions", data=json.dumps(sent))
        text = await response.text()
        assert response.status in statuses, f"{response.status} for {sent}: {text}"
        statuses[response.status] += 1
        if response.status == 200 and isinstance(sent.get("stream"), bool):
            assert text.endswith("data: [DONE]\n\n") if sent["stream"] else json.loads(text)["choices"], sent
        elif response.status == 200:
            events = [
                json.loads(line.removeprefix("data: "), parse_constant=pytest.fail)
                for line in text.split("\n")
                if line.startswith("data: ")
            ]
            kinds = [event["event"] for event in events]
            assert (kinds[0], kinds[-1]) == ("start", "done"), sent
            stopped = sorted(event["index"] for event in events if event["event"] == "stop")
            assert stopped == list(range(events[0]["count"])), sent
    assert min(statuses.values()) > BODIES // 12, statuses
    health = engine.health
    assert health.status == "ready"
    assert health.stats is not None
    assert (health.stats.sequences, health.stats.cells) == (0, 0)
    await engine.stop()
