"""`srb serve --reproducible`: one answer, however it is asked for. Takes 4 s: the model is a tiny one."""

import json
import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from real_server import Server
from tiny_model import write_tiny_model

N, SEED = 8, 7
STORY = "Once upon a time, there was a little dragon who lived in a castle by the sea. " * 4
LIMITS: dict[str, Any] = {"max_tokens": 24, "ignore_eos": True}
Alternative = list[tuple[str, float]]
"""The tokens of a text, by their names in OpenAI's formats, with their log-probabilities."""


@pytest.fixture
def again(start_server: Callable[..., Server], tmp_path: Path) -> Callable[[], Server]:
    """Starts a server, another time with the same files."""
    model = write_tiny_model(tmp_path / "tiny.gguf")
    options = [
        "-m",
        str(model),
        "--parallel",
        str(2 * N),
        "--ctx-size",
        "16384",
        "--cache-disk",
        str(tmp_path / "kept"),
    ]
    return lambda: start_server("--reproducible", "--log-level", "error", *options)


def named(token: dict[str, Any]) -> tuple[str, float]:
    try:
        name = bytes(token["bytes"]).decode()
    except UnicodeDecodeError:
        name = "bytes:" + "".join(f"\\x{byte:02x}" for byte in token["bytes"])
    return name, token["logprob"]


def natively(server: Server, **body: Any) -> list[Alternative]:
    events = server.events(**{"prompt": STORY, "logprobs": 1, "seed": SEED} | LIMITS | body)
    said: list[Alternative] = [[] for _ in range(events[0]["count"])]
    for event in events:
        if event["event"] == "stream":
            said[event["index"]].append(named(event))
    return said


def answer(server: Server, path: str, **body: Any) -> Any:
    status, text = server.request(path, LIMITS | body)
    assert status == 200, text
    return json.loads(text)


def in_openais_format(server: Server) -> list[Alternative]:
    body = {"prompt": STORY, "n": N, "seed": SEED, "logprobs": 1}
    told = [each["logprobs"] for each in answer(server, "/openai/v1/completions", **body)["choices"]]
    return [list(zip(each["tokens"], each["token_logprobs"], strict=True)) for each in told]


def in_llama_servers_format(server: Server, seed: int) -> Alternative:
    told = answer(server, "/completion", prompt=STORY, seed=seed, n_probs=1)["completion_probabilities"]
    return [named(each) for each in told]


def beside_others(server: Server) -> list[Alternative]:
    """What eight clients get, each for one alternative, while others want something else."""
    rng = random.Random(0)

    def other(number: int) -> list[Alternative]:
        text = STORY[: rng.randint(1, len(STORY))]
        return natively(server, prompt=text, n=rng.randint(1, 4), seed=number, max_tokens=rng.randint(1, 40))

    with ThreadPoolExecutor(N + 4) as clients:
        others = [clients.submit(other, number) for number in range(6)]
        mine = [clients.submit(natively, server, n=1, seed=SEED + k) for k in range(N)]
        assert all(each.result() for each in others)
        return [alternative for each in mine for alternative in each.result()]


def test_an_answer_is_the_same_however_it_is_asked_for(again: Callable[[], Server]) -> None:
    server = again()
    expected = natively(server, n=N)
    assert len({*map(str, expected)}) == N
    assert {len(each) for each in expected} == {LIMITS["max_tokens"]}
    assert [natively(server, n=1, seed=SEED + k) for k in range(N)] == [[each] for each in expected]
    assert beside_others(server) == expected
    assert natively(server, prompt=["The end.", STORY, STORY[:100]], n=N)[N : 2 * N] == expected
    assert in_openais_format(server) == expected
    assert [in_llama_servers_format(server, SEED + k) for k in range(N)] == expected


def test_an_answer_is_the_same_after_a_server_was_killed(again: Callable[[], Server]) -> None:
    server = again()
    expected = natively(server, n=N)
    natively(server, prompt=STORY + "And so on.", n=2)
    server.stop(signal.SIGKILL)
    server = again()
    events = server.events(prompt=STORY, n=1, seed=99, max_tokens=1)
    assert events[0]["cached_tokens"] > 0, "the files of the server that was killed weren't used"
    assert natively(server, n=N) == expected
