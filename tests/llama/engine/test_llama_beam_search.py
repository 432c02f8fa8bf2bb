"""Searches on real llama.cpp, on models of every kind of memory."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from driver import request, run, stops, tokens_of
from tiny_model import EOS, N_VOCAB, write_tiny_model

from srb.engine.engine import Engine
from srb.engine.events import StreamEvent
from srb.engine.sampling_params import SamplingParams
from srb.llama.backend import LlamaBackend

Load = Callable[..., LlamaBackend]


@pytest.mark.parametrize("ignore_eos", [True, False])
@pytest.mark.parametrize("may_end", [True, False])
def test_tokens_are_ranked_by_their_biased_logits(load: Load, may_end: bool, ignore_eos: bool) -> None:
    backend, logits = load(), np.random.default_rng(0).normal(0, 3, N_VOCAB).astype(np.float32)
    logits[[EOS, 7]] = 9, 8
    params = SamplingParams(logit_bias=((5, 12.0), (6, -math.inf)), stop_token_ids=(7,), ignore_eos=ignore_eos)
    expected = logits.astype(np.float64)
    expected[5] += 12
    expected[[6, *([EOS, 7] if not may_end else [EOS] if ignore_eos else [])]] = -np.inf
    expected -= np.logaddexp.reduce(expected)
    ranked = backend.ranker(params).rank(logits, 4, may_end=may_end)
    best = np.argsort(-expected)[: 4 + 2]  # beside four that go on, the two that end
    assert [token for token, _ in ranked] == best.tolist()
    assert [logprob for _, logprob in ranked] == pytest.approx(expected[best], abs=1e-5)
    assert backend.ranker(params).rank(np.full(N_VOCAB, -np.inf, np.float32), 4, may_end=may_end) == []


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba", "jamba"])
def test_a_beam_has_the_log_probabilities_of_its_text_alone(arch: str, load: Load, tmp_path: Path) -> None:
    """Far beyond the sliding window of a model that has one."""
    path = write_tiny_model(tmp_path / "tiny.gguf", arch=arch)
    backend = load(model=path, parallel=8)
    engine = Engine(backend, cache_bytes=10_000_000)
    each = request("Once upon a time, there was a prompt", 3, max_tokens=80, ignore_eos=True)
    asked = dataclasses.replace(each, search="beam", beams=6, return_tokens=True, logprobs=0)
    events = run(engine, asked)
    reported: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for event in events:
        if isinstance(event, StreamEvent):
            assert event.token
            assert event.token.logprob is not None
            reported[event.index].append(event.token.logprob)
    for index in range(3):
        tokens = tokens_of(events, index)
        assert len(tokens) == 80
        scored = dataclasses.replace(
            request("p", max_tokens=0), prompts=((*asked.prompts[0], *tokens),), echo=True, logprobs=0
        )
        alone = [each.token.logprob for each in run(engine, scored) if isinstance(each, StreamEvent) and each.token]
        assert reported[index] == pytest.approx(alone[-80:], abs=0.05)
        assert stops(events)[index].mean_logprob == pytest.approx(sum(reported[index]) / 80)
    again = run(engine, dataclasses.replace(asked, id="again"))  # from the cached prompt
    assert [tokens_of(again, index) for index in range(3)] == [tokens_of(events, index) for index in range(3)]
    assert backend.used_seq_ids() == []
