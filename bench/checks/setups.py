"""Check that `srb tune` chooses the fastest settings, also on a busy machine.

    python bench/checks/setups.py [ALONE [BUSY]]

The program tunes the default model with an empty cache, 5 times alone and 5 times next to a loop that
keeps a core busy, or as often as ALONE and BUSY say. Then it measures all pairs of weights and attention in turn, on
the idle machine. It prints a row for each setup: its choice; how much longer that takes than the best one (the mean
over the jobs of `srb tune`; flash attention `auto` has the better kind for each job); and the largest factor between
its times and those measured now, over a prompt token and steps of 8 and 32 rows. "not used" means estimated times.
Run the program on an idle machine.
"""

import contextlib
import itertools
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from srb import Settings
from srb.engine.backend import Costs
from srb.llama.model.model_file import find_model
from srb.llama.model.weights import FILE, convert
from srb.llama.tune.probe import Attention, Shape, Timings, Weights
from srb.llama.tune.result import Tuned, read_tuned

JOBS = (512, 8, 64), (4096, 8, 64), (512, 1, 64)
SHAPE = Shape(256, 2048, (1, 8, 32))
CELLS = 400
NAMES = FILE, "q8_0", "bf16", "f16"
CACHE_TYPES = "f16", "bf16"
ROUNDS = 3
Pair = tuple[str, Attention]


@contextlib.contextmanager
def busy_loop(wanted: bool) -> Iterator[None]:
    """Keep a core busy during the block."""
    loop = subprocess.Popen([sys.executable, "-c", "while 1: pass"]) if wanted else None
    try:
        yield
    finally:
        if loop:
            loop.kill()
            loop.wait()


def set_up(model: Path, *, beside: bool) -> tuple[Tuned, float]:
    """Return what `srb tune` chooses with an empty cache, and the seconds it takes."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        command = [sys.executable, "-m", "srb", "tune", "--once", "--model", str(model)]
        start = time.monotonic()
        with busy_loop(beside):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        tuned = read_tuned(model, Settings())
        assert tuned
        return tuned, time.monotonic() - start


def measure(model: Path) -> dict[Pair, Timings]:
    """Return the times of all pairs, each the minimum of several rounds."""
    found: dict[Pair, Timings] = {}
    attentions = [Attention(*each) for each in itertools.product(CACHE_TYPES, ("auto", "off"))]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        os.environ["XDG_CACHE_HOME"] = folder
        loaded = {
            name: stack.enter_context(contextlib.closing(Weights(each, Settings())))
            for name in NAMES
            for each in [model if name == FILE else convert(model, name)]
        }
        tokens = loaded[FILE].tokenize(Path(__file__).read_text())
        for _ in range(ROUNDS):
            for (name, weights), attention in itertools.product(loaded.items(), attentions):
                timings = weights.measure(attention, tokens, SHAPE, deep=True)
                found.setdefault((name, attention), timings).merge(timings)
    return found


def mean(pairs: Iterable[Timings]) -> float:
    """Return the geometric mean of the seconds of all jobs, each with the fastest pair."""
    among = list(pairs)
    return math.prod(min(each.job(*job) for each in among) for job in JOBS) ** (1 / len(JOBS))


def ways(weights: str, cache_type: str, flash_attn: str) -> list[Pair]:
    """Return the pairs that a server has with this choice: `auto` has both, and picks one for each request."""
    kinds = ("auto", "off") if flash_attn == "auto" else (flash_attn,)
    return [(weights, Attention(cache_type, kind)) for kind in kinds]


def farthest(kept: Costs, alone: Costs) -> float:
    """Return the ratio between the first and the second's times that is farthest from 1."""
    pairs = [(kept.prompt_token, alone.prompt_token)]
    pairs += [(kept.of_rows([CELLS] * n), alone.of_rows([CELLS] * n)) for n in (8, 32)]
    return max((one / other for one, other in pairs), key=lambda factor: abs(math.log(factor)))


def main() -> None:
    alone, busy = (*map(int, sys.argv[1:]), *(5, 5)[len(sys.argv) - 1 :])
    model = find_model(None)
    results = []
    for beside in itertools.chain.from_iterable(itertools.zip_longest([False] * alone, [True] * busy)):
        if beside is not None:
            results.append((beside, *set_up(model, beside=beside)))
            print(f"{'beside a loop' if beside else 'alone'}: {results[-1][1].describe()}", file=sys.stderr, flush=True)
    times = measure(model)
    for (name, attention), each in sorted(times.items(), key=lambda item: mean([item[1]])):
        jobs = ", ".join(f"{each.job(*job):.2f}" for job in JOBS)
        what = f"{name}, {attention.cache_type} cache, flash attention {attention.flash_attn}"
        print(f"{mean([each]):.3f} s ({jobs})  {what}")
    best = min(
        mean(times[pair] for pair in ways(name, cache_type, "auto")) for name in NAMES for cache_type in CACHE_TYPES
    )
    print("\n| | s | weights | cache | flash attention | behind the best | times |\n|---|---|---|---|---|---|---|")
    for beside, tuned, took in results:
        own = ways(tuned.weights, tuned.cache_type, tuned.flash_attn)
        usual = tuned.cost_model.preferred if tuned.cost_model else tuned.flash_attn
        pair = tuned.weights, Attention(tuned.cache_type, usual)
        behind = f"{mean(times[each] for each in own) / best - 1:.1%}" if set(own) <= set(times) else "not measured"
        factor = "not used"
        if tuned.cost_model and pair in times:
            kept = tuned.cost_model.off if usual == "off" else tuned.cost_model.on
            alone_costs = times[pair].costs("")
            factor = f"{farthest(kept, alone_costs):.2f}"
        who = "beside a loop" if beside else "alone"
        print(
            f"| {who} | {took:.0f} | {tuned.weights} | {tuned.cache_type} | {tuned.flash_attn} | {behind} | {factor} |"
        )


if __name__ == "__main__":
    main()
