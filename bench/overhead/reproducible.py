"""Measure the cost of `--reproducible`, compared with plain srb and with llama-server in the same layout of cells.

usage: python bench/overhead/reproducible.py --binaries FOLDER [--weights bf16] [--words 400] [--n 1 8] [--rounds 3]

FOLDER has llama-server, built by `./build.sh bench`. It runs without -kvu, so each of its sequences also has cells of
its own, with flash attention and without. All servers have the same weights, and cells for 32 alternatives of
these lengths. They run at once and receive requests in turn, with a new text for each round. The program prints
medians: seconds until the first token, seconds until the last of 64 for each alternative, seconds of CPU time, and the
peak memory in MiB. On a busy machine, --threads 1 and the column `busy` are more reliable.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
from contextlib import AsyncExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "serving"))

from peers import Peer, Server, running

from srb.llama.model.model_file import find_model
from srb.llama.native.params import physical_cores
from srb.llama.tune.result import choose
from srb.options.settings import Settings

TEXT = "the old keeper said nobody had seen that ship for many years but he still lit a lamp each night"
TOKENS, PARALLEL = 64, 32
OPTIONS = ("--parallel", str(PARALLEL), "--max-n", str(PARALLEL), "--no-tune", "--log-level", "error")
PEERS = (
    Peer("srb", True, OPTIONS),
    Peer("srb --reproducible", True, ("--reproducible", *OPTIONS)),
    Peer("llama-server", False, ("-np", str(PARALLEL), "--no-kv-unified")),
    Peer("llama-server -fa off", False, ("-np", str(PARALLEL), "--no-kv-unified", "-fa", "off")),
)


def processor_time(server: Server) -> float:
    """Return the CPU time of a server's threads so far, in seconds. Linux only."""
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def ask(server: Server, text: str, n: int) -> tuple[float, float, float, int]:
    """Return the seconds until the first and the last token, the CPU time in seconds, and the peak memory in MiB."""
    server.forget_peak()
    began = processor_time(server)
    answer = await server.ask(text, n, TOKENS)
    assert answer.tokens == n * TOKENS
    return min(answer.first.values()), answer.end, processor_time(server) - began, server.peak_memory()


async def measure(options: argparse.Namespace) -> None:
    """Print a row for each length, n and server."""
    weights = choose(find_model(options.model), Settings(weights=options.weights, tune=False)).weights
    print("words   n  server                  first   whole  ratio    busy  ratio    MiB", flush=True)
    cells = PARALLEL * (-(-int(1.5 * max(options.words) + TOKENS) // 256) * 256)
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(running(peer, weights, cells, options.threads, options.binaries.absolute()))
            for peer in PEERS
        ]
        rng = random.Random(1)
        for words in options.words:
            for n in options.n:
                texts = [" ".join(rng.choices(TEXT.split(), k=words)) for _ in range(options.rounds)]
                times = [[await ask(server, text, n) for server in servers] for text in texts]
                usual = least = 0.0
                for server, own in zip(servers, zip(*times, strict=True), strict=True):
                    first, last, busy, memory = map(statistics.median, zip(*own, strict=True))
                    usual, least = usual or last, least or busy
                    row = f"{first:6.2f} {last:7.2f} {last / usual:6.2f} {busy:7.2f} {busy / least:6.2f} {memory:6.0f}"
                    print(f"{words:5} {n:3}  {server.peer.name:22} {row}", flush=True)


def main() -> None:
    """Run the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binaries", type=Path, required=True)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--weights", default="file")
    parser.add_argument("--words", type=int, nargs="+", default=[400, 1200])
    parser.add_argument("--n", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=physical_cores())
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
