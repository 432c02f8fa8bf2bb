import dataclasses
import math
from typing import Any

import pytest

from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.engine.validation.fields import meanings
from srb.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("temperature", 0, 100), ("top_k", -1, 2**31 - 1), ("top_p", 0, 1), ("min_p", 0, 1), ("seed", -1, 2**32 - 1)],
)
def test_ranges_include_their_ends_and_errors_name_field_value_and_limit(name: str, low: int, high: int) -> None:
    for value in (low, high):
        assert getattr(SamplingParams(**{name: value}), name) == value  # type: ignore[arg-type]
    for value in (low - 1, high + 1):
        with pytest.raises(InvalidRequestError, match=rf"^{name} must be from {low} to {high}, got {value}$") as caught:
            SamplingParams(**{name: value})  # type: ignore[arg-type]
        assert caught.value.param == name


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p"])
def test_no_nan_and_no_infinity(name: str, value: float) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("stop", "message"),
    [
        (("",), "1 to 1000 characters, got 0"),
        (("x" * 1001,), "1 to 1000 characters, got 1001"),
        (("x",) * 1001, "at most 1000 strings, got 1001"),
        (("x" * 1000,) * 65, "at most 64000 characters in all, got 65000"),
    ],
)
def test_stop_strings_have_limits(stop: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        SamplingParams(stop=stop)


def test_alternatives_count_their_seeds_up_and_around() -> None:
    assert [params.seed for params in SamplingParams(seed=2**32 - 2).alternatives(4)] == [2**32 - 2, 2**32 - 1, 0, 1]


def test_a_missing_seed_becomes_a_random_one() -> None:
    seeds = {SamplingParams().alternatives(1)[0].seed for _ in range(8)}
    assert len(seeds) > 1
    assert all(0 <= seed < 2**32 for seed in seeds)


def test_a_request_chooses_random_seeds_for_its_branches() -> None:
    branches = CompletionRequest(((1,),), (SamplingParams(), SamplingParams(seed=5))).branches
    assert branches[0].seed >= 0
    assert branches[1].seed == 5


@pytest.mark.parametrize(
    ("fields", "param"),
    [({"prompts": ()}, "prompt"), ({"prompts": ((1,), ())}, "prompt[1]"), ({"branches": ()}, "n")],
)
def test_a_request_has_prompts_with_tokens_and_alternatives(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        CompletionRequest(**{"prompts": ((1,),), "branches": (SamplingParams(),)} | fields)
    assert caught.value.param == param


@pytest.mark.parametrize("kind", [SamplingParams, CompletionRequest])
def test_the_help_says_what_every_field_means(kind: type) -> None:
    texts = meanings(kind)
    assert set(texts) == {field.name for field in dataclasses.fields(kind)}
    for name, text in texts.items():
        assert f"\n    - `{name}`: {text}\n" in (kind.__doc__ or "")


def test_a_logits_processor_is_a_function() -> None:
    with pytest.raises(InvalidRequestError, match=r"^logits_processor must be a function, got 'print'$"):
        SamplingParams(logits_processor="print")  # type: ignore[arg-type]
