"""Measure which cache type and attention suit which work, and what separate cells for each alternative gain.

usage: python bench/kernels/shapes.py [--rounds 2]

The weights are those that `srb tune` chose. Each job is a prompt, and n alternatives that continue it, in loops of
`llama_decode` without srb's code. Variants are measured in turn, and the program prints a job's minimum in seconds.

f16 on, f16 off, bf16 on, bf16 off: the type of keys and values, and flash attention on or off. All alternatives
are in one decode and share the prompt's cells, as in srb. groups: like bf16 off, but 8 alternatives in a decode.
streams f16, streams bf16: each alternative has cells of its own and a copy of the prompt, without flash attention.
"""

import argparse
import time
from typing import Any

from bare import Bare

from srb import Settings
from srb.engine.kv_cache.allocator import Layout
from srb.llama.model.loader import load_model
from srb.llama.model.model_file import find_model
from srb.llama.native.params import engine_params, physical_cores, start
from srb.llama.tune.result import choose

JOBS = (
    (400, 1, 64),
    (400, 4, 64),
    (400, 8, 64),
    (100, 8, 256),
    (400, 16, 64),
    (400, 32, 64),
    (400, 32, 128),
    (1200, 1, 64),
    (1200, 8, 64),
    (1200, 32, 64),
)
"""Each has the tokens of the prompt, the number of alternatives, and the tokens of each alternative."""

SEQS = 34  # an even number, as srb asks for

VARIANTS = {
    "f16 on": ("f16", "on", False, SEQS),
    "f16 off": ("f16", "off", False, SEQS),
    "bf16 on": ("bf16", "on", False, SEQS),
    "bf16 off": ("bf16", "off", False, SEQS),
    "groups": ("bf16", "off", False, 8),
    "streams f16": ("f16", "off", True, SEQS),
    "streams bf16": ("bf16", "off", True, SEQS),
}
"""Each has the cache type, flash attention, whether there are streams, and the most rows of a decode."""


class Variant:
    """A context, and decodes in it."""

    def __init__(self, model: Any, cache_type: str, flash_attn: str, has_streams: bool, max_rows: int) -> None:
        self._max_rows = max_rows
        threads = physical_cores()
        settings = Settings(cache_type_k=cache_type, cache_type_v=cache_type, threads=threads, parallel=SEQS)
        longest = max(tokens + length for tokens, _, length in JOBS)
        n_cells = longest if has_streams else max(t + n * each for t, n, each in JOBS)
        layout = Layout(not has_streams, n_cells, SEQS - (not has_streams), flash_attn)
        params = engine_params(model, settings, layout, n_outputs=SEQS)
        self._bare = Bare(model, params)

    def job(self, n_tokens: int, n: int, length: int) -> float:
        """Return the seconds for a prompt of `n_tokens` tokens, and n alternatives of `length` tokens."""
        begin = time.perf_counter()
        self._bare.begin(n_tokens, n)
        for position in range(n_tokens, n_tokens + length):
            for first in range(0, n, self._max_rows):
                self._bare.decode(range(position, position + 1), range(first, min(first + self._max_rows, n)))
        return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    rounds = parser.parse_args().rounds
    weights = choose(find_model(None), Settings()).weights
    settings = Settings(log_level="error")
    start(settings)
    model = load_model(weights, settings)
    variants = {name: Variant(model, *how) for name, how in VARIANTS.items()}
    for variant in variants.values():
        variant.job(16, 8, 2)
    print(f"{weights.name}, {physical_cores()} threads\n")
    print("| prompt | n | tokens each |", " | ".join(variants), "|")
    print("|---" * (3 + len(variants)), "|", sep="")
    for job in JOBS:
        least = dict.fromkeys(variants, float("inf"))
        for _ in range(rounds):
            for name, variant in variants.items():
                least[name] = min(least[name], variant.job(*job))
        print("|", " | ".join((*map(str, job), *(f"{each:.2f}" for each in least.values()))), "|", flush=True)


if __name__ == "__main__":
    main()
