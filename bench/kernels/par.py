"""Compare a step of srb with its decode alone, and with a step of llama-server on the same weights.

usage: python bench/kernels/par.py --binaries FOLDER [--rounds 3] [--n 1 8 32] [--flash-attn on] [--cache-type f16]

FOLDER has llama-server, built by `./build.sh bench`. All have the weights that `srb tune` chose, the same cache,
flash attention, threads and cells, and continue a prompt of 400 words by 64 tokens. They are measured in turn, each in
a process of its own, which sleeps until its turn:

decode: a loop of llama_decode through llama-cpp-python, in a context like srb's. engine: srb's engine without a
server. srb, llama-server: the servers; the client is this program, on the same cores.

Each round restarts all of them, since two processes of one program may differ throughout their lives. The program
prints milliseconds: the median step of each round. For the engine and srb it also prints the share of the decode
in a step, in the round where that is least; and for all, how often a thread of the process slept in a step (Linux).
"""

import argparse
import asyncio
import itertools
import re
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import aiohttp

sys.path.append(str(Path(__file__).parents[1] / "serving"))

from bare import Bare
from compare import CELLS, PROMPT_TOKENS, text
from peers import Answer, Peer, Server, running

from srb import CompletionRequest, LlamaBackend, SamplingParams, Settings
from srb.engine.events import StreamEvent
from srb.engine.kv_cache.allocator import Layout
from srb.llama.model.fit import PROMPT_OUTPUTS, n_seqs
from srb.llama.model.loader import load_model
from srb.llama.model.model_file import find_model
from srb.llama.native.params import engine_params, physical_cores, start
from srb.llama.tune.result import choose
from srb.serving.async_engine import make_engine

STEPS = 63  # after the first token, which comes from the prompt's logits


@dataclass
class Steps:
    """The seconds of each step. decoding: of all decodes together. slept: how often threads slept meanwhile."""

    seconds: list[float]
    decoding: float
    slept: int


Measure = Callable[[int, int], Awaitable[Steps]]  # of n, and a seed


def slept(pid: int | str = "self") -> int:
    """Return how often all threads of a process have slept, or 0 where this isn't counted."""
    found = [
        re.findall(r"\nvoluntary.*:\t(\d+)", path.read_text()) for path in Path(f"/proc/{pid}/task").glob("*/status")
    ]
    return sum(int(each[0]) for each in found if each)


class Decode:
    """A context like srb's, and decodes in it, without srb's code."""

    def __init__(self, settings: Settings) -> None:
        assert settings.model
        start(settings)
        self._model = load_model(settings.model, settings)
        layout = Layout(True, CELLS, n_seqs(settings), settings.flash_attn)
        params = engine_params(self._model, settings, layout, n_outputs=settings.parallel + PROMPT_OUTPUTS)
        self._bare = Bare(self._model, params)

    def measure(self, n: int, _seed: int) -> Steps:
        self._bare.begin(PROMPT_TOKENS, n)
        before, ends = slept(), [time.perf_counter()]
        for position in range(PROMPT_TOKENS, PROMPT_TOKENS + STEPS):
            self._bare.decode(range(position, position + 1), range(n))
            ends.append(time.perf_counter())
        return Steps(
            [after - before for before, after in itertools.pairwise(ends)], ends[-1] - ends[0], slept() - before
        )


class OfEngine:
    """srb's engine, in this process."""

    def __init__(self, settings: Settings) -> None:
        self._decoding = 0.0
        self._engine = make_engine(settings, LlamaBackend(settings), self._observe)

    def _observe(self, measure: str, seconds: float) -> None:
        self._decoding += seconds if measure == "decode" else 0.0

    def measure(self, n: int, seed: int) -> Steps:
        engine = self._engine
        branches = SamplingParams(ignore_eos=True, max_tokens=STEPS + 1, seed=seed).alternatives(n)
        engine.add_request(CompletionRequest((engine.tokenize(text(400, seed)),), branches))
        while not any(isinstance(event, StreamEvent) for event in engine.step()):
            pass
        self._decoding, before, ends = 0.0, slept(), [time.perf_counter()]
        for _ in range(STEPS):
            engine.step()
            ends.append(time.perf_counter())
        steps = Steps([after - before for before, after in itertools.pairwise(ends)], self._decoding, slept() - before)
        while engine.has_work:
            engine.step()
        return steps


_measured: Any = None


def _make(kind: Any, settings: Settings) -> None:
    global _measured
    _measured = kind(settings)


def _measure(n: int, seed: int) -> Steps:
    return _measured.measure(n, seed)  # type: ignore[no-any-return]


def in_process(pool: ProcessPoolExecutor) -> Measure:
    """Measure the `Decode` or the `OfEngine` of another process."""

    async def measure(n: int, seed: int) -> Steps:
        return await asyncio.get_running_loop().run_in_executor(pool, _measure, n, seed)

    return measure


def of_server(server: Server) -> Measure:
    """Measure a server."""

    async def decoding() -> float:
        if not server.peer.is_srb:
            return 0.0
        async with aiohttp.ClientSession() as session, session.get(f"{server.url}/metrics") as response:
            return float(re.findall(r"\nsrb:step_decode_seconds_sum (.*)", await response.text())[0])

    async def measure(n: int, seed: int) -> Steps:
        decoded, before = await decoding(), slept(server.process.pid)
        answer = await server.ask(text(400, seed), n, STEPS + 1)
        if answer.tokens != n * (STEPS + 1):
            raise RuntimeError(f"{server.peer.name} wrote {answer.tokens} tokens")
        sleeps, first = slept(server.process.pid) - before, min(answer.first.values())
        return Steps(steps_of(answer), await decoding() - decoded - first, sleeps)

    return measure


def steps_of(answer: Answer) -> list[float]:
    """Return the seconds of each step: between the first texts of two steps, as a step's texts come close together."""
    times = sorted(itertools.chain(*answer.times.values()))
    short = (times[-1] - times[0]) / STEPS / 3
    begins = times[:1] + [after for before, after in itertools.pairwise(times) if after - before > short]
    return [after - before for before, after in itertools.pairwise(begins)]


def row(n: int, name: str, rounds: list[Steps]) -> str:
    """Return a row of the table."""
    medians = ", ".join(f"{1000 * statistics.median(each.seconds):.2f}" for each in rounds)
    decoding = 1000 * min(each.decoding for each in rounds) / STEPS
    shown = f"{decoding:.2f}" if decoding > 0 else ""
    return f"| {n} | {name} | {medians} | {shown} | {min(each.slept for each in rounds) / STEPS:.1f} |"


async def measured(
    settings: Settings, peers: list[Peer], ns: list[int], binaries: Path, seed: int
) -> dict[tuple[int, str], Steps]:
    """Start everything, and measure each once, by n and name."""
    assert settings.model
    async with AsyncExitStack() as stack:
        measures: dict[str, Measure] = {}
        for name, kind in (("decode", Decode), ("engine", OfEngine)):
            pool = stack.enter_context(ProcessPoolExecutor(1, get_context("spawn"), _make, (kind, settings)))
            measures[name] = in_process(pool)
        for peer in peers:
            started = running(peer, settings.model, CELLS, physical_cores(), binaries)
            measures[peer.name] = of_server(await stack.enter_async_context(started))
        for measure in measures.values():
            await measure(1, 0)
        return {(n, name): await measure(n, 100 * n + seed) for n in ns for name, measure in measures.items()}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binaries", type=Path, required=True, help="folder of llama-server")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--n", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--flash-attn", choices=["on", "off"], help="left out: as tuned")
    parser.add_argument("--cache-type", help="left out: as tuned")
    options = parser.parse_args()
    choice = choose(find_model(None), Settings())
    costs = choice.cost_model or choice.machine_costs
    usual = "off" if "off" in (costs and costs.preferred, choice.settings.flash_attn) else "on"
    flash_attn, cache_type = str(options.flash_attn or usual), str(options.cache_type or choice.settings.cache_type_k)
    settings = Settings(
        model=choice.weights,
        tune=False,
        parallel=64,
        max_n=64,
        ctx_size=CELLS,
        threads=physical_cores(),
        flash_attn=flash_attn,
        cache_type_k=cache_type,
        cache_type_v=cache_type,
        draft_max=0,  # draft tokens would add several tokens of a text in one step
        log_level="error",
    )
    same = ("-fa", flash_attn, "-ctk", cache_type, "-ctv", cache_type)
    peers = [
        Peer("srb", True, ("--no-tune", "--draft-max", "0", "--max-n", "64", "--parallel", "64", *same)),
        Peer("llama-server", False, ("-np", "64", "-kvu", *same)),
    ]
    found: dict[tuple[int, str], list[Steps]] = {}
    for seed in range(options.rounds):
        for key, steps in (await measured(settings, peers, options.n, options.binaries, seed)).items():
            found.setdefault(key, []).append(steps)
            print(seed + 1, *key, f"{1000 * statistics.median(steps.seconds):.2f}", file=sys.stderr, flush=True)
    print(f"{choice.weights.name}, cache {cache_type}, flash attention {flash_attn}\n")
    print("| n | | step, ms | decoding, ms | slept |\n|---|---|---|---|---|")
    for key, rounds in found.items():
        print(row(*key, rounds))


if __name__ == "__main__":
    asyncio.run(main())
