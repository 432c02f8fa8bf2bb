"""Measure the cost of caching finished answers, compared with computing them again, and the next request's wait.

usage: python bench/overhead/saving.py [MODEL.gguf]

8 alternatives of 400 tokens end together, and another request arrives at once. On a GPU the cells of such
answers are copied one by one; docs/figures/benchmarks.md explains what srb does about it.
"""

import sys
import time
from pathlib import Path

from srb import LLM, CompletionRequest, Engine, LlamaBackend, SamplingParams, Settings, StreamEvent

N, LENGTH = 8, 400
PROMPT = "The old lighthouse keeper said that nobody had seen the ship. " * 40


class TimedBackend(LlamaBackend):
    """A backend that measures how long it takes to save states of answers, and of how many tokens."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.seconds, self.n_tokens = 0.0, 0

    def save(self, seq_id: int, start: int, end: int, max_bytes: int) -> bytearray | None:
        start_time = time.perf_counter()
        state = super().save(seq_id, start, end, max_bytes)
        if start:  # an answer; the prompt begins at 0
            self.seconds += time.perf_counter() - start_time
            self.n_tokens += end - start
        return state


def main() -> None:
    model = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with TimedBackend(Settings(model=model, ctx_size=8192)) as backend:
        engine = Engine(backend, cache_bytes=1 << 30)
        LLM(engine).generate_texts(
            "A card loads its programs when they are first used.", 2, SamplingParams(max_tokens=8)
        )
        before = engine.stats()
        branches = SamplingParams(ignore_eos=True, max_tokens=LENGTH, seed=1).alternatives(N)
        engine.add_request(CompletionRequest((engine.tokenize(PROMPT),), branches))
        while engine.stats().tokens_generated < before.tokens_generated + N * LENGTH:
            engine.step()
        after = engine.stats()
        start_time = time.perf_counter()
        engine.add_request(CompletionRequest((engine.tokenize("Once upon a time,"),), (SamplingParams(max_tokens=1),)))
        while not any(isinstance(event, StreamEvent) for event in engine.step()):
            pass
        waited = time.perf_counter() - start_time
        computing = (after.prompt_seconds - before.prompt_seconds) / (
            after.prompt_tokens_evaluated - before.prompt_tokens_evaluated
        )
        saving = backend.seconds / max(1, backend.n_tokens)
        print(f"a token of a prompt is computed in {1000 * computing:.4f} ms")
        print(f"a token of an answer is saved in {1000 * saving:.4f} ms; {backend.n_tokens} of {N * LENGTH} were saved")
        print(f"the next request's first text came after {waited:.3f} s")


if __name__ == "__main__":
    main()
