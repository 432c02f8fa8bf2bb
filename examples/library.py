"""Run the engine in a program without a server: step by step, and with asyncio.

usage: python examples/library.py [MODEL.gguf]
"""

import asyncio
import sys
from pathlib import Path

from srb import AsyncEngine, CompletionRequest, Engine, LlamaBackend, SamplingParams, Settings, StopEvent, StreamEvent

SETTINGS = Settings(model=Path(sys.argv[1]) if len(sys.argv) > 1 else None, ctx_size=2048)


def by_steps() -> None:
    """Sample with three temperatures and one seed."""
    temperatures = (0.2, 0.8, 1.4)
    branches = tuple(SamplingParams(temperature=t, seed=7, max_tokens=16) for t in temperatures)
    texts = [""] * len(branches)
    with LlamaBackend(SETTINGS) as backend:
        engine = Engine(backend)
        prompt = engine.tokenize("The old lighthouse keeper said")
        engine.add_request(CompletionRequest((prompt,), branches))
        while engine.has_work:
            for event in engine.step():
                if isinstance(event, StreamEvent):
                    texts[event.index] += event.text
    for temperature, text in zip(temperatures, texts, strict=True):
        print(f"temperature {temperature}: {text!r}")


async def with_asyncio() -> None:
    """Sample four alternatives, each up to the end of its first sentence."""
    params = SamplingParams(stop=(".",), max_tokens=60)
    async with AsyncEngine.from_settings(SETTINGS) as engine:
        prompt = engine.tokenize("Once upon a time,")
        async for event in engine.generate(CompletionRequest((prompt,), params.alternatives(4))):
            if isinstance(event, StopEvent):
                print(f"alternative {event.index} ended after {event.length} tokens: {event.finish_reason}")


if __name__ == "__main__":
    by_steps()
    asyncio.run(with_asyncio())
