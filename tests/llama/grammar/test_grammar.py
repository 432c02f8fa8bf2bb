"""Grammars: what they allow, what they cost, and what would end the process."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from driver import check_order, request, run, stops, texts
from tiny_model import EOS

from srb.engine.engine import Engine
from srb.engine.events import ErrorEvent
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams, in_lark
from srb.errors import InvalidRequestError
from srb.llama.backend import LlamaBackend

Load = Callable[..., LlamaBackend]


def test_a_grammar_that_leaves_no_token_ends_its_alternative_alone(load: Load) -> None:
    stuck = SamplingParams(grammar='root ::= "xy"', logit_bias=((ord("y"), float("-inf")),), seed=0)
    free = SamplingParams(seed=0, ignore_eos=True, max_tokens=10)
    engine = Engine(backend := load())
    events = run(engine, each := CompletionRequest(((1,),), (free, stuck, free)))
    check_order(events, each)
    assert [event.index for event in events if isinstance(event, ErrorEvent)] == [1]
    assert [stops(events)[k].finish_reason for k in range(3)] == ["length", "error", "length"]
    assert texts(events)[1] == "x"
    assert backend.used_seq_ids() == []


@pytest.mark.parametrize("banned", [{"ignore_eos": True}, {"min_tokens": 9}, {"logit_bias": ((EOS, float("-inf")),)}])
@pytest.mark.parametrize(
    "constraint",
    [
        {"grammar": 'root ::= "x"'},
        {"grammar": 'root ::= "x" "y"*'},
        {"regex": "x"},
        {"json_schema": '{"const": 1}'},
    ],
)
@pytest.mark.parametrize("others", [{}, {"distinct": True}, {"banned_strings": ("q",)}, {"post_sampling_probs": True}])
def test_a_complete_text_ends_although_its_end_is_banned(
    load: Load, constraint: dict[str, Any], banned: dict[str, Any], others: dict[str, Any]
) -> None:
    banned["logit_bias"] = ((ord("y"), float("-inf")), *banned.get("logit_bias", ()))
    params = {name: value for name, value in others.items() if name == "banned_strings"}
    done = SamplingParams(seed=0, max_tokens=20, **constraint, **banned, **params)
    free = SamplingParams(seed=0, ignore_eos=True, max_tokens=10)
    fields = {name: value for name, value in others.items() if name not in params}
    logprobs = 1 if "post_sampling_probs" in fields else None
    asked = CompletionRequest(((1,),), (free, done, free), logprobs=logprobs, **fields)
    events = run(Engine(load()), asked)
    check_order(events, asked)
    assert not [event for event in events if isinstance(event, ErrorEvent)]
    assert [stops(events)[k].finish_reason for k in range(3)] == ["length", "stop", "length"]
    assert texts(events)[1] == ("1" if "json_schema" in constraint else "x")


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= " + '"a"? ' * 100,
        'root ::= ("x"|"y"){3,5} ("z"?){0,1000}',
        "root ::= " + '("a"|"a")* ' * 20,
        "root ::= " + "(" * 20 + "[a-z]" + "*)" * 20,
    ],
)
def test_grammars_that_took_llama_cpp_minutes(load: Load, grammar: str) -> None:
    events = run(Engine(load()), request(grammar=grammar, temperature=3, max_tokens=40))
    assert stops(events)[0].finish_reason in ("stop", "length")


GBNF: list[tuple[str, str]] = [
    ("root ::= (", "doesn't parse"),
    ('foo ::= "x"', "does not contain a 'root' symbol"),
    ('root ::= root "a"', "no text can match it"),
    ("root ::= missing", "doesn't parse"),
    ('root ::= "a"{1000000}', "a count may be at most 100000, and is larger in line 1, before '{1000000}'"),
    ('root ::= "a"{5,2}', "something is repeated at least 5 and at most 2 times in line 1, before '{5,2}'"),
    ('root ::= "(" root ")" | ' + '"a"? ' * 9_000, "grammar takes too long to follow: "),
    ('root ::= "a" \0', "a rule, a text or a class was expected in line 1"),
    ("root ::= []", "a class has no characters"),
    ("root ::= *", "something to repeat was expected"),
    ('root ::= "\\q"', "a character, or an escape that GBNF has, was expected"),
    ('root ::= "a', "a character"),
    ("root ::= <nothing>", "<nothing> isn't one token of this model"),
    ("root ::= <[258]>", "<[258]> isn't one token of this model"),
    ("root ::= " + '"a"' + "*" * 50_000, "nested too deeply"),
    ("root ::= " + "(" * 40_000 + '"a"' + ")" * 40_000, "nested too deeply"),
    ("x" * 100_001, "the limit is 100000"),
]
LARK: list[tuple[str, str]] = [
    ("", "can't be used"),
    ("start: nope", "can't be used"),
    ("start: /(?=x)y/", "can't be used"),
    ("start: %json {", "can't be used"),
    ('start: %json {"type": "nope"}', "Invalid type: nope"),
    ('start: %json {"$ref": "https://example.org/x.json"}', "can't be used"),
    ("start: " + "(" * 5_000 + '"a"' + ")" * 5_000, "can't be used"),
    ("start: %json " + '{"items": ' * 500 + "{}" + "}" * 500, "recursion limit"),
    ('start: "a"\0', "can't be used"),
    ('start: %json {"multipleOf": 10007}', "grammar can't be used: at 2(8): multipleOf is 10007"),
    ("x" * 1_000_001, "the limit is 1000000"),
]
REGEX: list[tuple[str, str]] = [
    ("(?=x)y", "regex can't be enforced: invalid regex"),
    (r"(a)\1", "regex parse error"),
    (r"\bx", "lookarounds not supported"),
    ("[", "regex parse error"),
    ("a\\", "ends with a backslash"),
    ("(" * 1000 + ")" * 1000, "regex can't be enforced"),
    ("a" * 10_001, "regex has 10001 characters; the limit is 10000"),
]
SCHEMA = [
    ("", "isn't JSON"),
    ("{", "isn't JSON"),
    ("5", "must be an object"),
    ('{"type": "nope"}', "Invalid type: nope"),
]


@pytest.mark.parametrize(
    ("param", "text", "message"),
    [
        *(("grammar", *each) for each in GBNF),
        *(("grammar", in_lark(rules), message) for rules, message in LARK),
        *(("regex", *each) for each in REGEX),
        *(("json_schema", *each) for each in SCHEMA),
    ],
    ids=lambda each: each[:40],
)
def test_a_bad_one_is_refused_with_the_reason(load: Load, param: str, text: str, message: str) -> None:
    engine = Engine(load())
    with pytest.raises(InvalidRequestError, match=re.escape(message)) as caught:
        engine.add_request(request(**{param: text}))  # type: ignore[arg-type]
    assert caught.value.param == param
    assert not engine.has_work


def test_deep_and_long_grammars_within_the_limits_work(load: Load) -> None:
    engine = Engine(load())
    for grammar in (
        "root ::= " + "(" * 99 + '"a"' + ")" * 99,
        "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(3000)) + '\nr3000 ::= "a"',
    ):
        assert texts(run(engine, request(grammar=grammar)))[0] == "a"
