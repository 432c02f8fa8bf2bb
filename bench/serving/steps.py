"""Show where the seconds of many prompts go: the decodes by kind, and the ubatches that llama.cpp makes of them.

usage: python bench/serving/steps.py [--only 16x1,8x4,1x32/100/200] [--all] [--layouts] [OPTION OF srb serve...]

C distinct prompts of W words arrive at once at an engine in this process, each for n alternatives of M tokens (CxN/W/M,
or a name in many_prompts.py). The program prints a row for each kind of decode: rows alone, chunks alone, and both.
--all also prints each decode. --layouts runs each load in three layouts, and not in the one that srb would choose.
"""

import argparse
import collections
import itertools
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import llama_cpp
from compare import text
from many_prompts import SHAPES

from srb.engine.backend import Batch
from srb.engine.batch import in_use
from srb.engine.engine import Engine
from srb.engine.events import StreamEvent
from srb.engine.kv_cache.allocator import Layout
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.llama.backend import LlamaBackend
from srb.llama.native.params import round_up
from srb.options.arguments import Parser
from srb.options.settings import add_arguments, load_settings


@dataclass(frozen=True)
class Decode:
    """One decode: its rows, its chunks, the ubatches that llama.cpp makes of it, and its seconds."""

    rows: int
    chunks: tuple[int, ...]
    ubatches: tuple[int, ...]
    seconds: float
    predicted: float

    @property
    def kind(self) -> str:
        return " and ".join(["rows"] * (self.rows > 0) + ["chunks"] * (len(self.chunks) > 0))


def ubatches(seq_ids: list[int], n_ubatch: int, *, is_unified: bool) -> tuple[int, ...]:
    """Return the sizes of the ubatches, by the rules of llama.cpp's `split_simple` and `split_equal`."""
    if is_unified:
        return tuple(min(n_ubatch, len(seq_ids) - start) for start in range(0, len(seq_ids), n_ubatch))
    left = collections.Counter(seq_ids)
    found = list[int]()
    while left:
        first = next(iter(left))  # in the order of the batch, which is sorted
        together = [first]
        while together[-1] + 1 in left:
            together.append(together[-1] + 1)
        n = min(min(left[each] for each in together), max(1, n_ubatch // len(together)))
        found.append(n * len(together))
        left.subtract(dict.fromkeys(together, n))
        left = +left
    return tuple(found)


def watch(engine: Engine, backend: LlamaBackend, decodes: list[Decode]) -> None:
    """Append each decode of the engine to `decodes`."""
    decode = type(backend).decode

    def watched(batch: Batch, interrupted: Callable[[], bool] | None) -> bool:
        sizes = collections.Counter(batch.seq_ids)
        places = dict[int, int]()
        for place, seq_id in enumerate(batch.seq_ids):
            places.setdefault(seq_id, place)
        chunks = {each: n for each, n in sizes.items() if n > 1}
        rows = [batch.positions[places[each]] for each in sizes if each not in chunks]
        is_unified = backend.layout.is_unified
        costs = backend.costs.among(in_use(engine._scheduler.prompts))
        predicted = costs.of_rows(rows) if rows else costs.step
        starts = {each: batch.positions[places[each]] for each in chunks}
        predicted += sum(n * costs.of_prompt_token(starts[each] + n // 2) for each, n in chunks.items())
        began = time.perf_counter()
        result = decode(backend, batch, interrupted)
        seconds = time.perf_counter() - began
        n_ubatch = llama_cpp.llama_n_ubatch(backend._contexts.current.pointer)
        found = ubatches(sorted(batch.seq_ids), n_ubatch, is_unified=is_unified)
        decodes.append(Decode(len(rows), tuple(chunks.values()), found, seconds, predicted))
        return result

    backend.decode = watched  # type: ignore[method-assign]


def shape_of(load: str) -> tuple[int, int, int, int]:
    """Return clients, alternatives, words and tokens."""
    clients, n, words, tokens = SHAPES[load] if load in SHAPES else map(int, re.split("[x/]", load))
    return clients, n, words, tokens


def layouts(backend: LlamaBackend, shape: tuple[int, int, int, int]) -> tuple[Layout, ...]:
    """Return a unified cache without flash attention, one with it, and streams with it."""
    clients, n, words, tokens = shape
    n_seqs = 2 * backend.n_parallel + 3
    unified = (Layout(True, backend.n_cells, n_seqs, kind) for kind in ("off", "auto"))
    return *unified, Layout(False, round_up(2 * words + tokens), min(max(8, clients * n), backend.n_parallel), "auto")


def measured(backend: LlamaBackend, shape: tuple[int, int, int, int], seed: int) -> list[Decode]:
    """Run a load, and print the table of its decodes, which are returned."""
    clients, n, words, tokens = shape
    engine = Engine(backend, cache_bytes=1 << 30)
    watch(engine, backend, decodes := list[Decode]())
    began = time.perf_counter()
    firsts, times = dict[str, float](), dict[tuple[str, int], list[float]]()
    for k in range(clients):
        params = (SamplingParams(max_tokens=tokens, ignore_eos=True, seed=k),) * n
        engine.add_request(CompletionRequest((text(words, 1000 * seed + k),), params, id=str(k)))
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, StreamEvent):
                now = time.perf_counter() - began
                firsts.setdefault(event.request_id, now)
                times.setdefault((event.request_id, event.index), []).append(now)
    seconds = time.perf_counter() - began
    pause = max((b - a for each in times.values() for a, b in itertools.pairwise(each)), default=0.0)
    print(f"\n{clients} x {n}, {words} words, {tokens} tokens, {backend.layout}, {backend.layout.flash_attn}:")
    print(f"{seconds:.2f} s, latest first token {max(firsts.values()):.2f}, longest pause {pause:.2f}\n")
    print("| decodes | number | rows | tokens | ubatches | seconds | predicted |\n" + "|---" * 7 + "|")
    kinds = collections.defaultdict[str, list[Decode]](list)
    for each in decodes:
        kinds[each.kind].append(each)
    for kind, those in kinds.items():
        counts = [sum(each.rows for each in those), sum(sum(each.chunks) for each in those)]
        counts.append(sum(len(each.ubatches) for each in those))
        spent, predicted = sum(each.seconds for each in those), sum(each.predicted for each in those)
        print(f"| {kind} | {len(those)} | {' | '.join(map(str, counts))} | {spent:.2f} | {predicted:.2f} |")
    print(f"| between decodes | | | | | {seconds - sum(each.seconds for each in decodes):.2f} | |", flush=True)
    return decodes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="16x1,8x4,4x4,1x8")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--layouts", action="store_true")
    arguments, options = parser.parse_known_args()
    add_arguments(serve := Parser())
    with LlamaBackend(load_settings(serve.parse(options))) as backend:
        for seed, load in enumerate(arguments.only.split(",")):
            shape = shape_of(load)
            for layout in layouts(backend, shape) if arguments.layouts else (None,):
                if layout:
                    backend._contexts.choose = lambda *_, layout=layout: layout  # type: ignore[method-assign]
                decodes = measured(backend, shape, seed)
                if arguments.all:
                    for each in decodes:
                        print(each)


if __name__ == "__main__":
    main()
