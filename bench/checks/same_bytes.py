"""Compare the bytes of a server's answers to one request, with `--reproducible` and random traffic.

usage: python bench/checks/same_bytes.py [--times 200] [--kinds plain | all | NAME,NAME] [--seed 1] [OPTION ...]

The request has n = 3 and log-probabilities. It is sent alone first, then together with 1 to 31 others: prompts of one
word to 900 tokens, which often share its prefix, with all kinds of settings, and embeddings. Every third of them is
cancelled, or loses an alternative. Every 20 times the server is killed with SIGKILL while it writes the answer once
more, detached, and the next server, with the same files, writes the rest. All answers must be equal except for times,
ids and the number of cached tokens.

With --kinds other requests are sent, too, in turn. At the end the program prints, for each kind, how often it was sent
and how often the answer was equal, and the hash of the answer. A later run on this machine with the same options must
have the same hashes. --seed is that of the traffic. OPTION is an option of `srb serve`, in addition to those in
`OPTIONS`.
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
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

TEXT = "The old lighthouse keeper said that nobody had seen the ship for many years, but he still lit the lamp. "
BODY: dict[str, Any] = {"prompt": TEXT * 4, "n": 3, "seed": 7, "max_tokens": 40, "logprobs": 5, "ignore_eos": True}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "greedy": {"temperature": 0},
    "penalties": {"repeat_penalty": 1.3, "dry_multiplier": 0.8},
    "mirostat": {"mirostat": 2},
    "adaptive": {"adaptive_target": 0.3},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    "banned": {"banned_strings": ["the", "ship", " a", "."]},
    "avoid": {"avoid": [TEXT, TEXT[:40]]},
    "healed": {"prompt": TEXT * 4 + "The ke", "heal": True},
    "guided": {"negative_prompt": TEXT + "It rained.", "guidance_scale": 2},
    "json": {"json_schema": {"type": "array", "items": {"type": "integer"}}, "ignore_eos": False},
    "beams": {"search": "beam", "beams": 5, "ignore_eos": False},
    "diversity": {"diversity": 2},
    "distinct": {"distinct": True},
    "scored": {"echo": True, "logprobs": 1},
    "long": {"prompt": TEXT * 38, "max_tokens": 12},
    "chat": {"messages": [{"role": "user", "content": TEXT + "Why?"}], "prompt": None},
    "explored": {"path": "/v1/explore", "prompt": TEXT * 3, "depth": 4, "top_k": 3, "max_nodes": 30},
}
OPTIONS = ["--reproducible", "--parallel", "32", "--ctx-size", "32768", "--embeddings", "--port", "0", "--no-tune"]
_LESS = {"created", "timings", "cached_tokens", "id"}
_PER_SERVER = 20


def request(kind: str, *, shares: bool = True) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a request. shares: its `cache_prompt`."""
    own = KINDS[kind]
    if path := own.get("path"):
        return path, {name: value for name, value in own.items() if name != "path"}
    body = {name: value for name, value in (BODY | own).items() if value is not None}
    if "messages" in body:
        return "/v1/chat/completions", body | {"logprobs": True, "top_logprobs": 3, "stream": "events"}
    return "/v1/completions", body | {"cache_prompt": shares}


class Answer:
    """The answer to a request: a text and its tokens for each alternative."""

    def __init__(self) -> None:
        self.last_id = 0
        self.id = ""
        self.n_events = 0
        self._said: dict[Any, list[Any]] = {}

    def add(self, event: dict[str, Any]) -> None:
        """Take the next event."""
        self.n_events += 1
        if event["event"] == "start":
            self.id = event["id"]
        if event["event"] in ("start", "done"):
            return
        if event["event"] == "error":
            raise RuntimeError(event)
        key = event.pop("index", None)
        own = self._said.setdefault(key, ["", []])
        own[0] += event.pop("text", "") if key is not None else ""
        own[1].append(event)

    def hash(self) -> str:
        """Return a hash of the whole answer."""
        return hashlib.sha256(json.dumps(sorted(self._said.items(), key=str)).encode()).hexdigest()


async def events(response: aiohttp.ClientResponse, answer: Answer) -> AsyncIterator[Answer]:
    """Read an answer, and yield it after each of its events."""
    if response.status != 200:
        raise RuntimeError(await response.text())
    async for line in response.content:
        if line.startswith(b"id: "):
            answer.last_id = int(line[4:])
        elif line.startswith(b"data: "):
            answer.add(json.loads(line[6:]))
            yield answer


async def answer(session: aiohttp.ClientSession, url: str, kind: str, *, shares: bool = True) -> str:
    """Return a hash of an answer."""
    path, body = request(kind, shares=shares)
    said = Answer()
    async with session.post(url + path, json=body) as response:
        async for _ in events(response, said):
            pass
    return said.hash()


async def begin(url: str, kind: str) -> Answer:
    """Return the beginning of an answer that continues without a reader."""
    said = Answer()
    path, body = request(kind)
    async with aiohttp.ClientSession() as session, session.post(url + path, json=body | {"detach": True}) as response:
        async for _ in events(response, said):
            if said.n_events > 25:
                break
    return said


async def end(url: str, said: Answer) -> str:
    """Return a hash of a started answer, including the rest of it."""
    rest = f"{url}/v1/completions/{said.id}/events?starting_after={said.last_id}"
    async with aiohttp.ClientSession() as session, session.get(rest) as response:
        async for _ in events(response, said):
            pass
    return said.hash()


async def other(session: aiohttp.ClientSession, url: str, rng: random.Random) -> None:
    """Send another request, which may be cancelled, or lose its first alternative."""
    body: dict[str, Any]
    path, body = "/v1/embeddings", {"input": TEXT * rng.randint(1, 10)}
    if rng.random() > 0.1:
        path, body = request(rng.choice([*KINDS]))
        if path == "/v1/completions":
            most = rng.choice([1, 1, 1, 8, 8, 38])
            prompt = TEXT * rng.randint(1, most) if most > 1 else TEXT[: rng.randint(1, len(TEXT))]
            body |= {"prompt": prompt, "n": rng.randint(1, 4), "max_tokens": rng.randint(1, 40), "seed": -1}
    until = rng.uniform(0, 5) if rng.random() < 0.33 else None
    with suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(until), session.post(url + path, json=body) as response:
            if until and rng.random() < 0.5:
                name = response.headers.get("X-Request-Id")
                await session.delete(f"{url}/v1/completions/{name}/choices/0")
            await response.read()


async def ask(url: str, kinds: list[str], rng: random.Random) -> list[str]:
    """Return the answers of these kinds, one after another, each with other requests running."""
    found = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=900)) as session:
        running: set[asyncio.Task[None]] = set()
        for kind in kinds:
            running = {task for task in running if not task.done()}
            running |= {asyncio.create_task(other(session, url, rng)) for _ in range(rng.randint(1, 31) - len(running))}
            await asyncio.sleep(rng.uniform(0, 1))
            found.append(await answer(session, url, kind, shares=rng.random() < 0.5))
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    return found


async def alone(url: str, kinds: list[str]) -> dict[str, str]:
    """Return the answers of a server without other work."""
    async with aiohttp.ClientSession() as session:
        return {kind: await answer(session, url, kind, shares=False) for kind in kinds}


class Servers:
    """Servers that run one after another on the same files."""

    def __init__(self, folder: Path, options: list[str]) -> None:
        files = ["--cache-disk", str(folder / "kept"), "--history", str(folder / "history"), "--log-level", "error"]
        self._command = [sys.executable, "-m", "srb", "serve", *OPTIONS, *files, *options]
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self) -> None:
        """Kill the last server, and start another one."""
        self.kill()
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout
        self.url = next(found[1] for line in self._process.stdout if (found := re.search(r"is ready at (\S+)", line)))

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        if self._process:
            self._process.kill()
            self._process.communicate()


def compare(servers: Servers, kinds: list[str], times: int, seed: int) -> bool:
    """Print how many answers of each kind equal those of an idle server. Return whether all do."""
    rng = random.Random(seed)
    servers.start()
    expected = asyncio.run(alone(servers.url, kinds))
    asked, same = Counter[str](), Counter[str]()

    def note(kind: str, found: str) -> None:
        asked[kind] += 1
        same[kind] += found == expected[kind]

    while (done := asked.total()) < times:
        now = [kinds[k % len(kinds)] for k in range(done, min(done + _PER_SERVER, times) - 1)]
        for kind, found in zip(now, asyncio.run(ask(servers.url, now, rng)), strict=True):
            note(kind, found)
        begun = asyncio.run(begin(servers.url, kinds[0]))
        servers.start()
        note(kinds[0], asyncio.run(end(servers.url, begun)))
        print(f"{asked.total()} answers beside others: {same.total()} as alone", flush=True)
    for kind in asked:
        print(f"{kind}: {asked[kind]} answers, {same[kind]} with the hash {expected[kind][:16]}")
    return asked == same


def main() -> None:
    """Exit with 1 if an answer differs from that of an idle server."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--kinds", default="plain")
    parser.add_argument("--seed", type=int, default=1)
    options, others = parser.parse_known_args()
    kinds = [*KINDS] if options.kinds == "all" else options.kinds.split(",")
    with tempfile.TemporaryDirectory() as folder:
        servers = Servers(Path(folder), others)
        try:
            sys.exit(not compare(servers, kinds, options.times, options.seed))
        finally:
            servers.kill()


if __name__ == "__main__":
    main()
