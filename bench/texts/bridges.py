"""Measure how well the rest of a story follows middles that a bridge has chosen, and the cost of choosing.

usage: python bench/texts/bridges.py [MODEL.gguf] [--stories N]

`bridges.txt` has 40 short stories. One sentence of each, between bars, is taken out. For each story the model samples
16 middles after the text before the gap. The table has the mean log-probability of the rest (its first 64 tokens) per
token, after the chosen middle, after any middle, and after the true sentence; and the time for a story. Differences
have the half-width of their 95 % interval over the stories. With the default model, 40 stories take a quarter of an
hour on two cores; docs/figures/bridges.md has the result.
"""

import argparse
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from srb import LLM, CompletionRequest, Engine, LlamaBackend, SamplingParams, Settings, StopEvent

N = 16
MOST = 40  # tokens
STORIES = Path(__file__).with_suffix(".txt")


class Bench:
    """Run requests one after another, on one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.seconds = 0.0
        """The duration of the last request."""

    def ends(self, prompt: str, n: int, most: int, **fields: Any) -> list[StopEvent]:
        """Return the ends of n middles, by index."""
        branches = SamplingParams(max_tokens=most, min_tokens=min(4, most), seed=1).alternatives(n)
        began = time.monotonic()
        events = list(LLM(self._engine).run(CompletionRequest((prompt,), branches, **fields)))
        self.seconds = time.monotonic() - began
        return sorted((each for each in events if isinstance(each, StopEvent)), key=lambda each: each.index)

    def scores(self, prompt: str, suffix: str, n: int = 1, most: int = 0, **fields: Any) -> list[float]:
        """Return the log-probabilities of a suffix after n middles, for each of its tokens."""
        n_tokens = min(64, len(self._engine.tokenize(suffix, is_prompt=False)))
        ends = self.ends(prompt, n, most, suffix=suffix, **{"n_candidates": n} | fields)
        return [(end.suffix_logprob or 0.0) / n_tokens for end in ends]


def mean(values: Iterable[float]) -> str:
    """Return the mean over the stories."""
    return f"{statistics.fmean(values):.3f}"


def gain(values: list[float], others: list[float]) -> str:
    """Return the mean difference, with the half-width of its 95 % interval."""
    differences = [one - other for one, other in zip(values, others, strict=True)]
    half = 1.96 * statistics.stdev(differences) / len(differences) ** 0.5
    return f"{statistics.fmean(differences):+.3f} ± {half:.3f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--stories", type=int, default=40)
    asked = parser.parse_args()
    with LlamaBackend(Settings(model=asked.model, ctx_size=8192)) as backend:
        bench = Bench(Engine(backend))
        stories = [line.strip().split(" | ") for line in STORIES.read_text().splitlines()][: asked.stories]
        found: dict[str, list[float]] = {}
        seconds: dict[str, list[float]] = {}
        ranks = []

        def add(name: str, score: float | None) -> None:
            if score is not None:
                found.setdefault(name, []).append(score)
            seconds.setdefault(name, []).append(bench.seconds)

        for before, true, after in stories:
            rest = f" {after}"
            bench.ends(before, 1, 1)  # so that no measurement includes the prompt
            bench.ends(before, N, MOST)
            add("plain, 16 middles without the rest", None)
            every = bench.scores(before, rest, N, MOST, n_candidates=N)
            add("best of 16", max(every))
            add("any of the 16 (their mean)", statistics.fmean(every))
            cut = bench.scores(before, rest, 1, MOST, n_candidates=N, stop_at_suffix=True)[0]
            add("best of 16, `stop_at_suffix`", cut)
            add("no middle", bench.scores(before, rest)[0])
            truth = bench.scores(f"{before} {true}", rest)[0]
            add("the true sentence", truth)
            ranks.append(1 + sum(score > truth for score in every[: N - 1]))
        print(f"{backend.path.name}, {len(stories)} stories\n")
        print("| middle | of the rest, per token | beside any of the 16 | seconds |\n|---|---|---|---|")
        for name, times in seconds.items():
            scores = found.get(name)
            told = [mean(scores), gain(scores, found["any of the 16 (their mean)"])] if scores else ["", ""]
            print(f"| {name} | {told[0]} | {told[1]} | {statistics.fmean(times):.2f} |")
        first = sum(rank == 1 for rank in ranks)
        print(f"\nrank of the true sentence among {N}: {statistics.fmean(ranks):.1f} on average, {first} times 1")


if __name__ == "__main__":
    main()
