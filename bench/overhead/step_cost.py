"""Measure the overhead of a step besides the decode: sampling, text and bookkeeping, and writing the events.

usage: python bench/overhead/step_cost.py [MODEL.gguf | --vocab N]

--vocab generates a model with random weights, in the size of Gemma 3 270M, with N tokens in its vocabulary.
The program prints milliseconds per step, and everything but the decode as a share of the decode. The numbers are
medians over the steps of one run.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from srb import CompletionRequest, Engine, LlamaBackend, SamplingParams, Settings
from srb.engine.backend import Batch, Logprobs
from srb.llama.sampling.candidates import Floats
from srb.llama.sampling.sampler import LlamaSampler
from srb.wire.native import reply as native


def ban_last(tokens: Any, logits: Floats) -> None:
    """A cheap `logits_processor`, to measure the cost of having one."""
    logits[tokens[-1]] = -np.inf


STEPS = 100
PROMPT = "The quick brown fox jumps over the lazy dog. " * 10
KINDS = {
    "default": SamplingParams(),
    "greedy": SamplingParams(temperature=0),
    "penalties": SamplingParams(repeat_penalty=1.1, frequency_penalty=0.1, repeat_last_n=256),
    "dry": SamplingParams(dry_multiplier=0.8, dry_penalty_last_n=-1),
    "grammar": SamplingParams(grammar='root ::= ([a-z ,."\']+ "\\n"?)+'),
    "logits_processor": SamplingParams(logits_processor=ban_last),
    "logprobs 5": SamplingParams(),
    "logprobs 20": SamplingParams(),
}


class Clock:
    """Sums up the time of the functions that are called through it."""

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
    """A sampler that times its calls."""

    def __init__(self, sampler: LlamaSampler, clock: Clock) -> None:
        self._sampler, self._clock = sampler, clock

    def sample(self, logits: Floats, excluded: Collection[int] = (), biases: Mapping[int, float] | None = None) -> int:
        token: int = self._clock.time(self._sampler.sample, logits, excluded, biases)
        return token

    def logprobs(self, token: int, top: int) -> Logprobs:
        result: Logprobs = self._clock.time(self._sampler.logprobs, token, top)
        return result

    def forced(self, most: int) -> list[int]:
        return self._sampler.forced(most)

    def close(self) -> None:
        self._sampler.close()


class TimedBackend(LlamaBackend):
    """A backend that times decoding and sampling."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.decoding, self.sampling = Clock(), Clock()

    def decode(self, batch: Batch, interrupted: Callable[[], bool] | None) -> bool:
        done: bool = self.decoding.time(super().decode, batch, interrupted)
        return done

    def logprobs(self, logits: Floats, token: int, top: int) -> Logprobs:
        result: Logprobs = self.sampling.time(super().logprobs, logits, token, top)
        return result

    def sampler(
        self,
        params: SamplingParams,
        compiled: Any,
        prompt: tuple[int, ...],
        begun: tuple[int, ...] = (),
        healed: bytes = b"",
    ) -> Any:
        return TimedSampler(super().sampler(params, compiled, prompt, begun, healed), self.sampling)


def measure(backend: TimedBackend, params: SamplingParams, n: int, logprobs: int | None) -> list[float]:
    """Return the median milliseconds of decoding, sampling, text and bookkeeping, and writing in a step."""
    engine = Engine(backend, default_max_tokens=STEPS)
    branches = dataclasses.replace(params, ignore_eos=params.grammar is None).alternatives(n)
    engine.add_request(CompletionRequest((engine.tokenize(PROMPT),), branches, logprobs=logprobs))
    rows = []
    while engine.has_work:
        start = time.perf_counter()
        events = engine.step()
        step = time.perf_counter() - start
        start = time.perf_counter()
        for event in events:
            json.dumps(native.to_json(event, model="", created=0, ignored=[]))
        writing = time.perf_counter() - start
        decoding, sampling = backend.decoding.take(), backend.sampling.take()
        rows.append((decoding, sampling, step - decoding - sampling, writing))
    steady = rows[3:-2] or rows  # without admission, prefill and the end
    return [statistics.median(column) * 1000 for column in zip(*steady, strict=True)]


def model_with(n_vocab: int, folder: Path) -> Path:
    """Return a random-weight model in the size of Gemma 3 270M, with this vocabulary size."""
    sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))
    from tiny_model import write_tiny_model

    q8 = gguf.GGMLQuantizationType.Q8_0
    return write_tiny_model(
        folder / f"vocab-{n_vocab}.gguf",
        n_vocab=n_vocab,
        n_layer=18,
        n_embd=640,
        n_head=4,
        n_ff=2048,
        weight_type=q8,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--vocab", type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = model_with(options.vocab, Path(folder)) if options.vocab else options.model
        measure_all(Settings(model=model))


def measure_all(settings: Settings) -> None:
    """Print the table for the model of these settings."""
    with TimedBackend(settings) as backend:
        print(f"{backend.path.name}, {backend.tokenizer.n_vocab} tokens in the vocabulary, ms per step\n")
        print("| samplers | n | decode | sample | text and books | write | beside the decode |")
        print("|---|---|---|---|---|---|---|")
        for kind, params in KINDS.items():
            for n in (1, 8, 32):
                logprobs = int(kind.split()[1]) if kind.startswith("logprobs") else None
                decode, sample, text, write = measure(backend, params, n, logprobs)
                share = (sample + text + write) / decode
                print(f"| {kind} | {n} | {decode:.1f} | {sample:.2f} | {text:.2f} | {write:.2f} | {share:.1%} |")


if __name__ == "__main__":
    main()
