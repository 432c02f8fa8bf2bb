"""Evaluate a long prompt once, and save its state to a file for the next start of the program.

usage: python examples/saved_prompt.py [MODEL.gguf]
"""

import sys
import tempfile
import time
from pathlib import Path

from srb import Engine, LlamaBackend, SamplingParams, Settings

SETTINGS = Settings(model=Path(sys.argv[1]) if len(sys.argv) > 1 else None, ctx_size=2048)
BUILDERS = "You are a helpful gardener. " + " ".join(f"Rule {k}: water plant number {k} on day {k}." for k in range(30))


def main() -> None:
    """Save the state of RULES, and load it in another engine."""
    with LlamaBackend(SETTINGS) as backend, tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rules.state")
        began = time.monotonic()
        n_tokens = Engine(backend, cache_bytes=1 << 28).save(path, BUILDERS)
        print(f"{n_tokens} tokens evaluated in {time.monotonic() - began:.2f} s, {path.stat().st_size} bytes saved")

        began = time.monotonic()
        engine = Engine(backend, cache_bytes=1 << 28)
        prompt = engine.load(path)
        question = engine.tokenize(" Which plant comes first? It is plant number", is_prompt=False)
        texts = engine.generate_texts((*prompt, *question), 3, SamplingParams(seed=1, max_tokens=8))
        print(f"{engine.stats().prompt_tokens_evaluated} tokens evaluated, {time.monotonic() - began:.2f} s")
        for text in texts:
            print(repr(text))


if __name__ == "__main__":
    main()
