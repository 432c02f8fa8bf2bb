"""Fields as options."""

import argparse
import re
from typing import Any

import pytest

from srb.engine.sampling_params import SamplingParams
from srb.engine.validation.fields import meanings
from srb.terminal.options import REQUEST_FIELDS, add_field_arguments, given_fields
from srb.wire.request.fields import CompletionFields, SamplingFields
from srb.wire.request.read import ALIASES


def read(*arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_field_arguments(parser)
    return given_fields(parser.parse_args(arguments))


def test_the_help_says_what_the_engine_and_the_openapi_description_say() -> None:
    parser = argparse.ArgumentParser()
    add_field_arguments(parser)
    shown = re.sub(r"\s+", "", parser.format_help())  # argparse breaks lines where it likes
    texts = {name: field.description or "" for name, field in CompletionFields.model_fields.items()}
    assert texts["top_k"] == meanings(SamplingParams)["top_k"]
    for name in ("top_k", "echo", "banned_tokens"):
        assert re.sub(r"\s+", "", texts[name]) in shown


VALUES = {
    "stop": ["."],
    "stop_token_ids": [5],
    "bad_words": ["1"],
    "banned_strings": ["1"],
    "avoid": ["1"],
    "directions": ["1"],
    "logit_bias": {"5": False},
    "banned_tokens": [5],
    "json_schema": {"type": "string"},
    "response_format": {"type": "text"},
    "structured_outputs": {"regex": "a+"},
    "samplers": ["top_k", "temperature"],
}


@pytest.mark.parametrize(
    "name", [*sorted({*SamplingFields.model_fields} - {"max_tokens", "lora", "direction"}), *REQUEST_FIELDS]
)
def test_every_field_is_an_option(name: str) -> None:
    flag = "--" + name.replace("_", "-")
    texts = {"stop": ".", "logit_bias": '{"5": false}', "banned_tokens": "[5]", "samplers": "top_k, temperature"}
    texts["stop_token_ids"] = "[5]"
    texts |= {
        "json_schema": '{"type": "string"}',
        "response_format": '{"type": "text"}',
        "structured_outputs": '{"regex": "a+"}',
    }
    if name in (
        "distinct",
        "heal",
        "ignore_eos",
        "post_sampling_probs",
        "echo",
        "stop_at_suffix",
    ) or name.startswith(("return", "cache", "context_shift", "include")):
        assert read(flag) == {name: True}
        assert read(flag.replace("--", "--no-", 1)) == {name: False}
    else:
        assert read(flag, texts.get(name, "1")) == {name: VALUES.get(name, "1")}


def test_other_names_mean_the_same() -> None:
    for alias, name in ALIASES.items():
        if name not in ("n", "max_tokens", "stop", "ignore_eos", "return_tokens"):  # n is a setting; texts have no ids
            is_json = name in ("json_schema", "banned_tokens")
            assert read("--" + alias.replace("_", "-"), "1") == {name: 1 if is_json else "1"}


def test_stop_strings_come_one_by_one() -> None:
    assert read("--stop", "a,b", "--stop-sequence", "c") == {"stop": ["a,b", "c"]}


@pytest.mark.parametrize(
    ("text", "branch"),
    [
        ("", {}),
        ("temperature=1.2,label=wild", {"temperature": "1.2", "label": "wild"}),
        ("top-k=1, min_p=0.1", {"top_k": "1", "min_p": "0.1"}),
        ("grammar=root ::= [=]", {"grammar": "root ::= [=]"}),
        ("samplers=top_k", {"samplers": ["top_k"]}),
        ("nsigma=1", {"nsigma": "1"}),
        ('{"stop": [",", "="], "seed": 5}', {"stop": [",", "="], "seed": 5}),
    ],
)
def test_branches(text: str, branch: dict[str, Any]) -> None:
    assert read("--branch", text) == {"branches": [branch]}
