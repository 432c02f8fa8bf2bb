"""Measure which layout of the KV cache suits how many prompts, and the cost of a change.

    .venv/bin/python bench/kernels/layouts.py [--words 600] [--rounds 2] [--large FILE]

The program decodes prompts one after another, forks each into n alternatives, and takes 16 steps, in loops of
`llama_decode` without the rest of srb. In the unified layout all sequences share one pool of cells, and a fork is free.
In streams each sequence has cells of its own, and a fork copies them.

apart: the prompts are decoded in a small context of their own, and their states are moved into a unified one.
The second table moves running sequences from a unified context into streams. --large writes a random model of
about 1B parameters to FILE (2.3 GB), or uses the existing file.
"""

import argparse
import ctypes
import resource
import sys
import time
from pathlib import Path
from typing import Any

import llama_cpp

from srb import Settings
from srb.engine.kv_cache.allocator import Layout
from srb.llama.model.loader import load_model
from srb.llama.model.model_file import find_model
from srb.llama.native.context import new_context
from srb.llama.native.params import engine_params, physical_cores, start
from srb.llama.native.state import StateFormat, converted
from srb.llama.tune.result import choose

SHAPES = ((1, 1), (1, 8), (1, 32), (2, 8), (4, 4), (8, 1), (16, 1))
"""The number of prompts, and of the alternatives of each."""

LAYOUTS = {
    "unified, off, bf16": (True, "off", "bf16"),
    "unified, on, f16": (True, "on", "f16"),
    "streams, off, bf16": (False, "off", "bf16"),
    "unified, off, f16": (True, "off", "f16"),
    "streams, off, f16": (False, "off", "f16"),
    "streams, on, f16": (False, "on", "f16"),
}
STEPS = 16
BATCH = 512


class Pool:
    """A context with one of the layouts."""

    def __init__(self, model: Any, layout: str, n_seqs: int, longest: int, n_cells: int) -> None:
        unified, flash_attn, cache_type = LAYOUTS[layout]
        per_seq = -(-longest // 256) * 256
        settings = Settings(cache_type_k=cache_type, cache_type_v=cache_type, threads=physical_cores(), parallel=n_seqs)
        began, before = time.perf_counter(), resident()
        laid_out = Layout(unified, n_cells if unified else per_seq, n_seqs - unified, flash_attn)
        params = engine_params(model, settings, laid_out, n_outputs=n_seqs)
        n_streams = 1 if unified else params.n_seq_max
        self._format = StateFormat(params.type_k, params.type_v, flash_attn == "off", n_streams)
        self.context = new_context(model, params, "a context")
        self.seconds, self.bytes = time.perf_counter() - began, resident() - before
        self._memory = llama_cpp.llama_get_memory(self.context)
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def decode(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """Evaluate rows: a token, its position, its sequence, and whether it has logits."""
        batch = self._batch
        for place, (token, position, seq_id, has_logits) in enumerate(rows):
            batch.token[place], batch.pos[place], batch.logits[place] = token, position, has_logits
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, seq_id
        batch.n_tokens = len(rows)
        if llama_cpp.llama_decode(self.context, batch):
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_synchronize(self.context)

    def prompt(self, number: int, n_tokens: int, seq_id: int) -> None:
        """Evaluate a prompt that is unique to this number."""
        tokens = [1000 + (number * 7919 + position * 31) % 40_000 for position in range(n_tokens)]
        for first in range(0, n_tokens, BATCH):
            last = min(first + BATCH, n_tokens)
            self.decode([(tokens[k], k, seq_id, k == n_tokens - 1) for k in range(first, last)])

    def fork(self, source: int, target: int) -> None:
        """Copy a sequence."""
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def steps(self, positions: list[int], n: int) -> float:
        """Return the milliseconds of a step, the minimum of n. positions: where each sequence continues."""
        least = float("inf")
        for step in range(n):
            began = time.perf_counter()
            self.decode([(2000 + seq_id, at + step, seq_id, True) for seq_id, at in enumerate(positions)])
            least = min(least, time.perf_counter() - began)
        return least * 1000

    def save(self, seq_id: int) -> Any:
        """Return the state of a sequence."""
        size = llama_cpp.llama_state_seq_get_size(self.context, seq_id)
        state = (ctypes.c_uint8 * size)()
        assert llama_cpp.llama_state_seq_get_data(self.context, state, size, seq_id) == size
        return state

    def restore(self, state: Any, seq_id: int) -> None:
        """Restore a sequence from the state of a unified cache."""
        state = converted(bytearray(state), self._format)
        state = (ctypes.c_uint8 * len(state)).from_buffer(state)
        assert llama_cpp.llama_state_seq_set_data(self.context, state, len(state), seq_id) == len(state)

    def close(self) -> None:
        """Free the context."""
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self.context)


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def measured(model: Any, layout: str, groups: int, n: int, n_tokens: int) -> tuple[float, float]:
    """Return seconds for all prompts, and milliseconds of a step."""
    n_seqs = groups * n + groups * n % 2
    pool = Pool(model, layout, n_seqs, n_tokens + STEPS + 1, groups * n_tokens + groups * n * (STEPS + 1) + 256)
    began = time.perf_counter()
    for group in range(groups):
        pool.prompt(group, n_tokens, group * n)
    seconds = time.perf_counter() - began
    for group in range(groups):
        for k in range(1, n):
            pool.fork(group * n, group * n + k)
    step = pool.steps([n_tokens] * (groups * n), STEPS)
    pool.close()
    return seconds, step


def measured_moved(model: Any, groups: int, n: int, n_tokens: int) -> tuple[float, float]:
    """Return the same as `measured`, with the prompts evaluated in a context of their own."""
    layout = "unified, off, bf16"
    small = Pool(model, layout, 2, n_tokens + 1, n_tokens + 256)
    pool = Pool(model, layout, groups * n + groups * n % 2, 0, groups * n_tokens + groups * n * (STEPS + 1) + 256)
    began = time.perf_counter()
    for group in range(groups):
        small.prompt(group, n_tokens, 0)
        pool.restore(small.save(0), group * n)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(small.context), False)
    seconds = time.perf_counter() - began
    for group in range(groups):
        for k in range(1, n):
            pool.fork(group * n, group * n + k)
    step = pool.steps([n_tokens] * (groups * n), STEPS)
    small.close()
    pool.close()
    return seconds, step


def change(model: Any, groups: int, n: int, n_tokens: int) -> str:
    """Measure moving sequences that have generated 64 tokens each from one layout into the other."""
    n_seqs, longest = groups * n, n_tokens + 64 + STEPS + 1
    unified = Pool(model, "unified, off, bf16", n_seqs, longest, groups * n_tokens + n_seqs * (64 + STEPS + 1) + 256)
    for group in range(groups):
        unified.prompt(group, n_tokens, group * n)
        for k in range(1, n):
            unified.fork(group * n, group * n + k)
    before = unified.steps([n_tokens] * n_seqs, 64)
    began = time.perf_counter()
    states = [unified.save(seq_id) for seq_id in range(n_seqs)]
    out = time.perf_counter() - began
    made, size = unified.seconds, unified.bytes
    unified.close()
    streams = Pool(model, "streams, off, bf16", n_seqs, longest, 0)
    began = time.perf_counter()
    for seq_id, state in enumerate(states):
        streams.restore(state, seq_id)
    back = time.perf_counter() - began
    after = streams.steps([n_tokens + 64] * n_seqs, STEPS)
    text = (
        f"| {groups} x {n} | {made:.2f}; {size >> 20} | {out:.2f} ({sum(map(len, states)) >> 20}) | "
        f"{streams.seconds:.2f}; {streams.bytes >> 20} | {back:.3f} | {before:.0f} to {after:.0f} |"
    )
    streams.close()
    return text


def large_model(path: Path) -> Path:
    """Return a random model with the shape of Llama 3.2 1B."""
    if not path.exists():
        sys.path += [str(Path(__file__).parents[2] / "tests" / "support")]
        import gguf
        from tiny_model import write_tiny_model

        write_tiny_model(
            path, n_layer=16, n_embd=2048, n_head=32, n_head_kv=8, n_ff=8192, n_vocab=49_152, is_tied=True,
            weight_type=gguf.GGMLQuantizationType.BF16, layers_alike=True, scale=0.02, n_ctx_train=32_768,
        )  # fmt: skip
    return path


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=600, help="of each prompt (%(default)s)")
    parser.add_argument("--rounds", type=int, default=2, help="of which the least times count (%(default)s)")
    parser.add_argument("--large", type=Path, metavar="FILE")
    parser.add_argument("--most", type=int, default=32, help="sequences at once (%(default)s)")
    arguments = parser.parse_args()
    settings = Settings(log_level="error")
    start(settings)
    weights = large_model(arguments.large) if arguments.large else choose(find_model(None), Settings()).weights
    model = load_model(weights, settings)
    shapes = [shape for shape in SHAPES if shape[0] * shape[1] <= arguments.most]
    print(f"{weights.name}, {physical_cores()} threads, prompts of {arguments.tokens} tokens.")
    print("Seconds for all prompts; milliseconds of a step.\n")
    print("| prompts x alternatives |", " | ".join([*LAYOUTS, "apart, off, bf16"]), "|")
    print("|---" * (2 + len(LAYOUTS)), "|", sep="")
    for groups, n in shapes:
        least: dict[str, tuple[float, float]] = {}
        for _ in range(arguments.rounds):
            times = {layout: measured(model, layout, groups, n, arguments.tokens) for layout in LAYOUTS}
            times["apart"] = measured_moved(model, groups, n, arguments.tokens)
            for name, (seconds, step) in times.items():
                so_far = least.get(name, (seconds, step))
                least[name] = min(so_far[0], seconds), min(so_far[1], step)
        print(f"| {groups} x {n} |", " | ".join(f"{s:.1f}; {step:.0f}" for s, step in least.values()), "|", flush=True)
    print("\nFrom unified to streams, after 64 tokens of each alternative: seconds (and MiB).\n")
    print("| | unified made; MiB | states out (MiB) | streams made; MiB | states in | ms a step |")
    print("|---|---|---|---|---|---|")
    for groups, n in ((4, 4), (16, 1), (16, 2)):
        if groups * n <= arguments.most:
            print(change(model, groups, n, arguments.tokens), flush=True)


if __name__ == "__main__":
    main()
