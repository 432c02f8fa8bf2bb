"""Prompts whose last token is taken back, on the real llama.cpp."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver import few, request, run
from llama.sampling.test_samplers import assert_agrees, masked, softmax
from tiny_model import N_VOCAB, write_tiny_model

from srb.engine.backend import Batch
from srb.engine.engine import Engine
from srb.engine.events import StreamEvent
from srb.llama.backend import LlamaBackend

PROMPT = "the cat and t"
BEGIN_WITH_T = [ord("t"), *range(N_VOCAB, N_VOCAB + 40)]  # whose names are t258, t259 and so on


@pytest.mark.parametrize("arch", few("llama", "mamba", many=["gemma3", "jamba"]))
def test_first_tokens_are_as_likely_as_after_the_prompt_without_its_last_token(
    load: Callable[..., LlamaBackend], tmp_path: Path, arch: str
) -> None:
    backend = load(model=write_tiny_model(tmp_path / "model.gguf", arch=arch, n_vocab=N_VOCAB + 40))
    assert list(backend.tokenizer.beginning_with(b"t")) == BEGIN_WITH_T
    assert list(backend.tokenizer.beginning_with(b"t29")) == list(range(290, 298))
    assert list(backend.tokenizer.beginning_with(b"t2999")) == []
    assert backend.tokenizer.beginning_with(b"t") is backend.tokenizer.beginning_with(b"t")  # made once for n
    batch = Batch()
    row = batch.add(tuple(PROMPT.encode())[:-1], 0, 0, outputs=1)
    backend.decode(batch, None)
    logits = backend.logits(row).astype(np.float64)
    backend.remove(0)

    off: dict[str, Any] = {"samplers": (), "temperature": 1.0, "max_tokens": 1}
    healed = dataclasses.replace(request(PROMPT, 1000, **off), heal=True, logprobs=0)
    engine = Engine(backend)
    events = [event for event in run(engine, healed) if isinstance(event, StreamEvent)]
    assert_agrees(Counter(event.sampled[0] for event in events), softmax(masked(logits, BEGIN_WITH_T)))
    own = np.log(softmax(logits))
    for event in events:
        assert event.token
        assert event.token.logprob == pytest.approx(own[event.token.id], abs=1e-4)
        assert event.text == event.token.piece.decode()[1:]
    assert engine.stats().prompt_tokens_evaluated == len(PROMPT) - 1
    assert backend.used_seq_ids() == []
