"""Measure many different prompts at once, and requests that may need more cells than exist.

    python bench/serving/many_prompts.py --binaries DIR [--only mixed,pressure] [--rounds 2]

DIR has llama-server, built by `./build.sh bench`. srb, llama-server with a cache for each sequence, and
llama-server with a unified cache run at once, with the weights that `srb tune` chose, and receive requests in turn.

mixed: C clients send distinct prompts of W words at the same time, each for n alternatives of M tokens. The program
prints the total seconds, the median and maximum time to first token, and the longest pause of a text, as medians of the
rounds, and the ratio of srb's to those of the fastest llama-server.
small: one request for 2 tokens comes while one for 32 alternatives runs. It prints when the small one has its first
token, and the seconds of the large one.
arriving: while one prompt with 8 alternatives streams, 15 other prompts arrive within a second.
pressure: alternatives that may be long (max_tokens 1000) and end after some 60 tokens, compared with max_tokens 100.
"""

import argparse
import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

from compare import text
from peers import Answer, Peer, Server, running

from srb.llama.model.model_file import find_model
from srb.llama.native.params import physical_cores
from srb.llama.tune.result import choose
from srb.options.settings import Settings

CELLS = 8192
SEEDS = itertools.count(1)  # no text is repeated, so no server has cached it
SHORT = "root ::= [a-z ]{240}"  # a text of some 60 tokens
SHAPES = {
    "32x1": (32, 1, 150, 100),
    "16x2": (16, 2, 300, 64),
    "8x4": (8, 4, 600, 64),
    "16x1": (16, 1, 600, 32),
    "16x1-1": (16, 1, 600, 1),
    "8x1": (8, 1, 2000, 32),
    "4x4": (4, 4, 600, 150),
    "2x8": (2, 8, 600, 150),
    "1x8": (1, 8, 600, 64),
    "1x16": (1, 16, 600, 100),
    "1x32": (1, 32, 600, 64),
    "1x1": (1, 1, 600, 64),
}
"""Clients, alternatives, words, tokens."""


def peers(flags: tuple[str, ...], n_streams: int) -> list[Peer]:
    """Return srb, and llama-server in its two layouts, with and without flash attention."""
    large = ("-c", "32768", "-np", str(n_streams))  # the last -c counts
    return [
        Peer("srb", True, ("--log-level", "error", *flags)),
        Peer("streams, on", False, (*large, "-fa", "on")),
        Peer("streams, off", False, (*large, "-fa", "off", "-ctk", "bf16", "-ctv", "bf16")),
        Peer("unified, off", False, (*large, "-kvu", "-fa", "off", "-ctk", "bf16", "-ctv", "bf16")),
    ]


async def together(
    server: Server, shape: tuple[int, int, int, int], seed: int
) -> tuple[float, list[float], list[float]]:
    """Return the seconds until the last of these clients has its answer, the times to first token, and the pauses."""
    clients, n, words, tokens = shape
    began = time.perf_counter()
    answers = await asyncio.gather(
        *(server.ask(text(words, 1000 * seed + k), n, tokens, seed=k) for k in range(clients))
    )
    seconds = time.perf_counter() - began
    for each in answers:
        if each.tokens != n * tokens:
            raise RuntimeError(f"{server.peer.name} has generated {each.tokens} tokens in place of {n * tokens}")
    firsts = [each.sent - began + first for each in answers for first in each.first.values()]
    return seconds, firsts, [gap for each in answers for gap in each.gaps]


async def small(server: Server, seed: int) -> tuple[float, float]:
    """Return the time to first token of a small request beside 32 alternatives, and the seconds of these."""
    large = asyncio.create_task(server.ask(text(100, seed), 32, 200))
    await asyncio.sleep(3.0)
    answer = await server.ask(text(10, 1000 * seed), 1, 2)
    return min(answer.first.values()), (await large).end


async def arriving(server: Server, seed: int) -> tuple[float, float]:
    """Return the seconds until all have their answers, and the longest pause of the streaming alternatives."""

    async def later(k: int) -> Answer:
        await asyncio.sleep(2.0 + k / 15)
        return await server.ask(text(600, 1000 * seed + k), 1, 64)

    began = time.perf_counter()
    first, *_ = await asyncio.gather(server.ask(text(600, seed), 8, 256), *(later(k) for k in range(15)))
    return time.perf_counter() - began, max(first.gaps)


async def pressure(server: Server, load: tuple[int, int, int, int], seed: int) -> tuple[float, float, int]:
    """Return tokens per second, the time from the first to the last alternative's start, and the number of tokens."""
    clients, n, words, most = load
    began = time.perf_counter()
    answers = await asyncio.gather(
        *(
            server.ask(text(words, 1000 * seed + k), n, most, seed=k, ignore_eos=False, grammar=SHORT)
            for k in range(clients)
        )
    )
    seconds, tokens = time.perf_counter() - began, sum(each.tokens for each in answers)
    firsts = [each.sent - began + first for each in answers for first in each.first.values()]
    return tokens / seconds, max(firsts) - min(firsts), tokens


async def medians(servers: list[Server], rounds: int, measure: Callable[[Server, int], Awaitable[list[float]]]) -> None:
    """Print a row of the table for each server, with the medians of the rounds."""
    found: dict[str, list[list[float]]] = {each.peer.name: [] for each in servers}
    for _ in range(rounds):
        seed = next(SEEDS)
        for server in servers:
            try:
                found[server.peer.name].append(await measure(server, seed))
            except RuntimeError as error:  # 32 streams of 32,768 cells are too short for 2,000 words
                print(error)
                found.pop(server.peer.name)
        servers = [each for each in servers if each.peer.name in found]
    medians = {name: [statistics.median(each) for each in zip(*rows, strict=True)] for name, rows in found.items()}
    for name, row in medians.items():
        print(f"| {name} |", " | ".join(f"{each:.2f}" for each in row), "|", flush=True)
    others = [row for name, row in medians.items() if name != "srb"]
    if others and "srb" in medians:
        best = [min(column) for column in zip(*others, strict=True)]
        print("| ratio |", " | ".join(f"{a / (b or 1):.2f}" for a, b in zip(medians["srb"], best, strict=True)), "|")


async def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=Path, help="the folder of llama-server; left out: only srb is measured")
    scenarios = "mixed,small,arriving,pressure"
    parser.add_argument("--only", default=scenarios, help="scenarios, or shapes of mixed (%(default)s)")
    parser.add_argument("--streams", type=int, default=32, help="llama-server's -np (%(default)s); 8 for 8x1")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--peers", default="", help="the names of those that are measured, with ; between; empty: all")
    parser.add_argument("flags", nargs="*", help="of srb serve, after --")
    arguments = parser.parse_args()
    model = find_model(None)
    weights = choose(model, Settings()).weights
    chosen = [each for each in peers(tuple(arguments.flags), arguments.streams) if each.is_srb or arguments.binaries]
    chosen = [each for each in chosen if not arguments.peers or each.name in arguments.peers.split(";")]
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(
                running(each, model if each.is_srb else weights, CELLS, physical_cores(), arguments.binaries or Path())
            )
            for each in chosen
        ]
        for server in servers:
            await server.ask("Once upon a time,", 2, 16)
        for name in arguments.only.replace("mixed", ",".join(SHAPES)).split(","):
            if shape := SHAPES.get(name):
                print(
                    f"\n{shape[0]} x {shape[1]}, {shape[2]} words, {shape[3]} tokens: total; first; last first; pause"
                )

                async def measure(server: Server, seed: int, shape: tuple[int, int, int, int] = shape) -> list[float]:
                    seconds, firsts, pauses = await together(server, shape, seed)
                    return [seconds, statistics.median(firsts), max(firsts), max(pauses, default=0.0)]

                await medians(servers, arguments.rounds, measure)
            elif name == "small":
                print("\nA request for 2 tokens beside 32 alternatives: its first token; the alternatives' total")
                await medians(servers, arguments.rounds, lambda server, seed: _list(small(server, seed)))
            elif name == "arriving":
                print("\n15 prompts arrive beside 8 alternatives: total; longest pause")
                await medians(servers, arguments.rounds, lambda server, seed: _list(arriving(server, seed)))
            elif name == "pressure":
                ours = [each for each in servers if each.peer.is_srb]
                for clients, n, words in ((1, 8, 1500), (16, 4, 150)):
                    for most in (100, 1000):
                        print(f"\n{clients} x {n}, {words} words, max_tokens {most}: tokens/s; begin within; tokens")

                        async def press(
                            server: Server, seed: int, load: tuple[int, int, int, int] = (clients, n, words, most)
                        ) -> list[float]:
                            return list(await pressure(server, load, seed))

                        await medians(ours, arguments.rounds, press)


async def _list(found: Awaitable[tuple[float, ...]]) -> list[float]:
    return list(await found)


if __name__ == "__main__":
    asyncio.run(main())
