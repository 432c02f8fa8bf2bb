"""Bridges on llama.cpp, on each kind of memory: a suffix after a middle has the probability that scoring gives."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
from alone import KINDS, tiny_model
from driver import check_order, own, request, run, stops, tokens_of

from srb.engine.engine import Engine
from srb.engine.request import CompletionRequest
from srb.llama.backend import LlamaBackend
from srb.llm import LLM
from srb.options.settings import Settings

PROMPT = "Once upon a time, there was a little dragon who lived in a castle by the sea."
SUFFIX = " In the morning he was gone, and nobody knew where."
SENTENCES = r"(([a-z]{2,4} ){1,3}[a-z]{2,4}\. )*"
ASCII = tuple((byte, -math.inf) for byte in range(128, 256))  # a text that ends within a character isn't shown whole
N = 3

CASES: dict[str, dict[str, Any]] = {
    "all are found": {"n_candidates": N},
    "the best of more": {"n_candidates": 5},
    "stops at the suffix": {"n_candidates": 5, "stop_at_suffix": True},
}


@pytest.fixture(scope="module", params=KINDS)
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaBackend]:
    """A model with F32 weights, on which rounding changes log-probabilities by less than 1e-4."""
    model = tiny_model(request.param, tmp_path_factory.mktemp(request.param))
    exact: dict[str, Any] = {"threads": 1, "flash_attn": "off", "cache_type_k": "f32", "cache_type_v": "f32"}
    with LlamaBackend(Settings(model=model, ctx_size=2048, parallel=8, batch_size=64, **exact)) as backend:
        yield backend


def asked(seed: int, case: dict[str, Any], **params: Any) -> CompletionRequest:
    sampled = request(PROMPT, N, seed=seed, ignore_eos=True, logit_bias=ASCII, **{"max_tokens": 40} | params)
    return dataclasses.replace(sampled, suffix=SUFFIX, **case)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("params", [{}, {"regex": SENTENCES}, {"max_tokens": 0}], ids=["", "sentences", "no middle"])
def test_the_suffix_is_as_likely_as_a_table_says(backend: LlamaBackend, case: str, params: dict[str, Any]) -> None:
    engine = Engine(backend, cache_bytes=10_000_000)
    for seed in range(2):
        each = asked(seed, CASES[case], **params)
        other = request(PROMPT[:40], 2, seed=seed, max_tokens=60, ignore_eos=True)
        both = run(engine, other, each)
        events = own(both, each)
        check_order(events, each)
        ends, suffix = stops(events), engine.tokenize(SUFFIX, is_prompt=False)
        for index in range(N):
            context = (*engine.tokenize(PROMPT), *tokens_of(events, index))
            (score,) = LLM(engine).score(context, [suffix])
            assert ends[index].suffix_logprob == pytest.approx(score.logprob, rel=1e-6)
        in_order = sorted(range(N), key=lambda index: ends[index].rank or 0)
        scores = [ends[index].suffix_logprob or 0.0 for index in in_order]
        assert scores == sorted(scores, reverse=True)
    assert backend.used_seq_ids() == []
