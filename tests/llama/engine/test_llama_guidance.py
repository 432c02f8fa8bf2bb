"""Guidance on the real llama.cpp, with the tiny models of each kind of memory."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from driver import request, run, tokens_of
from tiny_model import write_tiny_model

from srb.engine.backend import Batch
from srb.engine.engine import Engine
from srb.engine.request import CompletionRequest
from srb.llama.backend import LlamaBackend

PROMPT, NEGATIVE = b"p" * 40, tuple(b"q" * 30)


def asked(n: int = 1, **fields: object) -> CompletionRequest:
    defaults = {"seed": 3, "max_tokens": 12, "ignore_eos": True, "negative_prompt": NEGATIVE, "guidance_scale": 1.5}
    return request(PROMPT.decode(), n, **defaults | fields)


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba", "jamba"])
@pytest.mark.parametrize("scale", [0.0, 1.5])
def test_greedy_tokens_are_those_of_the_combined_logits(
    load: Callable[..., LlamaBackend], tmp_path: Path, arch: str, scale: float
) -> None:
    """As in two sequences that are decoded by hand."""
    backend = load(model=write_tiny_model(tmp_path / "model.gguf", arch=arch))
    sampled: list[int] = []
    for _ in range(8):
        rows = []
        for seq_id, prompt in enumerate((tuple(PROMPT), NEGATIVE)):
            batch = Batch()
            row = batch.add((*prompt, *sampled), 0, seq_id, outputs=1)
            assert backend.decode(batch, None)
            rows.append(backend.logits(row).copy())
            backend.remove(seq_id)
        guided = rows[1] + np.float32(scale) * (rows[0] - rows[1])
        guided[list(backend.tokenizer.ends)] = -np.inf
        sampled.append(int(guided.argmax()))
    events = run(engine := Engine(backend), asked(2, temperature=0, guidance_scale=scale, max_tokens=8))
    for index in range(2):
        assert tokens_of(events, index)[:4] == sampled[:4]  # later ones may differ by the last bit of a logit
    assert backend.used_seq_ids() == []
    assert engine.stats().cells == 0
