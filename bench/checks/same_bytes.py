"""Asks a server with `--reproducible` for the same answer, again and again beside random traffic; compares the bytes.

usage: python bench/checks/same_bytes.py [--times 200] [OPTION of srb serve ...]

The answer is that of a request with n = 3 and log-probabilities. First it is asked for alone. Then up to 31 others run
beside it: short and long prompts, which often begin as this one does, all kinds of settings, and every third of them is
cancelled. Each 20 times the server is killed with SIGKILL; the next one has its `--cache-disk`. All answers must be
equal but for times, ids and how many tokens were known already.
"""

import argparse
import asyncio
import hashlib
import json
import random
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from typing import Any

import aiohttp

TEXT = "The old lighthouse keeper said that nobody had seen the ship for many years, but he still lit the lamp. "
BODY: dict[str, Any] = {"prompt": TEXT * 4, "n": 3, "seed": 7, "max_tokens": 40, "logprobs": 5, "ignore_eos": True}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"repeat_penalty": 1.3, "dry_multiplier": 0.8},
    {"banned_strings": ["the", "ship"]},
    {"json_schema": {"type": "array", "items": {"type": "integer"}}, "ignore_eos": False},
    {"search": "beam", "ignore_eos": False},
    {"echo": True, "logprobs": 1},
]
OPTIONS = [
    "--reproducible",
    "--parallel",
    "32",
    "--ctx-size",
    "32768",
    "--port",
    "0",
    "--no-tune",
    "--log-level",
    "error",
]


async def answer(session: aiohttp.ClientSession, url: str, *, shares: bool = True) -> str:
    """A hash of the answer: the events of all alternatives, in their order. shares: see `cache_prompt`."""
    said: list[list[Any]] = [[] for _ in range(BODY["n"])]
    async with session.post(f"{url}/v1/completions", json=BODY | {"cache_prompt": shares}) as response:
        async for line in response.content:
            if line.startswith(b"data: ") and "index" in (event := json.loads(line[6:])):
                said[event["index"]].append(event)
    assert all(each and each[-1]["event"] == "stop" for each in said), said
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


async def other(session: aiohttp.ClientSession, url: str, rng: random.Random) -> None:
    """Another request, which may be given up."""
    prompt = TEXT[: rng.randint(1, len(TEXT))] if rng.random() < 0.5 else TEXT * rng.randint(1, 20)
    body = {"prompt": prompt, "n": rng.randint(1, 4), "max_tokens": rng.randint(1, 40), **rng.choice(SETTINGS)}
    with suppress(TimeoutError, aiohttp.ClientError):
        async with (
            asyncio.timeout(rng.uniform(0, 5) if rng.random() < 0.33 else None),
            session.post(f"{url}/v1/completions", json=body) as response,
        ):
            await response.read()


async def ask(url: str, times: int, rng: random.Random) -> list[str]:
    """The answers, each beside others."""
    found = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as session:
        running: set[asyncio.Task[None]] = set()
        for _ in range(times):
            running = {task for task in running if not task.done()}
            running |= {asyncio.create_task(other(session, url, rng)) for _ in range(rng.randint(1, 31) - len(running))}
            await asyncio.sleep(rng.uniform(0, 1))
            found.append(await answer(session, url, shares=rng.random() < 0.5))
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return found


async def alone(url: str) -> str:
    """The answer of a server that has nothing else to do."""
    async with aiohttp.ClientSession() as session:
        return await answer(session, url)


def main() -> None:
    """Prints how many answers there are, and how many different ones. Ends with 1 if there are two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200)
    options, others = parser.parse_known_args()
    rng, first = random.Random(1), ""
    hashes: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        while len(hashes) < options.times:
            command = [sys.executable, "-m", "srb", "serve", *OPTIONS, "--cache-disk", folder, *others]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
                try:
                    assert server.stdout
                    url = next(found[1] for line in server.stdout if (found := re.search(r"is ready at (\S+)", line)))
                    first = first or asyncio.run(alone(url))
                    hashes += asyncio.run(ask(url, min(20, options.times - len(hashes)), rng))
                finally:
                    server.kill()
            print(f"{len(hashes)} answers beside others: {sum(each == first for each in hashes)} as alone", flush=True)
    sys.exit({*hashes} != {first})


if __name__ == "__main__":
    main()
