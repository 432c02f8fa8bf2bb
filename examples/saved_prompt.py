"""Evaluate a long prompt once, and save its state to a file for the next start of the program.

usage: python examples/saved_prompt.py [MODEL.gguf]
"""

import sys
import tempfile
import time
from pathlib import Path

from srb import LLM, SamplingParams, Settings

SETTINGS = Settings(model=Path(sys.argv[1]) if len(sys.argv) > 1 else None, ctx_size=2048)
BUILDERS = "You are a helpful gardener. " + " ".join(f"Rule {k}: water plant number {k} on day {k}." for k in range(30))


def main() -> None:
    """Save the state of BUILDERS, and load it in another engine."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rules.state")
        with LLM.from_settings(SETTINGS) as llm:
            began = time.monotonic()
            n_tokens = llm.save(path, BUILDERS)
            print(f"{n_tokens} tokens evaluated in {time.monotonic() - began:.2f} s, {path.stat().st_size} bytes saved")
        with LLM.from_settings(SETTINGS) as llm:
            began = time.monotonic()
            prompt = llm.load(path)
            question = llm.engine.tokenize(" Which plant comes first? It is plant number", is_prompt=False)
            texts = llm.generate_texts((*prompt, *question), 3, SamplingParams(seed=1, max_tokens=8))
            n_evaluated = llm.engine.stats().prompt_tokens_evaluated
            print(f"{n_evaluated} tokens evaluated, {time.monotonic() - began:.2f} s")
            for text in texts:
                print(repr(text))


if __name__ == "__main__":
    main()
