"""Use a custom logits processor: write a text without the letter e, and one with it.

usage: python examples/logits_processor.py [MODEL.gguf]
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from srb import CompletionRequest, Engine, LlamaBackend, SamplingParams, Settings, StreamEvent

SETTINGS = Settings(model=Path(sys.argv[1]) if len(sys.argv) > 1 else None, ctx_size=2048)


def main() -> None:
    """Sample two alternatives with the same seed, one of them with the logits processor."""
    texts = {"any letter": "", "no letter e": ""}
    with LlamaBackend(SETTINGS) as backend:
        engine = Engine(backend)
        tokenizer = engine.model.tokenizer
        has_e = np.array([b"e" in tokenizer.piece(token).lower() for token in range(tokenizer.n_vocab)])

        def without_e(tokens: NDArray[np.int32], logits: NDArray[np.float32]) -> None:
            logits[has_e] = -np.inf

        branches = tuple(
            SamplingParams(seed=7, max_tokens=24, logits_processor=function) for function in (None, without_e)
        )
        engine.add_request(CompletionRequest((engine.tokenize("Once upon a time,"),), branches))
        while engine.has_work:
            for event in engine.step():
                if isinstance(event, StreamEvent):
                    texts[list(texts)[event.index]] += event.text
    for name, text in texts.items():
        print(f"{name}: {text!r}")


if __name__ == "__main__":
    main()
