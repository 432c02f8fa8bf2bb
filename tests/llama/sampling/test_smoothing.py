"""Smoothing: what it makes of logits, alone and in the chain with all other samplers. Takes a second."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tiny_model import N_VOCAB

from srb.engine.samplers import SAMPLERS
from srb.engine.sampling_params import SamplingParams
from srb.llama.backend import LlamaBackend
from srb.llama.sampling.candidates import Floats
from srb.llama.sampling.own_samplers import smoothing

Load = Callable[..., LlamaBackend]
OFF: dict[str, Any] = {"top_k": 0, "top_p": 1, "min_p": 0, "temperature": 1}

some_logits = arrays.arrays(
    np.float32, st.integers(1, 60), elements=st.one_of(st.floats(-50, 50, width=32), st.just(float("-inf")))
)


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


@pytest.mark.parametrize("samplers", [SAMPLERS, ("temperature", "top_p"), ("top_p", "temperature", "top_k")])
@pytest.mark.parametrize(("factor", "curve"), [(0.6, 1.0), (0.6, 2.0)])
def test_the_chain_draws_what_is_left_as_often_as_it_should(
    load: Load, factor: float, curve: float, samplers: tuple[str, ...]
) -> None:
    backend = load()
    each = SamplingParams(**OFF, smoothing_factor=factor, smoothing_curve=curve, samplers=samplers, seed=3)
    compiled = backend.compile((each,))
    sampler = backend.sampler(each, compiled, (), ())
    logits = (2 * np.random.default_rng(0).normal(size=N_VOCAB)).astype(np.float32)
    weights = np.exp(smoothing(factor, curve, logits).astype(np.float64))
    sampled = np.bincount([sampler.sample(logits) for _ in range(3000)], minlength=N_VOCAB) / 3000
    assert np.abs(sampled - weights / weights.sum()).sum() / 2 < 0.08
    sampler.close()
    compiled.close()
