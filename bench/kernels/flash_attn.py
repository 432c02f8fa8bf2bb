"""Measure when flash attention is faster on a CPU, to check the cost model of `--flash-attn auto`.

usage: python bench/kernels/flash_attn.py

The program prints the milliseconds of a step for n alternatives of a prompt, by the number of tokens that each has
generated, alternating between flash attention on and off. It also prints the saving without it that the cost model
predicts.
"""

import dataclasses
import statistics
import time

from srb import LlamaBackend, Settings
from srb.engine.backend import Batch
from srb.engine.kv_cache.allocator import Load

REPEATS = 5
SIZES = [(prompt, n, own) for prompt in (100, 600, 2000, 5000) for n in (1, 4, 8, 32) for own in (32, 128)]


class Alternatives:
    """n sequences that continue sequence 0."""

    def __init__(self, flash_attn: str) -> None:
        self.backend = LlamaBackend(Settings(flash_attn=flash_attn, tune=False, log_level="error"))
        self.evaluated = 0

    def decode(self, seq_ids: range, start: int, n_tokens: int) -> float:
        """Evaluate some tokens of each sequence. Return milliseconds."""
        batch = Batch()
        for seq_id in seq_ids:
            batch.add((5,) * n_tokens, start, seq_id, outputs=int(n_tokens == 1))
        before = time.perf_counter()
        self.backend.decode(batch, None)
        return 1000 * (time.perf_counter() - before)

    def begin(self, prompt: int, n: int, own: int) -> None:
        for start in range(self.evaluated, prompt, 512):
            self.decode(range(1), start, min(512, prompt - start))
        self.evaluated = prompt
        for seq_id in range(1, n + 1):
            self.backend.fork(0, seq_id, prompt)
            self.decode(range(seq_id, seq_id + 1), prompt, own)

    def end(self, n: int) -> None:
        for seq_id in range(1, n + 1):
            self.backend.remove(seq_id)


def main() -> None:
    both = Alternatives("on"), Alternatives("off")
    rule = both[0].backend._contexts._layouts
    print("prompt", "n", "own", "on, ms", "off, ms", "saved, ms", "by the rule", sep="\t")
    for prompt, n, own in SIZES:
        if prompt + n * (own + REPEATS) > both[0].backend.n_cells:
            continue
        for each in both:
            each.begin(prompt, n, own)
        steps = [[each.decode(range(1, n + 1), prompt + own + k, 1) for each in both] for k in range(REPEATS)]
        on, off = (statistics.median(times) for times in zip(*steps, strict=True))
        for each in both:
            each.end(n)
        loads, unified = [Load(prompt, prompt, 0, n, 0, 2 * own)], both[0].backend.layout
        costs = [rule.seconds(loads, dataclasses.replace(unified, flash_attn=kind)) for kind in ("on", "off")]
        predicted = round(1000 * (costs[0] - costs[1]) / (2 * own))
        print(prompt, n, own, *(f"{each:.1f}" for each in (on, off, on - off)), predicted, sep="\t", flush=True)


if __name__ == "__main__":
    main()
