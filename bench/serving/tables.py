"""Measure the cost of scoring 4 continuations of each of 200 contexts over HTTP, in several ways.

usage: python bench/serving/tables.py [--contexts 200] [--threads N] [--binaries FOLDER_OF_LLAMA_SERVER] [MODEL.gguf]

`table` is one POST /v1/score. `echo, one by one` has a request with `echo`, `logprobs` and `max_tokens` 1 for each
text, one after another; `echo, in lists of 4` has one for each context; `echo, nothing shared` has one for each text,
with `cache_prompt` false. Each way has different texts of the same lengths, so that it can't reuse cached prefixes of
another one. The number of tokens that srb evaluated follows the times.

llama-server doesn't report the log-probabilities of a prompt's tokens. So the program requests the next token's
probabilities before each token of a continuation, with `n_probs` 100 and `cache_prompt`. That is the minimum that such
a client needs, and a token that isn't among the 100 still has no probability. It measures some of the contexts, and
multiplies the time.
"""

import argparse
import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
from peers import Peer, running

from srb.llama.model.model_file import find_model
from srb.llama.native.params import physical_cores

CONTEXT, END, ENDS = 80, 20, 4
SRB = Peer("srb", True, ("--log-level", "error"))
LLAMA_SERVER = Peer("llama-server", False, ("-np", "1"))

Texts = list[tuple[list[int], list[list[int]]]]
"""The tokens of contexts, each with those of its continuations."""


def texts(n: int, seed: int) -> Texts:
    rng = random.Random(seed)

    def some(length: int) -> list[int]:
        return [rng.randrange(1_000, 40_000) for _ in range(length)]

    return [(some(CONTEXT), [some(END) for _ in range(ENDS)]) for _ in range(n)]


async def post(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> Any:
    async with session.post(url, json=body) as answer:
        if answer.status != 200:
            raise RuntimeError(f"{url}: {answer.status} {await answer.text()}")
        return await answer.json()


async def table(session: aiohttp.ClientSession, url: str, asked: Texts) -> None:
    contexts, ends = map(list, zip(*asked, strict=True))
    body = {"contexts": contexts, "continuations": ends, "stream": False}
    assert len((await post(session, f"{url}/v1/score", body))["scores"]) == ENDS * len(asked)


async def one_by_one(session: aiohttp.ClientSession, url: str, asked: Texts) -> None:
    for context, ends in asked:
        for end in ends:
            await echo(session, url, context + end)


async def in_lists(session: aiohttp.ClientSession, url: str, asked: Texts) -> None:
    for context, ends in asked:
        await echo(session, url, [context + end for end in ends])


async def nothing_shared(session: aiohttp.ClientSession, url: str, asked: Texts) -> None:
    for context, ends in asked:
        for end in ends:
            await echo(session, url, context + end, cache_prompt=False)


async def echo(session: aiohttp.ClientSession, url: str, prompt: Any, **fields: Any) -> None:
    body = {"model": "m", "prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0} | fields
    await post(session, f"{url}/v1/completions", body)


async def token_by_token(session: aiohttp.ClientSession, url: str, asked: Texts) -> None:
    for context, ends in asked:
        for end in ends:
            for k in range(END):
                body = {"prompt": context + end[:k], "n_predict": 1, "n_probs": 100, "cache_prompt": True}
                await post(session, f"{url}/completion", body)


async def evaluated(session: aiohttp.ClientSession, url: str) -> float:
    """Return how many tokens a server has evaluated so far, or 0 if it doesn't report it."""
    async with session.get(f"{url}/health") as answer:
        told = await answer.json()
    return sum(float(told.get(name, 0)) for name in ("prompt_tokens_evaluated", "rows"))


def processor_time(pid: int) -> float:
    """Return the CPU time of a process so far, in seconds. Linux only. Other programs hardly change it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--contexts", type=int, default=200)
    parser.add_argument("--threads", type=int, default=physical_cores(), help="of each server")
    parser.add_argument("--binaries", type=Path, help="the folder of llama-server; without it, only srb is measured")
    arguments = parser.parse_args()
    model, n = find_model(arguments.model), arguments.contexts
    ways: list[tuple[Peer, str, Callable[..., Awaitable[None]], int]] = [
        (SRB, "table", table, n),
        (SRB, "echo, one by one", one_by_one, n),
        (SRB, "echo, in lists of 4", in_lists, n),
        (SRB, "echo, nothing shared", nothing_shared, n),
    ]
    if arguments.binaries:
        ways.append((LLAMA_SERVER, "llama-server, token by token", token_by_token, max(1, n // 40)))
    found: dict[str, tuple[float, float]] = {}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1200)) as session:
        for peer in dict.fromkeys(way[0] for way in ways):
            async with running(peer, model, 8192, arguments.threads, arguments.binaries or Path()) as server:
                for seed, (_, name, ask, n_asked) in enumerate(way for way in ways if way[0] is peer):
                    await ask(session, server.url, texts(1, 100 + seed))  # warm-up
                    n_before = await evaluated(session, server.url)
                    began, cpu = time.perf_counter(), processor_time(server.process.pid)
                    await ask(session, server.url, texts(n_asked, seed))
                    wall = (time.perf_counter() - began) * n / n_asked
                    cpu = (processor_time(server.process.pid) - cpu) * n / n_asked
                    n_tokens = await evaluated(session, server.url) - n_before
                    found[name] = wall, cpu
                    print(
                        f"{name:28} {wall:7.1f} s, {cpu:7.1f} s of the processor for {n} contexts; the table takes "
                        f"{found['table'][0] / wall:.2f} and {found['table'][1] / cpu:.2f} of it"
                        + (f"; {n_tokens:.0f} tokens evaluated" if n_tokens else ""),
                        flush=True,
                    )


if __name__ == "__main__":
    asyncio.run(main())
