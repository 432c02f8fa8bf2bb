"""Sends many requests to a running server, cancels two thirds of them, and checks that all get what they asked for.

    python bench/soak.py http://127.0.0.1:9090 --rounds 10

In each round, requests (--requests) with mixed n, lengths and samplers come at random moments. A third is cancelled
with DELETE, and a third by closing the connection. The others must deliver exactly their tokens. Every stream must have
one `stop` per index and one `done`, and at the end of a round every cell must be free. After each round the program
prints the server's memory.
"""

import argparse
import asyncio
import json
import random
import sys
import time
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


async def events_of(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The native events of a stream."""
    async for line in response.content:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


class Soak:
    """One round."""

    def __init__(self, session: aiohttp.ClientSession, rng: random.Random, seconds: float) -> None:
        self.session = session
        self.rng = rng
        self.seconds = seconds
        self.ends: Counter[str] = Counter()
        self.faults: list[str] = []

    async def request(self, number: int) -> None:
        """Sends one request. It survives, is cancelled, or its reader leaves."""
        rng = self.rng
        fate = ("survives", "is cancelled", "leaves")[number % 3]
        start = rng.choice([0, 0, 20])
        body = {
            "prompt": " ".join(WORDS[start : start + rng.choice([1, 30, 80, 150])]),
            "n": rng.choice([1, 1, 2, 4, 8]),
            "max_tokens": rng.choice([1, 8, 24, 60]),
            "ignore_eos": True,
            "seed": number,
            **rng.choice(SAMPLERS),
        }
        await asyncio.sleep(rng.uniform(0, self.seconds))
        patience = rng.uniform(0, self.seconds)
        async with self.session.post("/v1/completions", json=body) as response:
            if response.status != 200:
                self.faults.append(f"{response.status}: {await response.text()}")
                return
            ending = asyncio.ensure_future(self.cancel(response, patience)) if fate == "is cancelled" else None
            try:
                async with asyncio.timeout(patience if fate == "leaves" else None):
                    self.check(body, fate, [event async for event in events_of(response)])
            except TimeoutError:
                self.ends["left"] += 1
            if ending:
                await ending

    async def cancel(self, response: aiohttp.ClientResponse, patience: float) -> None:
        """Ends the request after a while."""
        await asyncio.sleep(patience)
        async with self.session.delete(f"/v1/completions/{response.headers['X-Request-Id']}") as deleted:
            if deleted.status not in (204, 404):
                self.faults.append(f"DELETE: {deleted.status}")

    def check(self, body: dict[str, Any], fate: str, events: list[dict[str, Any]]) -> None:
        """Checks a whole stream."""
        stops = {event["index"]: event for event in events if event["event"] == "stop"}
        names = Counter(event["event"] for event in events)
        self.ends.update(stop["finish_reason"] for stop in stops.values())
        if sorted(stops) != list(range(body["n"])) or names["stop"] != body["n"]:
            self.faults.append(f"stops of {sorted(stops)} for n = {body['n']}")
        if names["done"] != 1 or events[-1]["event"] != "done" or names["error"]:
            self.faults.append(f"{names} for {body}")
        lengths = {stop["length"] for stop in stops.values() if stop["finish_reason"] != "abort"}
        if lengths - {body["max_tokens"]} or (fate == "survives" and not lengths):
            self.faults.append(f"lengths {lengths} for {body}")


async def run(url: str, rounds: int, requests: int, seconds: float, seed: int) -> list[str]:
    """Runs the rounds. Returns what went wrong."""
    faults: list[str] = []
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, connector=connector) as session:
        for number in range(rounds):
            began = time.perf_counter()
            soak = Soak(session, random.Random(seed + number), seconds)
            await asyncio.gather(*(soak.request(k) for k in range(requests)))
            while (health := await (await session.get("/health")).json())["cells"] or health["sequences"]:
                if time.perf_counter() - began > 600:
                    soak.faults.append(f"still held: {health['cells']} cells, {health['sequences']} sequences")
                    break
                await asyncio.sleep(0.05)
            took = time.perf_counter() - began
            memory = f"{await resident(session)} MiB, {health['retained_bytes'] >> 20} of these retained"
            print(f"round {number}: {took:.1f} s, {dict(soak.ends)}, {memory}", flush=True)
            faults += soak.faults
    return faults


async def resident(session: aiohttp.ClientSession) -> int:
    """The server's memory, in MiB; 0 if its system doesn't tell it."""
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
    options = parser.parse_args()
    faults = asyncio.run(run(options.url, options.rounds, options.requests, options.seconds, options.seed))
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
