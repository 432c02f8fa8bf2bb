"""Send many requests to a running server, cancel two thirds of them, and check every stream.

    python bench/checks/soak.py http://127.0.0.1:9090 --rounds 10 [--everything] [--api-key a,b] [--pause 10]

In each round, requests (--requests) with mixed n, lengths and samplers arrive at random moments. A third is cancelled
with DELETE, and a third by closing the connection. The others must return exactly their tokens. Every stream must have
one `stop` per index and one `done`, and at the end of a round every cell must be free. After each round the program
prints the server's memory. With --everything requests also use all settings that affect sampling, tools, and
images if the server accepts them. A --pause is for a server that sleeps between rounds.
"""

import argparse
import asyncio
import base64
import json
import random
import struct
import sys
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

WORDS = Path(__file__).read_text().split()
SAMPLERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"repeat_penalty": 1.2},
    {"dry_multiplier": 0.8},
    {"mirostat": 2},
    {"logprobs": 3},
    {"grammar": 'root ::= ("a" | "b" | " ")+'},
]
EVERYTHING: list[dict[str, Any]] = [
    {"banned_strings": ["(?i) the", "a", "random"]},
    {"avoid": [], "temperature": 1.5},
    {"diversity": 2, "min_p": 0.1},
    {"distinct": True},
    {"negative_prompt": "It was", "guidance_scale": 1.5},
    {"search": "beam", "beams": 8},
    {"context_shift": True},
    {"return_progress": True, "return_tokens": True, "echo": True},
    {"dry_multiplier": 1, "dry_sequence_breakers": ["\n", "."], "xtc_probability": 0.5, "adaptive_target": 0.3},
    {"detach": True},
    {"cache_prompt": False},
]
"""Further settings of requests whose texts have all their tokens."""

ENDING: list[dict[str, Any]] = [
    {"regex": "[a-z ]{10,60}"},
    {"json_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    {"grammar": '%llguidance {}\nstart: ("yes" | "no") /[a-z]*/'},
    {"stop": ["e", "\n"]},
    {"tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]},
]
"""Settings that let a text end by itself."""


def picture(rng: random.Random) -> str:
    """Return the data URL of one of twenty images."""
    color = bytes(random.Random(rng.randrange(20)).randrange(256) for _ in range(3))

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    size, pixels = struct.pack(">IIBBBBB", 30, 30, 8, 2, 0, 0, 0), zlib.compress((b"\0" + color * 30) * 30)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode()


async def events_of(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """Yield the native events of a stream."""
    async for line in response.content:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


class Soak:
    """One round."""

    def __init__(self, session: aiohttp.ClientSession, rng: random.Random, options: argparse.Namespace) -> None:
        self.session = session
        self.rng = rng
        self.options = options
        self.seconds: float = options.seconds
        self.ends: Counter[str] = Counter()
        self.faults: list[str] = []

    async def request(self, number: int) -> None:
        """Send one request. It survives, is cancelled, or its reader leaves."""
        rng = self.rng
        fate = ("survives", "is cancelled", "leaves")[number % 3]
        start = rng.choice([0, 0, 20])
        body: dict[str, Any] = {
            "prompt": " ".join(WORDS[start : start + rng.choice([1, 30, 80, 150])]),
            "n": rng.choice([1, 1, 2, 4, 8]),
            "max_tokens": rng.choice([1, 8, 24, 60]),
            "ignore_eos": True,
            "seed": number,
            **rng.choice(SAMPLERS),
        }
        path = "/v1/completions"
        if self.options.everything:
            path = self.add_everything(body)
        headers = {"Authorization": f"Bearer {rng.choice(self.options.api_key.split(','))}"}
        await asyncio.sleep(rng.uniform(0, self.seconds))
        patience = rng.uniform(0, self.seconds)
        async with self.session.post(path, json=body, headers=headers) as response:
            if response.status != 200:
                self.faults.append(f"{response.status}: {await response.text()}")
                return
            ending = asyncio.ensure_future(self.cancel(response, headers, patience)) if fate == "is cancelled" else None
            try:
                async with asyncio.timeout(patience if fate == "leaves" else None):
                    self.check(body, fate, [event async for event in events_of(response)])
            except TimeoutError:
                self.ends["left"] += 1
            if ending:
                await ending

    def add_everything(self, body: dict[str, Any]) -> str:
        """Add further settings at random, and return the route that accepts them."""
        rng, grammar = self.rng, body.get("grammar")
        if rng.random() < 0.3 and not grammar:
            body |= rng.choice(ENDING) | {"ignore_eos": False}
        if rng.random() < 0.7:
            body |= rng.choice(EVERYTHING)
        if "search" in body or "context_shift" in body:  # some of the other settings can't be combined with these
            for name in body.keys() - {"prompt", "n", "max_tokens", "seed", "search", "beams", "context_shift"}:
                del body[name]
            body["ignore_eos"] = True
        if "tools" not in body and rng.random() > 0.3:
            return "/v1/completions"
        text: str = body.pop("prompt")
        content: list[dict[str, Any]] = []
        if self.options.images and rng.random() < 0.6 and "context_shift" not in body and not body.get("echo"):
            content = [{"type": "image_url", "image_url": {"url": picture(rng)}}]
        body |= {
            "messages": [{"role": "user", "content": [*content, {"type": "text", "text": text}]}],
            "stream": "events",
        }
        body.pop("echo", None)
        return "/v1/chat/completions"

    async def cancel(self, response: aiohttp.ClientResponse, headers: dict[str, str], patience: float) -> None:
        """Cancel the request after a while."""
        await asyncio.sleep(patience)
        path = f"/v1/completions/{response.headers['X-Request-Id']}"
        async with self.session.delete(path, headers=headers) as deleted:
            if deleted.status not in (204, 404):
                self.faults.append(f"DELETE: {deleted.status}")

    def check(self, body: dict[str, Any], fate: str, events: list[dict[str, Any]]) -> None:
        """Check a whole stream."""
        stops = {event["index"]: event for event in events if event["event"] == "stop"}
        names = Counter(event["event"] for event in events)
        self.ends.update(stop["finish_reason"] for stop in stops.values())
        if sorted(stops) != list(range(body["n"])) or names["stop"] != body["n"]:
            self.faults.append(f"stops of {sorted(stops)} for n = {body['n']}")
        if names["done"] != 1 or events[-1]["event"] != "done" or names["error"]:
            self.faults.append(f"{names} for {body}")
        lengths = {stop["length"] for stop in stops.values() if stop["finish_reason"] != "abort"}
        wrong = lengths - {body["max_tokens"]} if body["ignore_eos"] else max(lengths, default=0) > body["max_tokens"]
        if wrong or (fate == "survives" and not lengths):
            self.faults.append(f"lengths {lengths} for {body}")


async def run(options: argparse.Namespace) -> list[str]:
    """Run the rounds. Return the failures."""
    faults: list[str] = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(options.url, connector=connector) as session:
        session.headers["Authorization"] = f"Bearer {options.api_key.split(',')[0]}"
        options.images = "multimodal" in await (await session.get("/v1/models")).text()
        for number in range(options.rounds):
            began = time.perf_counter()
            soak = Soak(session, random.Random(options.seed + number), options)
            await asyncio.gather(*(soak.request(k) for k in range(options.requests)))
            while (health := await (await session.get("/health")).json())["cells"] or health["sequences"]:
                if time.perf_counter() - began > 600:
                    soak.faults.append(f"still held: {health['cells']} cells, {health['sequences']} sequences")
                    break
                await asyncio.sleep(0.05)
            took = time.perf_counter() - began
            memory = f"{await resident(session)} MiB, {health['retained_bytes'] >> 20} of these retained"
            print(f"round {number}: {took:.1f} s, {dict(soak.ends)}, {memory}", flush=True)
            faults += soak.faults
            await asyncio.sleep(options.pause)
    return faults


async def resident(session: aiohttp.ClientSession) -> int:
    """Return the server's memory, in MiB, or 0 if the system doesn't report it."""
    async with session.get("/metrics") as response:
        lines = (line.split() for line in (await response.text()).splitlines())
        return next((int(float(line[1])) >> 20 for line in lines if line[0] == "process_resident_memory_bytes"), 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20, help="within which the requests come")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0, help="seconds after each round")
    parser.add_argument("--everything", action="store_true")
    parser.add_argument("--api-key", default="none", help="keys, with commas between")
    options = parser.parse_args()
    faults = asyncio.run(run(options))
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
