"""Measures what `--reproducible` costs: the same requests with and without it, in turn.

usage: python bench/overhead/reproducible.py [--model MODEL.gguf] [--weights bf16] [--rounds 3]

For prompts of 512 and 1,536 tokens, and n = 1, 8 and 32, the program prints the seconds of a request with 64 tokens for
each alternative, the least of all rounds, and how long a step takes then. `srb tune` is left out of both.
"""

import argparse
import time
from pathlib import Path

from srb import CompletionRequest, Engine, LlamaBackend, SamplingParams, Settings, StreamEvent

TEXT = "The old lighthouse keeper said that nobody had seen the ship for many years, but he still lit the lamp. "
LENGTHS, COUNTS, TOKENS = (512, 1536), (1, 8, 32), 64


def measure(engine: Engine, length: int, n: int) -> tuple[float, float]:
    """The seconds until the first token, and until the last one."""
    prompt = engine.tokenize(TEXT * (length // 16))[:length]
    params = SamplingParams(max_tokens=TOKENS, seed=1, ignore_eos=True)
    engine.add_request(CompletionRequest((prompt,), params.alternatives(n)))
    began, first = time.perf_counter(), 0.0
    while engine.has_work:
        if any(isinstance(event, StreamEvent) for event in engine.step()) and not first:
            first = time.perf_counter() - began
    return first, time.perf_counter() - began


def main() -> None:
    """Prints a row for each length and n."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--weights", default="file")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    usual = {"model": options.model, "weights": options.weights, "tune": False, "parallel": max(COUNTS)}
    print("prompt  n   usual: first, whole    reproducible: first, whole    whole, as a ratio")
    with (
        LlamaBackend(Settings(**usual)) as shared,
        LlamaBackend(Settings(**usual, reproducible=True, ctx_size=2048 * max(COUNTS))) as apart,
    ):
        for length in LENGTHS:
            for n in COUNTS:
                times = [[measure(Engine(each), length, n) for each in (shared, apart)] for _ in range(options.rounds)]
                (a, b), (c, d) = (map(min, zip(*each, strict=True)) for each in zip(*times, strict=True))
                print(f"{length:6} {n:2}   {a:12.2f} {b:6.2f} {c:20.2f} {d:6.2f} {d / b:20.2f}", flush=True)


if __name__ == "__main__":
    main()
