"""Fields that exclude each other, or need another one: every row of the tables is tried."""

from typing import Any

import pytest

from srb.engine.media import Media
from srb.engine.request import CompletionRequest, Explore
from srb.engine.sampling_params import SamplingParams
from srb.engine.validation.exclusions import (
    BEAM_SEARCH,
    BODY_NAMES,
    BRIDGE,
    EXCLUSIONS,
    Exclusion,
    excludes,
)
from srb.errors import InvalidRequestError

BRANCHES: dict[str, tuple[dict[str, Any], ...]] = {
    "several branches": ({}, {}),
    "different branches": ({}, {"top_k": 1}),
    "branches that differ in more than seeds that follow each other": ({}, {"top_k": 1}),
    "max_tokens 0": ({"max_tokens": 0},),
    "max_tokens -1": ({"max_tokens": -1},),
    "grammar": ({"grammar": "root"},),
    "json_schema": ({"json_schema": "{}"},),
    "regex": ({"regex": "a"},),
    "logits_processor": ({"logits_processor": lambda tokens, logits: None},),
    "banned_strings": ({"banned_strings": ("a",)},),
    "bad_words": ({"bad_words": ("a",)},),
    "avoid": ({"avoid": ()},),
    "diversity": ({"diversity": 1.0},),
    "guidance_scale": ({"guidance_scale": 2.0},),
    "direction": ({"direction": (1,)},),
}

FIELDS: dict[str, dict[str, Any]] = {
    BEAM_SEARCH: {"search": "beam"},
    BRIDGE: {"suffix": "x"},
    "suffix": {"suffix": "x"},
    "several prompts": {"prompts": ("a", "b")},
    "images and sounds": {"media": (Media("id", (-1,), b""),)},
    "echo with logprobs": {"echo": True, "logprobs": 0},
    "context_shift without max_tokens": {"context_shift": True},
    "logprobs": {"logprobs": 0},
    "prompt_logprobs": {"prompt_logprobs": 0},
    "explore": {"explore": Explore()},
    "candidates": {"candidates": ((1,),)},
    "ahead": {"ahead": 1},
    **{name: {name: True} for name in ("distinct", "heal", "echo", "context_shift", "post_sampling_probs")},
}


def asking_for(*names: str) -> CompletionRequest:
    fields: dict[str, Any] = {"prompts": ("a",)}
    branches: list[dict[str, Any]] = [{}, {}]
    n = 1
    for name in names:
        fields |= FIELDS.get(name, {})
        n = max(n, len(BRANCHES.get(name, ())))
        for k, branch in enumerate(BRANCHES.get(name, ())):
            branches[k] |= branch
    return CompletionRequest(branches=tuple(SamplingParams(seed=k, **branches[k]) for k in range(n)), **fields)


PAIRS = [(each, other) for each in EXCLUSIONS for other in each.others]


@pytest.mark.parametrize(("exclusion", "other"), PAIRS, ids=[f"{each.feature}-{other}" for each, other in PAIRS])
def test_features_that_exclude_each_other_are_refused(exclusion: Exclusion, other: str) -> None:
    with pytest.raises(InvalidRequestError, match="exclude each other") as refused:
        asking_for(exclusion.feature, other)
    rows = [each for each in EXCLUSIONS if {exclusion.feature, other} & {each.feature}]
    assert refused.value.param in {each.param or each.feature for each in rows}


BANS = ("banned_strings", "avoid", "guidance_scale")
GRAMMARS = ("grammar", "json_schema", "regex")
REFUSED: dict[str, tuple[str, ...]] = {
    "direction": (BEAM_SEARCH, "suffix", "echo with logprobs", "prompt_logprobs", "context_shift"),
    "suffix": (BEAM_SEARCH, *BANS, "diversity", "max_tokens -1", "different branches"),
    "explore": (BEAM_SEARCH, "several branches", "several prompts"),
    "candidates": (BEAM_SEARCH, "distinct"),
    BEAM_SEARCH: (*BANS, *GRAMMARS, "diversity", "distinct", "logits_processor", "max_tokens -1", "different branches"),
    "post_sampling_probs": (BEAM_SEARCH,),
    "heal": (BEAM_SEARCH, *GRAMMARS, "echo with logprobs", "explore"),
    "context_shift": (BEAM_SEARCH, *BANS, "several prompts", "explore", "images and sounds", "echo with logprobs"),
    "ahead": (
        *(BEAM_SEARCH, "several prompts", "suffix", "echo with logprobs", "max_tokens 0", "distinct", "diversity"),
        *("avoid", "branches that differ in more than seeds that follow each other"),
        "context_shift without max_tokens",
    ),
}
"""What no version of the table may allow."""


@pytest.mark.parametrize(("feature", "other"), [(each, other) for each in REFUSED for other in REFUSED[each]])
def test_what_cannot_be_done_together_is_in_the_table(feature: str, other: str) -> None:
    with pytest.raises(InvalidRequestError, match="exclude each other"):
        asking_for(feature, other)


@pytest.mark.parametrize("name", sorted((FIELDS.keys() | BRANCHES.keys()) - {"explore", "candidates"}))
def test_each_feature_alone_is_accepted(name: str) -> None:
    assert asking_for(name).count


def test_what_excludes_a_feature_is_named() -> None:
    assert excludes(asking_for(), "ahead") is None
    assert excludes(asking_for(BEAM_SEARCH), "ahead") == BEAM_SEARCH
    assert excludes(asking_for("avoid"), "context_shift") == "avoid"


@pytest.mark.parametrize(
    ("feature", "name"),
    [
        *((BEAM_SEARCH, name) for name in ("beams", "length_penalty", "early_stopping")),
        *((BRIDGE, name) for name in ("n_candidates", "stop_at_suffix")),
    ],
)
def test_fields_of_a_feature_need_it(feature: str, name: str) -> None:
    value: Any = {"length_penalty": 2.0, "early_stopping": True, "stop_at_suffix": True}.get(name, 2)
    param = BODY_NAMES.get(name, name)
    with pytest.raises(InvalidRequestError, match=f"^{param} goes with ") as refused:
        CompletionRequest(("a",), (SamplingParams(),), **{name: value})
    assert refused.value.param == param
    assert CompletionRequest(("a",), (SamplingParams(),), **FIELDS[feature] | {name: value})


def test_the_remedy_is_in_the_error() -> None:
    with pytest.raises(
        InvalidRequestError, match=r"^context_shift and avoid exclude .*; leave one out, or start with a"
    ):
        asking_for("context_shift", "avoid")
    with pytest.raises(InvalidRequestError, match="max_tokens -1 and a beam search exclude each other: that"):
        asking_for(BEAM_SEARCH, "max_tokens -1")
