"""What a decode step costs beside the decode: sampling, text and bookkeeping, and writing the events.

usage: python bench/step_cost.py [MODEL.gguf]

Prints milliseconds per step, and what isn't decoding as a share of the decode. Medians over the steps of one run.
"""

import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from srb import CompletionRequest, Engine, LlamaBackend, SamplingParams, Settings
from srb.engine.backend import Batch
from srb.llama.sampler import LlamaSampler
from srb.server import native

STEPS = 100
PROMPT = "The quick brown fox jumps over the lazy dog. " * 10
KINDS = {
    "default": SamplingParams(),
    "greedy": SamplingParams(temperature=0),
    "penalties": SamplingParams(repeat_penalty=1.1, frequency_penalty=0.1, repeat_last_n=256),
    "dry": SamplingParams(dry_multiplier=0.8, dry_penalty_last_n=-1),
    "grammar": SamplingParams(grammar='root ::= ([a-z ,."\']+ "\\n"?)+'),
}


class Clock:
    """Sums up the time spent in what it wraps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def time(self, function: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            self.seconds += time.perf_counter() - start

    def take(self) -> float:
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class TimedSampler:
    """A sampler whose draws are timed."""

    def __init__(self, sampler: LlamaSampler, clock: Clock) -> None:
        self._sampler, self._clock = sampler, clock

    def sample(self, row: int, excluded: Collection[int] = ()) -> int:
        token: int = self._clock.time(self._sampler.sample, row, excluded)
        return token

    def close(self) -> None:
        self._sampler.close()


class TimedBackend(LlamaBackend):
    """A backend whose decodes and draws are timed."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.decoding, self.sampling = Clock(), Clock()

    def decode(self, batch: Batch, interrupted: Callable[[], bool] | None) -> bool:
        done: bool = self.decoding.time(super().decode, batch, interrupted)
        return done

    def sampler(self, params: SamplingParams, compiled: Any, prompt: tuple[int, ...]) -> Any:
        return TimedSampler(super().sampler(params, compiled, prompt), self.sampling)


def measure(backend: TimedBackend, params: SamplingParams, n: int) -> list[float]:
    """Median milliseconds of decoding, sampling, text and bookkeeping, and writing, per step."""
    engine = Engine(backend, default_max_tokens=STEPS)
    branches = dataclasses.replace(params, ignore_eos=params.grammar is None).alternatives(n)
    engine.add_request(CompletionRequest((engine.tokenize(PROMPT),), branches))
    rows = []
    while engine.has_work:
        start = time.perf_counter()
        events = engine.step()
        step = time.perf_counter() - start
        start = time.perf_counter()
        for event in events:
            json.dumps(native.to_json(event, model="", created=0, ignored=[]), ensure_ascii=False)
        writing = time.perf_counter() - start
        decoding, sampling = backend.decoding.take(), backend.sampling.take()
        rows.append((decoding, sampling, step - decoding - sampling, writing))
    steady = rows[3:-2]  # without admission, the prompt and the end
    return [statistics.median(column) * 1000 for column in zip(*steady, strict=True)]


def main() -> None:
    settings = Settings(model=Path(sys.argv[1]) if len(sys.argv) > 1 else None, max_n=32)
    with TimedBackend(settings) as backend:
        print(f"{backend.path.name}, {backend.tokenizer.n_vocab} tokens in the vocabulary, ms per step\n")
        print("| samplers | n | decode | sample | text and books | write | beside the decode |")
        print("|---|---|---|---|---|---|---|")
        for kind, params in KINDS.items():
            for n in (1, 8, 32):
                decode, sample, text, write = measure(backend, params, n)
                share = (sample + text + write) / decode
                print(f"| {kind} | {n} | {decode:.1f} | {sample:.2f} | {text:.2f} | {write:.2f} | {share:.1%} |")


if __name__ == "__main__":
    main()
