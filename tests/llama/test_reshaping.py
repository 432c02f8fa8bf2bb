"""top-H and smoothing: what they make of logits, alone and in the chain with all other samplers. Takes a second."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from driver import request, run, texts
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tiny_model import N_VOCAB

from srb.engine.asking.sampling_params import SAMPLERS, SamplingParams
from srb.engine.engine import Engine
from srb.llama import LlamaBackend
from srb.llama.sampling.logprobs import Floats
from srb.llama.sampling.smoothing import smoothing
from srb.llama.sampling.top_h import top_h

Load = Callable[..., LlamaBackend]
OFF: dict[str, Any] = {"top_k": 0, "top_p": 1, "min_p": 0, "temperature": 1}

some_logits = arrays.arrays(
    np.float32, st.integers(1, 60), elements=st.one_of(st.floats(-50, 50, width=32), st.just(float("-inf")))
)


def entropy(probabilities: "list[float]") -> float:
    p = np.array(probabilities)
    p = p[p > 0] / p.sum()
    return float(-(p * np.log(p)).sum())


def kept_one_by_one(part: float, probabilities: list[float]) -> int:
    """How many tokens algorithm 1 of the paper keeps, written as it stands there."""
    falling = sorted(probabilities, reverse=True)
    n = 1
    while n < len(falling) and entropy(falling[: n + 1]) <= part * entropy(falling):
        n += 1
    return n


def logs(probabilities: list[float]) -> Floats:
    with np.errstate(divide="ignore"):
        return np.array(np.log(probabilities), np.float32)


@pytest.mark.parametrize("part", [0, 0.2, 0.4, 0.7, 0.95])
@pytest.mark.parametrize(
    "probabilities", [[0.9, 0.06, 0.04], [0.3, 0.3, 0.2, 0.1, 0.1], [0.55, 0.2, 0.15, 0.05, 0.05], [1]]
)
def test_top_h_keeps_what_the_paper_keeps(part: float, probabilities: list[float]) -> None:
    assert (top_h(part, logs(probabilities)) > -np.inf).sum() == kept_one_by_one(part, probabilities)


@given(some_logits, st.floats(0, 1))
def test_top_h_keeps_the_likeliest_and_no_token_before_a_likelier_one(logits: Floats, part: float) -> None:
    kept = top_h(part, logits)
    assert kept.dtype == np.float32
    if logits.max() > -np.inf:
        is_kept = kept > -np.inf
        assert (kept[is_kept] == logits[is_kept]).all()
        assert kept.max() == logits.max()
        assert is_kept.all() or logits[~is_kept].max() <= logits[is_kept].min()


@pytest.mark.parametrize("spread", [0, 0.01, 3])
def test_top_h_over_a_large_vocabulary_is_that_over_a_sorted_one(spread: float) -> None:
    logits = (spread * np.random.default_rng(1).normal(size=49_152)).astype(np.float32)
    for part in (0.3, 0.99, 1):
        kept = top_h(part, logits)
        falling = np.sort(np.exp(logits.astype(np.float64)))[::-1]
        n = int((kept > -np.inf).sum())
        assert entropy(list(falling[:n])) <= part * entropy(list(falling)) + 1e-6
        assert n == len(falling) or entropy(list(falling[: n + 1])) > part * entropy(list(falling)) - 1e-6


@pytest.mark.parametrize(("factor", "curve"), [(0.25, 1), (1, 1), (1.5, 3), (0.3, 4.5)])
def test_smoothing_is_the_cubic_of_the_distance(factor: float, curve: float) -> None:
    moved = smoothing(factor, curve, np.array([2, 1, -1, -np.inf], np.float32))
    assert moved[0] == 2
    assert moved[3] == -np.inf
    for place, distance in ((1, -1), (2, -3)):
        expected = 2 - (3 - curve) / 2 * factor * distance**2 + (curve - 1) / 2 * factor * distance**3
        assert moved[place] == pytest.approx(expected, rel=1e-6)


@given(some_logits, st.floats(0.01, 100), st.floats(1, 3))
def test_smoothing_keeps_the_order(logits: Floats, factor: float, curve: float) -> None:
    moved = smoothing(factor, curve, logits)
    assert moved.dtype == np.float32
    assert not np.isnan(moved).any()
    order = np.argsort(logits)
    assert (moved[order][1:] >= moved[order][:-1]).all()


@pytest.mark.llama
@pytest.mark.parametrize("samplers", [SAMPLERS, ("top_h", "temperature", "top_k"), ("temperature", "top_p", "top_h")])
@pytest.mark.parametrize(
    ("params", "reshape"),
    [
        ({"top_h": 0.5}, partial(top_h, 0.5)),
        ({"smoothing_factor": 0.6}, partial(smoothing, 0.6, 1.0)),
        ({"smoothing_factor": 0.6, "smoothing_curve": 2.0}, partial(smoothing, 0.6, 2.0)),
    ],
)
def test_the_chain_draws_what_is_left_as_often_as_it_should(
    load: Load, params: dict[str, Any], reshape: Callable[[Floats], Floats], samplers: tuple[str, ...]
) -> None:
    backend = load()
    each = SamplingParams(**OFF | params, samplers=samplers, seed=3)
    compiled = backend.compile((each,))
    sampler = backend.sampler(each, compiled, (), ())
    logits = (2 * np.random.default_rng(0).normal(size=N_VOCAB)).astype(np.float32)
    weights = np.exp(reshape(logits).astype(np.float64))
    drawn = np.bincount([sampler.sample(logits) for _ in range(3000)], minlength=N_VOCAB) / 3000
    assert np.abs(drawn - weights / weights.sum()).sum() / 2 < 0.08
    sampler.close()
    compiled.close()


@pytest.mark.llama
@pytest.mark.parametrize(
    "params", [{"top_h": 0.4}, {"smoothing_factor": 0.3, "smoothing_curve": 3}, {"top_h": 0, "p_less": True}]
)
@pytest.mark.parametrize("others", [{}, {"temperature": 0}, {"grammar": "root ::= [a-f]+"}, {"xtc_probability": 1}])
def test_alternatives_have_the_same_texts_again(load: Load, params: dict[str, Any], others: dict[str, Any]) -> None:
    asked = {"temperature": 3, "max_tokens": 8, "ignore_eos": not others.get("grammar"), "seed": 4} | params | others
    first, again = (texts(run(Engine(load()), request("a story", 3, **asked))) for _ in range(2))
    assert first == again
    assert all(first.values())
