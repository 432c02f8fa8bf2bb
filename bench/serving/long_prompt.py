"""Measure how much a long prompt slows down requests that are streaming.

usage: python bench/serving/long_prompt.py [--tokens 6000] [flags of serve]

Four clients stream short stories, one after another: alone for ten seconds, then until a long prompt has its first
token. The program prints the time between a story's texts, as a multiple of the median of the first ten seconds: for
the whole time of the prompt, and for each fifth of this time.
"""

import asyncio
import itertools
import statistics
import sys
import time
from pathlib import Path

from compare import CELLS, TOKENS_PER_WORD, text
from peers import Answer, Peer, Server, running

from srb.llama.model.model_file import find_model
from srb.llama.native.params import physical_cores

ALONE = 10.0  # seconds


async def main() -> None:
    flags = sys.argv[1:]
    n_tokens = 6000
    if flags[:1] == ["--tokens"]:
        n_tokens, flags = int(flags[1]), flags[2:]
    peer = Peer("srb", True, ("--log-level", "error", *flags))
    async with running(peer, find_model(None), CELLS, physical_cores(), Path()) as server:
        await server.ask("Once upon a time,", 4, 16)
        stories: list[Answer] = []
        start = time.perf_counter()
        clients = [asyncio.create_task(tell(server, number, stories)) for number in range(4)]
        await asyncio.sleep(ALONE)
        long = await server.ask(text(int(n_tokens / TOKENS_PER_WORD), 1), 1, 1)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    gaps = [(story.sent - start + times[1], times[1] - times[0]) for story in stories for times in pairs(story)]
    alone = statistics.median(gap for when, gap in gaps if when < ALONE)
    wait = long.end
    print(f"{long.prompt_tokens} tokens, evaluated in {wait:.0f} s; alone, texts are {1000 * alone:.0f} ms apart")
    print("part", "median", "p99", "max", sep="\t")
    for name, low, high in [
        ("alone", -ALONE / wait, 0.0),
        ("all", 0.0, 1.0),
        *((f"{k + 1} of 5", k / 5, (k + 1) / 5) for k in range(5)),
    ]:
        part = [gap / alone for when, gap in gaps if low * wait <= when - ALONE < high * wait]
        found = (statistics.median(part), statistics.quantiles(part, n=100)[98], max(part))
        print(name, *(f"{each:.2f} x" for each in found), sep="\t")


async def tell(server: Server, number: int, stories: list[Answer]) -> None:
    """Request one story after another."""
    while True:
        stories.append(await server.ask(f"Story {number}: Once", max_tokens=80 + 17 * number, seed=len(stories)))


def pairs(story: Answer) -> list[tuple[float, float]]:
    """Return the times of consecutive texts, for all pairs within a story."""
    return list(itertools.pairwise(story.times[0]))


if __name__ == "__main__":
    asyncio.run(main())
