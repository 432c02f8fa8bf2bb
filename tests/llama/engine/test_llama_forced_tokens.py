"""Tokens that a grammar requires are draft tokens, and texts are the same as without them."""

import json
from collections.abc import Callable
from typing import Any, cast

import pytest
from alone import NO_GUESSES, PROPOSERS
from driver import run, stops, texts
from fixed_costs import fix_costs
from llguidance import LLMatcher

from srb.engine.backend import Costs
from srb.engine.engine import Engine
from srb.engine.events import Event
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams, in_lark
from srb.llama.backend import LlamaBackend
from srb.llama.grammar.matcher import GrammarMatcher

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "first_name": {"type": "string", "maxLength": 4},
            "kind": {"enum": ["alpha", "alphabet", "beta"]},
            "is_member": {"type": "boolean"},
            "numbers": {"type": "array", "items": {"type": "integer", "maximum": 99}, "minItems": 2, "maxItems": 3},
        },
        "required": ["first_name", "kind", "is_member", "numbers"],
    }
)


@pytest.fixture
def backend(load: Callable[..., LlamaBackend]) -> LlamaBackend:
    """One whose sums are nearly the same for one row and for several."""
    return load(threads=1, flash_attn="off", cache_type_k="f32", cache_type_v="f32", kv_layout="unified")


def answer(backend: LlamaBackend, costs: Costs, n: int = 1, **options: Any) -> tuple[list[Event], Engine]:
    fix_costs(backend, costs)
    engine = Engine(backend)
    params: dict[str, Any] = {"seed": 1, "max_tokens": 200, "temperature": 2.0, "json_schema": SCHEMA}
    of_request = {name: options.pop(name) for name in ("logprobs", "post_sampling_probs") if name in options}
    branches = SamplingParams(**(params | options)).alternatives(n)
    request = CompletionRequest((tuple(b"Once upon a time, once upon"),), branches, id="asked", **of_request)
    return run(engine, request), engine


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n": 8},
        {"stop": ('"kind',), "n": 3},
        {"max_tokens": 13},
        {"banned_strings": ("alpha", "7", "8", "9")},
        {"repeat_penalty": 1.5, "frequency_penalty": 0.5, "dry_multiplier": 1.0, "repeat_last_n": -1},
        {"mirostat": 2},
        {"xtc_probability": 0.5, "xtc_threshold": 0.02},
        {"guidance_scale": 2.0, "negative_prompt": tuple(b"there was"), "n": 2},
        {"min_tokens": 20, "top_k": 5},
        {"json_schema": None, "grammar": in_lark('start: ("The answer is " /[a-z]{1,4}/ ". ")+')},
        {"json_schema": None, "grammar": 'root ::= "Answer: " ("yes" | "yesterday") ". Because " [a-z ]{5,20} "."'},
    ],
    ids=lambda options: "-".join(options) or "plain",
)
def test_a_text_is_the_same_without_draft_tokens(backend: LlamaBackend, options: dict[str, Any]) -> None:
    (events, engine), (expected, plain) = (answer(backend, costs, **options) for costs in (PROPOSERS, NO_GUESSES))
    assert texts(events) == texts(expected)
    assert stops(events) == stops(expected)
    assert engine.stats().n_accepted > 5
    assert plain.stats().n_drafted == 0
    assert engine.stats().steps < plain.stats().steps


def test_forced_text_ends_where_there_is_a_choice(backend: LlamaBackend) -> None:
    params = SamplingParams(seed=0, json_schema=SCHEMA)
    constraint = backend.compile((params,)).constraint(params)
    assert constraint
    for said, forced in (("", '{"first_name": "'), ("Al", ""), ('", "kind": "alpha', ""), ("b", 'et", "is_member": ')):
        for token in said.encode():
            constraint.accept(token)
        assert bytes(constraint.forced(100)).decode() == forced
        for token in constraint.forced(100):
            constraint.accept(token)
    assert bytes(constraint.forced(3)) == b""


@pytest.mark.parametrize(
    ("masks", "forced"),
    [
        (["n na name", "x y"], ["name"]),
        (["n na name", "x", "n na name"], ["name", "x", "name"]),
        (["n na x"], []),
        (["n END"], []),
        ([""], []),
    ],
)
def test_the_longest_of_tokens_that_begin_with_each_other_is_forced(masks: list[str], forced: list[str]) -> None:
    pieces = ["n", "na", "name", "x", "y", "END"]

    class Matcher:
        """One with these allowed tokens at each place."""

        def __init__(self, place: int = 0) -> None:
            self.place = place

        def is_stopped(self) -> bool:
            return self.place == len(masks)

        def compute_bitmask(self) -> bytes:
            return bytes([sum(1 << pieces.index(each) for each in masks[self.place].split())])

        def deep_copy(self) -> "Matcher":
            return Matcher(self.place)

        def consume_token(self, _token: int) -> None:
            self.place += 1

    matcher = Matcher()
    bytes_of = [piece.encode() if piece != "END" else b"" for piece in pieces]
    constraint = GrammarMatcher(cast(LLMatcher, matcher), frozenset({5}), 6, bytes_of.__getitem__)
    assert [pieces[token] for token in constraint.forced(16)] == forced
    assert matcher.place == 0, "the text itself has come no further"


def test_a_text_of_any_length_that_must_come_takes_no_time(backend: LlamaBackend) -> None:
    params = SamplingParams(seed=0, grammar=in_lark('start: "' + "ab cd " * 10_000 + '"'))
    constraint = backend.compile((params,)).constraint(params)
    assert constraint
    assert len(constraint.forced(16)) == 16
