"""p-less sampling: which tokens it keeps, alone and in the chain with all other samplers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from driver import request, run, stops, texts
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tiny_model import N_VOCAB

from srb.engine.asking.sampling_params import SAMPLERS, SamplingParams
from srb.engine.engine import Engine
from srb.engine.telling.events import ErrorEvent
from srb.llama import LlamaBackend
from srb.llama.sampling.logprobs import Floats
from srb.llama.sampling.p_less import p_less

Load = Callable[..., LlamaBackend]


def is_kept(logits: Floats) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    return np.asarray(p_less(logits) > -np.inf)


OFF: dict[str, Any] = {"top_k": 0, "top_p": 1, "min_p": 0}
ALONE: dict[str, Any] = {"p_less": True} | OFF


def passing(logits: Floats, temperature: float = 1) -> set[int]:
    """The tokens whose probability is at least the sum of all squares."""
    scaled = logits.astype(np.float64) / temperature
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    return set(np.flatnonzero(p >= (p**2).sum()).tolist())


@pytest.mark.parametrize(
    ("probabilities", "kept"),
    [
        ([0.9, 0.05, 0.05], [True, False, False]),  # 0.815
        ([0.5, 0.3, 0.2], [True, False, False]),  # 0.38
        ([0.4, 0.35, 0.25], [True, True, False]),  # 0.345
        ([0, 0.5, 0.5, 0], [False, True, True, False]),  # banned tokens
        ([1], [True]),
    ],
)
def test_what_is_kept_of_a_few_tokens(probabilities: list[float], kept: list[bool]) -> None:
    with np.errstate(divide="ignore"):
        logits = np.log(np.array(probabilities)).astype(np.float32)
    assert is_kept(logits).tolist() == kept


@given(
    arrays.arrays(
        np.float32,
        st.integers(1, 300),
        elements=st.one_of(st.floats(-100, 100, width=32), st.just(float("-inf"))),
    )
)
def test_the_likeliest_is_always_kept_and_no_less_likely_one_before_a_likelier(logits: Floats) -> None:
    kept = is_kept(logits)
    assert p_less(logits).dtype == np.float32
    if logits.max() == -np.inf:
        return
    assert kept[logits == logits.max()].all()
    assert kept.all() or logits[~kept].max() < logits[kept].min()


@pytest.mark.parametrize("n", [1, 2, 3, 40, 1_000, 49_152, 262_144])
def test_rounding_leaves_all_of_equal_tokens(n: int) -> None:
    assert is_kept(np.full(n, 7.3, np.float32)).all()


@pytest.mark.llama
@pytest.mark.parametrize("temperature", [0.5, 1, 2, 10])
@pytest.mark.parametrize("samplers", [SAMPLERS, ("temperature", "p_less", "typ_p", "top_k", "xtc")])
def test_no_token_below_the_threshold_is_drawn(load: Load, temperature: float, samplers: tuple[str, ...]) -> None:
    backend = load()
    params = SamplingParams(**ALONE, temperature=temperature, samplers=samplers, seed=1)
    compiled = backend.compile((params,))
    sampler = backend.sampler(params, compiled, (), ())
    rng = np.random.default_rng(0)
    for spread in (0.1, 1, 4):
        logits = (spread * rng.normal(size=N_VOCAB)).astype(np.float32)
        allowed = passing(logits, temperature)
        drawn = [sampler.sample(logits) for _ in range(20 * len(allowed))]
        assert set(drawn) <= allowed
        assert len(set(drawn)) > 0.9 * len(allowed)
        assert len(sampler.logprobs(drawn[-1], N_VOCAB)[1]) == len(allowed)
    sampler.close()
    compiled.close()


@pytest.mark.llama
def test_others_that_were_taken_are_left_out_after_it(load: Load) -> None:
    backend = load()
    params = SamplingParams(**ALONE, seed=1)
    compiled = backend.compile((params,))
    logits = np.zeros(N_VOCAB, np.float32)
    logits[[3, 4, 5]] = 20
    taken: set[int] = set()
    for _ in range(3):
        sampler = backend.sampler(params, compiled, (), ())
        taken.add(sampler.sample(logits, taken))
        sampler.close()
    compiled.close()
    assert taken == {3, 4, 5}


@pytest.mark.llama
@pytest.mark.parametrize(
    "others", [{}, OFF, {"samplers": ("p_less",)}, {"repeat_penalty": 2, "xtc_probability": 1}, {"samplers": ()}]
)
def test_alternatives_differ_and_have_the_same_texts_again(load: Load, others: dict[str, Any]) -> None:
    each = {"temperature": 20, "max_tokens": 12, "ignore_eos": True, "seed": 4} | others
    first, again, without = (
        texts(run(Engine(load()), request("a story", 4, p_less=p_less, **each))) for p_less in (True, True, False)
    )
    assert first == again
    assert len(set(first.values())) > 1
    assert (first == without) == (others == {"samplers": ()})  # there it's off


@pytest.mark.llama
@pytest.mark.parametrize("temperature", [0, 1, 50])
def test_a_grammar_always_goes_on(load: Load, temperature: float) -> None:
    events = run(Engine(load()), request("p", 8, **ALONE, grammar='root ::= [a-d] "xyz"', temperature=temperature))
    assert all(text[0] in "abcd" and text[1:] == "xyz" for text in texts(events).values())
    assert {stop.finish_reason for stop in stops(events).values()} == {"stop"}


@pytest.mark.llama
def test_a_grammar_that_leaves_no_token_is_an_error_as_without_it(load: Load) -> None:
    events = run(Engine(load()), request("p", 2, **ALONE, grammar='root ::= "x"', ignore_eos=True))
    assert [event.index for event in events if isinstance(event, ErrorEvent)] == [0, 1]
