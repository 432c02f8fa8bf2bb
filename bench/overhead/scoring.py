"""Measure the cost of scoring 4 continuations of each of 50 contexts, as evaluation harnesses do.

usage: python bench/overhead/scoring.py [MODEL.gguf]

All but `again` start with a new engine. `one request` has `echo`, `logprobs` and `max_tokens` 1, as lm-eval sends it;
`again` repeats the same request; `one by one` has a request for each text. `uncached` is `one request` with
`cache_prompt` false, where nothing is shared. `score` calls `Engine.score` for each context.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from srb import LLM, CompletionRequest, Engine, LlamaBackend, SamplingParams, Settings

CONTEXTS = 50
THINGS = ["lighthouse", "harbour", "violin", "garden", "railway", "mountain", "library", "kitchen", "theatre", "river"]
PLACES = ["north", "south", "east", "west", "middle"]
QUESTION = (
    "Read what the visitor wrote about the {thing} in the {place} of the country, number {number} of the collection, "
    "and choose how the story goes on. She stood in front of the {thing} for a long time, looked at the clouds, and"
)
ENDS = [
    " went home because it began to rain.",
    " asked the old man for the key.",
    " forgot why she had come here.",
    " counted the windows once again.",
]


def main() -> None:
    model = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with LlamaBackend(Settings(model=model)) as backend:
        tokenize = Engine(backend).tokenize
        contexts = [
            tokenize(QUESTION.format(thing=THINGS[k % 10], place=PLACES[k // 10], number=k)) for k in range(CONTEXTS)
        ]
        ends = [tokenize(end, is_prompt=False) for end in ENDS]
        texts = [context + end for context in contexts for end in ends]
        print(f"{len(texts)} texts of {sum(map(len, texts))} tokens, {len(set(contexts))} contexts of")
        print(f"{sum(map(len, contexts))} tokens, continuations of {CONTEXTS * sum(map(len, ends))}")
        engine = _Measured(backend, cache_bytes=1 << 30)
        for name in ("one request", "again"):
            engine.measure(name, lambda: engine.echo(texts))
        engine = _Measured(backend, cache_bytes=1 << 30)
        engine.measure("one by one", lambda: [engine.echo([text]) for text in texts])
        engine = _Measured(backend, cache_bytes=1 << 30)
        engine.measure("score", lambda: [LLM(engine).score(context, ends) for context in contexts])
        engine = _Measured(backend, cache_bytes=1 << 30)
        engine.measure("uncached", lambda: engine.echo(texts, cache_prompt=False))


class _Measured(Engine):
    def echo(self, texts: list[tuple[int, ...]], *, cache_prompt: bool = True) -> int:
        """Score texts, and return the number of events."""
        params = SamplingParams(max_tokens=1, temperature=0, seed=0)
        asked = CompletionRequest(tuple(texts), (params,), echo=True, logprobs=1, cache_prompt=cache_prompt)
        return len([*LLM(self).run(asked)])

    def measure(self, name: str, work: Callable[[], object]) -> None:
        """Run some work, and print its cost."""
        before, began = self.stats(), time.perf_counter()
        work()
        seconds, after = time.perf_counter() - began, self.stats()
        prompts, rows, known, steps = (
            getattr(after, each) - getattr(before, each)
            for each in ("prompt_tokens_evaluated", "rows", "prompt_tokens_cached", "steps")
        )
        print(f"{name:10} {seconds:6.1f} s, {prompts + rows:6} tokens evaluated, {known:6} known, {steps:4} decodes")


if __name__ == "__main__":
    main()
