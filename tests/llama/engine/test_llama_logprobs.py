"""Log-probabilities against a plain forward pass."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from driver import request, run
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from srb.engine.engine import Engine
from srb.engine.events import PromptLogprobsEvent, StreamEvent, Token
from srb.engine.request import CompletionRequest
from srb.llama.backend import LlamaBackend
from srb.llama.sampling.candidates import Candidates, logprobs

Floats = np.ndarray[Any, np.dtype[np.float64]]


def reference(logits: Floats) -> Floats:
    """log softmax in double precision, the slow way."""
    return np.asarray(logits - logits.max() - math.log(math.fsum(np.exp(logits - logits.max()))))


@given(
    arrays.arrays(np.float32, st.integers(1, 1500), elements=st.floats(-50, 50, width=32)),
    st.integers(0, 100),
    st.randoms(),
)
def test_the_likeliest_are_those_of_a_full_sort(logits: Any, top: int, random: Any) -> None:
    token = random.randrange(len(logits))
    logprob, likeliest = logprobs(logits, token, top)
    expected = reference(logits.astype(np.float64))
    assert logprob == pytest.approx(expected[token], abs=1e-4)
    assert [place for place, _ in likeliest] == np.argsort(-logits, kind="stable")[:top].tolist()
    assert [p for _, p in likeliest] == pytest.approx(expected[[place for place, _ in likeliest]], abs=1e-4)


@pytest.mark.parametrize("n_changed", [0, 1, 12, 13, 40])
def test_the_most_probable_and_the_changed_tokens_come_once(n_changed: int) -> None:
    rng = np.random.default_rng(n_changed)
    for _ in range(20):
        logits = rng.normal(0, 3, 3_001).astype(np.float32)
        among = np.concatenate((np.argsort(-logits)[:9], np.arange(3_001)))  # some of them are among the likeliest
        changed = np.unique(rng.permutation(among[: 2 * n_changed + 9]))[:n_changed]
        found = Candidates(3_001).likeliest(logits, 12, changed)
        rest = np.setdiff1d(np.argsort(-logits), changed, assume_unique=True)[:12]
        assert set(found.tolist()) >= {*changed.tolist(), *rest.tolist()}
        assert np.array_equal(found, np.unique(found))
        assert len(found) < 3 * (12 + n_changed)


def test_a_banned_token_has_no_probability() -> None:
    logits = np.array([1, -np.inf, 1], np.float32)
    logprob, likeliest = logprobs(logits, 1, 3)
    assert logprob == -math.inf
    assert [place for place, _ in likeliest] == [0, 2, 1]
    assert [p for _, p in likeliest] == pytest.approx([math.log(0.5), math.log(0.5), -math.inf])


def reported(backend: LlamaBackend, each: CompletionRequest) -> list[list[Token]]:
    """The tokens of each index."""
    result: list[list[Token]] = [[] for _ in range(each.count)]
    for event in run(Engine(backend), each):
        if isinstance(event, StreamEvent):
            assert event.token
            result[event.index].append(event.token)
    return result


def test_probabilities_after_sampling_are_of_what_was_left(load: Callable[..., LlamaBackend]) -> None:
    backend = load()
    each = request("some prompt", 4, max_tokens=30, top_k=3, top_p=1, min_p=0, ignore_eos=True)
    asked = dataclasses.replace(each, logprobs=100, post_sampling_probs=True, distinct=True)
    for index, tokens in enumerate(reported(backend, asked)):
        for place, token in enumerate(tokens):
            left = 3 - index % 3 if place == 0 and index < 3 else 3  # distinct ones begin without the others' tokens
            assert len(token.top_logprobs) == left
            assert math.fsum(math.exp(other.logprob or 0) for other in token.top_logprobs) == pytest.approx(1)
            assert (token.id, token.logprob) in {(other.id, other.logprob) for other in token.top_logprobs}


@pytest.mark.parametrize(("n_texts", "precision"), [(1, 1e-5), (8, 1e-4)])
def test_prompt_logprobs_are_those_of_llama_cpp_pythons_own_logits(
    load: Callable[..., LlamaBackend], tiny_model: Path, n_texts: int, precision: float
) -> None:
    """20 contexts with 4 continuations each, on an F32 model: alone, and in requests of texts that begin alike."""
    rng = np.random.default_rng(0)
    contexts = [bytes(rng.integers(32, 127, rng.integers(3, 60)).tolist()) for _ in range(20)]
    texts = [context + bytes(rng.integers(32, 127, 5).tolist()) for context in contexts for _ in range(4)]
    exact = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "off", "parallel": 16}
    engine = Engine(load(**exact), cache_bytes=10_000_000)
    found: dict[int, list[Token]] = {}
    for first in range(0, len(texts), n_texts):
        asked = request([text.decode() for text in texts[first : first + n_texts]], max_tokens=1)
        for event in run(engine, dataclasses.replace(asked, prompt_logprobs=3, cache_prompt=n_texts > 1)):
            if isinstance(event, PromptLogprobsEvent):
                (index,) = event.indices
                found.setdefault(first + index, []).extend(event.tokens)
    model = llama_cpp.Llama(
        str(tiny_model),
        n_ctx=256,
        n_batch=32,
        n_ubatch=32,
        logits_all=True,
        verbose=False,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
    )
    for number, text in enumerate(texts):
        model.n_tokens = 0
        model.eval([*text])
        assert [token.id for token in found[number]] == [*text]
        for place, token in enumerate(found[number][1:]):
            expected = reference(model.scores[place].astype(np.float64))
            assert token.logprob == pytest.approx(expected[token.id], abs=precision)
            assert [each.logprob for each in token.top_logprobs] == pytest.approx(
                np.sort(expected)[:-4:-1], abs=precision
            )
            assert token.rank == pytest.approx(np.count_nonzero(expected >= expected[token.id]), abs=1)
    model.close()
