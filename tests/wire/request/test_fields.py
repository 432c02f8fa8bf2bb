"""Request bodies as `SamplingParams`, in every notation that clients use."""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from srb.engine.request import CompletionRequest
from srb.engine.samplers import SAMPLERS
from srb.engine.sampling_params import SamplingParams, in_lark
from srb.engine.validation.exclusions import BODY_NAMES
from srb.errors import InvalidRequestError
from srb.wire.anthropic.messages import MessagesFields
from srb.wire.kobold.body import KoboldFields
from srb.wire.limits import Limits
from srb.wire.llama_server import body as llama_body
from srb.wire.llama_server.body import LlamaFields
from srb.wire.ollama.chat import OllamaOptions
from srb.wire.openai.responses import ResponseFields
from srb.wire.request.body import Parsed, parse
from srb.wire.request.fields import BranchFields, CompletionFields
from srb.wire.request.read import read_fields, validate


def tokenize(text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]:
    return (0, *text.encode()) if is_prompt else tuple(text.encode())


LIMITS = Limits("fake", n=1, max_n=8, tokenize=tokenize)


def read(limits: Limits = LIMITS, **fields: Any) -> Parsed:
    return parse(read_fields(json.dumps({"prompt": "p"} | fields).encode(), CompletionFields), limits)


def branches_of(**fields: Any) -> tuple[SamplingParams, ...]:
    return read(**fields).completion.branches


def params(**fields: Any) -> SamplingParams:
    parsed = read(**{"seed": 0} | fields)
    assert parsed.ignored == []
    return parsed.completion.branches[0]


def ignored(**fields: Any) -> list[str]:
    return read(**fields).ignored


def test_nothing_said_means_llama_servers_defaults() -> None:
    assert params() == SamplingParams(seed=0)
    others = ("label", "logits_processor")  # of branches, and the library's own
    everything = {name: None for name in SamplingParams.__dataclass_fields__ if name not in others}
    assert params(**everything | {"seed": 0}) == SamplingParams(seed=0)


@pytest.mark.parametrize(
    ("alias", "name", "value"),
    [
        ("n_predict", "max_tokens", 5),
        ("max_length", "max_tokens", 5),
        ("max_new_tokens", "max_tokens", 5),
        ("sampler_seed", "seed", 5),
        ("repetition_penalty", "repeat_penalty", 1.5),
        ("rep_pen", "repeat_penalty", 1.5),
        ("rep_pen_range", "repeat_last_n", 5),
        ("mirostat_mode", "mirostat", 2),
        ("ban_eos_token", "ignore_eos", True),
        ("nsigma", "top_n_sigma", 1.5),
        ("typ_p", "typical_p", 0.5),
        ("typical", "typical_p", 0.5),
        ("grammar_string", "grammar", 'root ::= "x"'),
        ("guided_grammar", "grammar", 'root ::= "x"'),
        ("guided_json", "json_schema", '{"type": "string"}'),
        ("guided_regex", "regex", "a+"),
    ],
)
def test_other_servers_names(alias: str, name: str, value: Any) -> None:
    assert getattr(params(**{"seed": None, alias: value}), name) == value
    assert ignored(**{name: value, alias: value}) == [alias]


def test_a_formats_own_name_counts_if_a_body_has_two() -> None:
    for fields in ({"n_predict": 3, "max_tokens": 8}, {"max_tokens": 8, "n_predict": 3, "max_length": 9}):
        body = json.dumps({"prompt": "p", "n_cmpl": 2, "n": 4} | fields).encode()
        parsed = llama_body.parse_completion(read_fields(body, LlamaFields), LIMITS)
        assert [branch.max_tokens for branch in parsed.completion.branches] == [3, 3]
        told = ["max_tokens (n_predict is used)", "n (n_cmpl is used)"]
        assert sorted(parsed.ignored) == sorted(told + ["max_length"] * ("max_length" in fields))
    both = {"max_tokens": 8, "stop": "b"}
    assert validate(both | {"max_length": 3, "stop_sequence": ["a"]}, KoboldFields).max_tokens == 3
    assert validate(both | {"num_predict": 3}, OllamaOptions).max_tokens == 3
    assert validate(both | {"max_output_tokens": 3, "input": "p"}, ResponseFields).max_tokens == 3
    assert validate(both | {"stop_sequences": ["a"], "messages": []}, MessagesFields).stop == ["a"]
    assert validate(both | {"max_completion_tokens": 3}, CompletionFields).max_tokens == 8


def test_numbers_as_strings() -> None:
    assert params(temperature="0.5", top_k="7", min_keep="2") == SamplingParams(
        seed=0, temperature=0.5, top_k=7, min_keep=2
    )
    assert params(stop_token_ids=["99", None, 5]).stop_token_ids == (99, 5)


@pytest.mark.parametrize("name", ["seed", "sampler_seed"])
@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        (2**32, 0),
        (2**53 - 1, 2**32 - 1),
        (2**63 - 1, 2**32 - 1),
        (2**64 + 5, 5),
        (str(2**64 + 5), 5),
        (-2, 2**32 - 2),
        (-(2**63), 0),
        (7, 7),
    ],
)
def test_seeds_are_taken_modulo_2_to_the_32(name: str, sent: Any, taken: int) -> None:
    assert params(**{"seed": None} | {name: sent}).seed == taken
    assert params(seed=1, branches=[{name: sent}]).seed == taken


@pytest.mark.parametrize(
    "breakers",
    [["\n", "x"], '["\\n", "x"]', "\n,x", '"\\n", "x"', '"\n","x"', ["\n", "", None, "x"], '"\\n", "x", ', "\\n,x"],
)
def test_dry_breakers_as_a_list_as_json_and_with_commas(breakers: Any) -> None:
    assert params(dry_sequence_breakers=breakers).dry_sequence_breakers == ("\n", "x")


def test_dry_breakers_of_text_generation_webui() -> None:
    defaults = r'''"\n", ":", "\"", "*"'''
    assert params(dry_sequence_breakers=defaults).dry_sequence_breakers == ("\n", ":", '"', "*")
    assert params(dry_sequence_breakers=r"\n,:,\",*").dry_sequence_breakers == ("\n", ":", '"', "*")
    assert params(dry_sequence_breakers=[r"\n"]).dry_sequence_breakers == (r"\n",)
    assert params(dry_sequence_breakers='"').dry_sequence_breakers == ('"',)
    assert params(dry_sequence_breakers="").dry_sequence_breakers == ()


@pytest.mark.parametrize("name", ["stop", "stop_sequence", "stopping_strings", "banned_strings", "bad_words"])
@pytest.mark.parametrize(
    ("sent", "taken"), [("", ()), ([""], ()), (["", "a", None], ("a",)), ("a", ("a",)), (["a"] * 300, ("a",) * 300)]
)
def test_empty_strings_are_dropped(name: str, sent: Any, taken: Any) -> None:
    assert getattr(params(**{name: sent}), name if name in ("banned_strings", "bad_words") else "stop") == taken


@pytest.mark.parametrize(
    ("bias", "expected"),
    [
        ({"5": 1.5, "ab": -2, "c": False}, {5: 1.5, 97: -2, 98: -2, 99: -math.inf}),
        ([[5, 1.5], ["ab", "-2"], [99, False]], {5: 1.5, 97: -2, 98: -2, 99: -math.inf}),
        ({}, {}),
        ([], {}),
    ],
)
def test_logit_bias_as_an_object_and_as_pairs(bias: Any, expected: dict[int, float]) -> None:
    assert dict(params(logit_bias=bias).logit_bias) == expected


@pytest.mark.parametrize(
    ("sent", "used", "reported"),
    [
        (
            {"logit_bias": {"5": -1000, "6": "1e400", "7": 100}},
            {5: -100, 6: 100, 7: 100},
            "logit_bias (beyond 100: -1000",
        ),
        ({"logit_bias": {"a": 10**400}}, {97: 100}, "logit_bias (beyond 100: 1000"),
        ({"logit_bias": {"5": 1, "128009": False, "-1": 2}}, {5: 1}, "logit_bias (unknown ids: 128009 -1)"),
        ({"logit_bias": {"9" * 5_000: 3}}, {}, "logit_bias (unknown ids: 999"),
        ({"banned_tokens": "5,300"}, {5: -math.inf}, "banned_tokens (unknown ids: 300)"),
        (
            {"logit_bias": [[k % 9, 1] for k in range(10_001)]},
            dict.fromkeys(range(9), 1),
            "logit_bias (all but the first",
        ),
    ],
)
def test_biases_without_effect_are_reported(sent: dict[str, Any], used: dict[int, float], reported: str) -> None:
    limits = dataclasses.replace(LIMITS, n_vocab=256)
    for body, place in ((sent, ""), ({"branches": [sent]}, "branches[0].")):
        parsed = read(limits, **body)
        assert dict(parsed.completion.branches[0].logit_bias) == used
        assert [each.startswith(place + reported) for each in parsed.ignored] == [True], parsed.ignored


@pytest.mark.parametrize(
    ("name", "most"), [("dry_sequence_breakers", 128), ("banned_strings", 1000), ("bad_words", 1000), ("avoid", 1000)]
)
def test_lists_that_are_too_long_are_cut_and_reported(name: str, most: int) -> None:
    sent: Any = [f"x{k}" for k in range(most + 1)]
    parsed = read(**{name: sent})
    assert getattr(parsed.completion.branches[0], name) == tuple(sent[:most])
    assert parsed.ignored == [f"{name} (all but the first {most})"]
    assert ignored(**{name: sent[:-1]}) == []
    branches = [{}, {name: sent}]
    assert ignored(branches=branches) == [f"branches[1].{name} (all but the first {most})"]


def test_long_sequence_breakers_are_cut_as_llama_cpp_does() -> None:
    sent = ["x" * 40, "x" * 41, "\N{CRESCENT MOON}" * 11]
    parsed = read(dry_sequence_breakers=sent)
    assert parsed.completion.branches[0].dry_sequence_breakers == ("x" * 40, "x" * 40, sent[2][:10])
    assert parsed.ignored == ["dry_sequence_breakers (all but the first 40 bytes of 2)"]


def test_banned_tokens_as_ids_and_as_text() -> None:
    assert dict(params(banned_tokens=[5, "ab"], logit_bias={"6": 1}).logit_bias) == {
        6: 1,
        5: -math.inf,
        97: -math.inf,
        98: -math.inf,
    }


def test_lists_of_strings_and_of_ids_by_text_generation_webuis_names() -> None:
    assert params(stopping_strings=["a", "b"]).stop == ("a", "b")
    assert dict(params(custom_token_bans="5, 60,").logit_bias) == {5: -math.inf, 60: -math.inf}
    assert params(custom_token_bans="").logit_bias == ()
    assert params(custom_token_bans=[5]).logit_bias == ((5, -math.inf),)


def test_text_generation_webuis_greedy_decoding_and_penalty_range() -> None:
    assert params(do_sample=False).temperature == 0
    assert ignored(do_sample=False, temperature=0.7) == ["temperature (do_sample is false)"]
    assert ignored(do_sample=True, temperature=0.7) == ["do_sample"]
    assert params(repetition_penalty_range=100).repeat_last_n == 100
    assert params(repetition_penalty_range=0).repeat_last_n == -1
    assert ignored(repetition_penalty_range=9, repeat_last_n=5) == ["repetition_penalty_range"]
    for unknown in (-3, "x", 2.5):
        assert ignored(repetition_penalty_range=unknown) == ["repetition_penalty_range"]


def test_a_lowest_and_a_highest_temperature() -> None:
    def both(**fields: Any) -> tuple[float, float]:
        branch = branches_of(**fields)[0]
        return branch.temperature, branch.dynatemp_range

    given: dict[str, Any] = {"dynatemp_low": 0.5, "dynatemp_high": "1.5"}
    assert both(**given) == (1, 0.5)
    assert both(**given, dynamic_temperature=True, temperature=0.7) == (1, 0.5)
    assert ignored(**given, temperature=1, dynamic_temperature=True) == []
    assert ignored(**given, temperature=0.7) == ["temperature (dynatemp_low and dynatemp_high are used)"]
    for unused in (
        {"dynamic_temperature": False},
        {"dynatemp_range": 0},
        {"dynatemp_high": 0.5},
        {"dynatemp_high": "x"},
    ):
        assert both(**given | {"temperature": 0.7} | unused) == (0.7, 0)
        assert {"dynatemp_low", "dynatemp_high"} <= set(ignored(**given | unused))
    assert [each.dynatemp_range for each in branches_of(branches=[{}, given])] == [0, 0.5]


def test_what_only_the_library_has_is_reported() -> None:
    parsed = read(logits_processor="print", seed=0)
    assert parsed.ignored == ["logits_processor"]
    assert parsed.completion.branches[0] == SamplingParams(seed=0)


@pytest.mark.parametrize(
    ("sent", "phrases"),
    [
        (["a b", '"c"'], ("a b", '"c"')),
        ("a b", ("a b",)),
        ('"a b"\n\n  c\r\n"d\\n"\n"e', ("a b", "  c", "d\n", '"e')),
        ('["a b", "c"]', ("a b", "c")),
        ("[EDIT]\nb", ("[EDIT]", "b")),
        ("", ()),
        ([], ()),
    ],
)
def test_banned_strings_as_frontends_send_them(sent: Any, phrases: tuple[str, ...]) -> None:
    assert ignored(banned_strings=sent) == []
    assert params(banned_strings=sent).banned_strings == phrases


@pytest.mark.parametrize(
    ("sent", "avoid"),
    [([], ()), ("a b", ("a b",)), (["a", [5, 6], ["7"]], ("a", (5, 6), (7,))), (None, None), ([[]], ((),))],
)
def test_texts_to_avoid(sent: Any, avoid: Any) -> None:
    assert ignored(avoid=sent, diversity="0.5") == []
    assert params(avoid=sent).avoid == avoid
    with pytest.raises(InvalidRequestError, match="avoid"):
        params(avoid=[{"x": 1}])
    first, second = branches_of(avoid=["x"], branches=[{}, {"avoid": [], "diversity": 2}])
    assert (first.avoid, first.diversity, second.avoid, second.diversity) == (("x",), 0, (), 2)


def test_the_order_of_samplers_and_unknown_ones() -> None:
    assert params(samplers=["temp", "typical_p", "top_k"]).samplers == ("temperature", "typ_p", "top_k")
    assert params(samplers=SAMPLERS).samplers == SAMPLERS
    assert ignored(samplers=["top_k", "tfs_z"]) == ["samplers.tfs_z"]
    assert ignored(samplers=["temp", "typical_p"], top_k=3, min_p=0.1, typ_p=0.5, temperature=1) == ["min_p", "top_k"]
    assert ignored(samplers=["top_k"], temperature=0.7) == ["temperature"]
    assert ignored(samplers=["top_k"], temperature=0) == []
    assert ignored(temperature=0, dynatemp_range=1) == ["dynatemp_range"]
    assert ignored(temperature=0, dynatemp_range=1, branches=[{}, {"temperature": 1}]) == []
    assert ignored(samplers=["top_k"], min_p=0.1, branches=[{"samplers": ["min_p"], "top_k": 4}, {"top_p": 1}]) == [
        "branches[0].top_k",
        "branches[1].top_p",
    ]


def test_probabilities_have_two_names() -> None:
    def logprobs(**fields: Any) -> int | None:
        return read(**fields).completion.logprobs

    assert logprobs() is None
    assert logprobs(logprobs=0) == 0
    assert logprobs(n_probs=0) is None  # llama-server's off
    assert logprobs(n_probs="10") == 10
    assert logprobs(n_probs=10, logprobs=3) == 3


def test_what_mirostat_replaces_is_named() -> None:
    assert ignored(mirostat=2, top_k=5, temperature=1, mirostat_tau=4, min_p=0.1) == ["min_p", "top_k"]
    assert ignored(mirostat=0, top_k=5) == []
    assert ignored(mirostat=1, top_k=5, branches=[{}, {"mirostat": 0}]) == []
    assert ignored(mirostat=1, branches=[{"top_p": 0.5}, {"top_p": 0.5, "mirostat": 0}]) == ["branches[0].top_p"]


def test_best_of_is_not_for_streams() -> None:
    with pytest.raises(InvalidRequestError, match=r"best_of \(5\) can't be more than n \(4\)"):
        params(best_of=5, n=4)
    assert ignored(best_of=1, post_sampling_probs=True) == ["post_sampling_probs", "best_of"]


def test_fields_without_effect_are_named() -> None:
    assert ignored(tfs_z=1, top_a=0, branches=[{"top_a": 1}], user="me") == [
        "tfs_z",
        "top_a",
        "user",
        "branches[0].top_a",
    ]


def test_a_schema_in_three_notations() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    text = params(json_schema=schema).json_schema
    assert text is not None
    assert json.loads(text) == schema
    assert params(response_format={"type": "json_schema", "json_schema": {"schema": schema}}).json_schema == text
    assert params(response_format={"type": "json_schema", "json_schema": {"schema": text}}).json_schema == text
    assert params(response_format={"type": "json_schema", "schema": schema}).json_schema == text
    assert params(response_format={}) == params(response_format={"type": "text"}) == params()
    assert params(response_format={"type": "json_object", "schema": schema}).json_schema == text
    assert params(response_format={"type": "json_object", "value": schema}).json_schema == text  # huggingface_hub
    assert params(json_schema=text).json_schema == params(guided_json=schema).json_schema == text
    assert params(response_format={"type": "json_object"}).json_schema == '{"type": "object"}'
    assert params(response_format={"type": "text"}).json_schema is None
    assert params(grammar="", json_schema=schema) == params(json_schema=schema)
    assert params(grammar="").grammar is None


def test_what_a_text_must_match_in_vllms_notation() -> None:
    schema = {"type": "integer"}
    for asked, expected in (
        ({"json": schema}, SamplingParams(seed=0, json_schema='{"type": "integer"}')),
        ({"json": json.dumps(schema), "regex": None}, SamplingParams(seed=0, json_schema='{"type": "integer"}')),
        ({"json_object": True}, SamplingParams(seed=0, json_schema='{"type": "object"}')),
        ({"json_object": False, "regex": "a+"}, SamplingParams(seed=0, regex="a+")),
        ({"grammar": "root ::= [a]"}, SamplingParams(seed=0, grammar="root ::= [a]")),
        ({"choice": ["a", 'b"']}, SamplingParams(seed=0, grammar='%llguidance {}\nstart: "a" | "b\\""')),
    ):
        assert params(structured_outputs=asked) == expected
    choice = params(structured_outputs={"choice": ["a", "b"]})
    assert params(guided_choice=["a", "b"]) == choice
    assert params(guided_choice=None) == params()
    assert ignored(guided_choice=[1]) == ["guided_choice"]
    for other in ({"regex": "a"}, {"search": "beam"}, {"response_format": {"type": "json_object"}}, {"heal": True}):
        assert ignored(guided_choice=["a"], **other) == ["guided_choice"]
    for other in ({"heal": False}, {"response_format": {"type": "text"}}):
        assert params(guided_choice=["a", "b"], **other) == choice
    assert ignored(structured_outputs={"regex": "a", "disable_any_whitespace": True}) == [
        "structured_outputs.disable_any_whitespace"
    ]


def test_a_grammar_in_lark_has_a_field_of_its_own() -> None:
    assert params(lark="start: /a/") == params(grammar=in_lark("start: /a/"))
    assert params(lark="") == params(lark=None) == params()
    with pytest.raises(InvalidRequestError, match="grammar and lark exclude each other"):
        params(lark="start: /a/", grammar='root ::= "a"')


@pytest.mark.parametrize(
    ("common", "expected"),
    [
        ({"grammar": in_lark("start: /b/")}, (in_lark("start: /b/"), None, None)),
        ({"json_schema": True}, (None, "true", None)),
        ({"regex": "b"}, (None, None, "b")),
    ],
)
def test_a_branchs_own_takes_the_place_of_what_all_texts_must_match(
    common: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    own: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
        ({}, expected),
        ({"grammar": "g"}, ("g", None, None)),
        ({"json_schema": {}}, (None, "{}", None)),
        ({"regex": "a"}, (None, None, "a")),
        ({"grammar": ""}, (None, None, None)),
        ({"structured_outputs": {"json_object": True}}, (None, '{"type": "object"}', None)),
    ]
    made = branches_of(branches=[branch for branch, _ in own], **common)
    assert [(each.grammar, each.json_schema, each.regex) for each in made] == [each for _, each in own]


def test_each_branch_may_have_its_own() -> None:
    branches = [{"stop": ["x"]}, {"mirostat": 2, "seed": 9}, {"logit_bias": {"7": 1}}]
    first, second, third = branches_of(top_k=5, branches=branches)
    assert (first.stop, second.stop) == (("x",), ())
    assert (second.mirostat, second.seed, third.mirostat) == (2, 9, 0)
    assert third.logit_bias == ((7, 1.0),)
    assert (first.top_k, second.top_k, third.top_k) == (5, 5, 5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logit_bias": {f"x{i}": 1 for i in range(10_001)}}, None),
        ({"logit_bias": [["x", 1]] * 5_000, "banned_tokens": ["x"] * 5_000, "branches": [{}] * 7}, None),
        ({"logit_bias": [["x", 1]] * 5_000, "branches": [{}, {"banned_tokens": ["y"] * 5_001}]}, "10001 texts"),
        ({"branches": [{"logit_bias": {f"x{i}": 1 for i in range(1_500)}} for _ in range(7)]}, "10500 texts"),
        ({"branches": [{"logit_bias": {f"{i}": 1 for i in range(5_000)}} for _ in range(8)]}, None),
    ],
)
def test_the_texts_of_biases_are_counted_before_they_are_tokenized(fields: dict[str, Any], message: str | None) -> None:
    tokenized: list[str] = []

    def tokenize_and_count(text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]:
        tokenized.append(text)
        return tokenize(text, is_prompt=is_prompt)

    limits = dataclasses.replace(LIMITS, tokenize=tokenize_and_count)
    if message is None:
        assert read(limits, **fields).completion.branches
        return
    with pytest.raises(InvalidRequestError, match=f"have {message}.* the limit is 10000; send token ids") as caught:
        read(limits, **fields)
    assert (caught.value.param, tokenized) == ("logit_bias", [])


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"logit_bias": 5}, "logit_bias", "got 5"),
        ({"logit_bias": [[1]]}, "logit_bias", "pairs"),
        ({"logit_bias": [[1, True]]}, "logit_bias", "a number or false"),
        ({"logit_bias": {"a": "much"}}, "logit_bias", "a number or false"),
        ({"logit_bias": {"a": "nan"}}, "logit_bias", "a number or false"),
        ({"max_tokens": 10**400}, "max_tokens", "from -1 to 2147483647"),
        ({"dry_sequence_breakers": "[" * 100_000}, None, "nested too deeply"),
        ({"logit_bias": {"": 1}}, "logit_bias", "token ids and strings"),
        ({"banned_tokens": [1.5]}, "banned_tokens", "1.5"),
        ({"samplers": 5}, "samplers", "list"),
        ({"dry_sequence_breakers": "[1]"}, "dry_sequence_breakers[0]", "string"),
        ({"grammar": "x" * 100_001}, "grammar", "the limit is 100000"),
        ({"grammar": 'root ::= "x"', "json_schema": {}}, "grammar", "exclude each other"),
        ({"regex": "a" * 10_001}, "regex", "regex has 10001 characters; the limit is 10000"),
        ({"grammar": in_lark("a" * 1_000_001)}, "grammar", "the limit is 1000000"),
        ({"structured_outputs": {}}, "structured_outputs", "must have one of json, json_object, regex"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "got regex, choice"),
        ({"structured_outputs": {"regex": 5}}, "structured_outputs", "structured_outputs.regex must be a text, got 5"),
        ({"structured_outputs": {"choice": [5]}}, "structured_outputs", "must be a list of texts"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs", "structured_outputs.json: "),
        ({"response_format": {"type": "yaml"}}, "response_format", "json_object"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "missing"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": None}}}, "response_format", "missing"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            "response_format",
            "response_format.json_schema.schema must be an object, got 5",
        ),
        ({"response_format": {"type": "json_object", "schema": "{"}}, "response_format", "response_format.schema: "),
        ({"json_schema": "{"}, "json_schema", "a JSON schema or its text"),
        ({"dynatemp_low": -3, "dynatemp_high": 1}, "temperature", "from 0 to 100, got -1.0"),
        ({"mirostat": 3}, "mirostat", "from 0 to 2"),
        ({"repeat_penalty": 0}, "repeat_penalty", "from 0.01 to 100"),
        ({"repeat_last_n": 2**31}, "repeat_last_n", "to 2147483647"),
        ({"xtc_probability": "1e999"}, "xtc_probability", "finite"),
        ({"branches": [{}, {"logit_bias": {"a": "b"}}]}, "branches[1].logit_bias", "a number or false"),
    ],
)
def test_wrong_values_are_named(fields: dict[str, Any], param: str | None, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        params(**fields)
    assert caught.value.param == param
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("sent", "tokens"),
    [("no", (0, *b"no")), ([110, "o", 32], (110, 111, 32)), ("", None), ([], None), (["", "a"], (0, 97))],
)
def test_a_negative_prompt_is_a_text_or_tokens(sent: Any, tokens: tuple[int, ...] | None) -> None:
    assert ignored(negative_prompt=sent, guidance_scale=2) == []
    given = params(negative_prompt=sent, cfg_scale="1.5")
    assert (given.negative_prompt, given.guidance_scale) == (tokens, 1.5)


def test_a_negative_prompt_without_a_scale_is_reported() -> None:
    assert ignored(negative_prompt="x") == ["negative_prompt"]
    assert ignored(negative_prompt="x", guidance_scale=1) == ["negative_prompt"]
    assert ignored(negative_prompt="", guidance_scale=1) == []
    assert ignored(negative_prompt="x", branches=[{}, {"guidance_scale": 2}]) == []


def test_branches_have_their_own_negative_prompts() -> None:
    completion = read(guidance_scale=2, branches=[{}, {"negative_prompt": "y"}, {"guidance_scale": 1}]).completion
    assert completion.guided == (0, 1)
    assert [each.negative_prompt for each in completion.branches] == [None, (0, 121), None]


def test_bodies_have_every_field_of_the_engine() -> None:
    params = {each.name for each in dataclasses.fields(SamplingParams)}
    assert params - {*BranchFields.model_fields} == {"logits_processor"}, "the library's own"
    named = {BODY_NAMES.get(each.name, each.name) for each in dataclasses.fields(CompletionRequest)}
    made = {
        "prompts",
        "most_tokens",
        "special_tokens",
        "shared_within",
        "slot",
        "explore",
        "media",
        "any_seed",
        "id",
        "direction_at",
    }
    assert named - {*CompletionFields.model_fields} == made | {"resumed", "hidden_stop", "direction_at"}


def test_the_documentation_has_every_field() -> None:
    pages = "".join(page.read_text() for page in (Path(__file__).parents[3] / "docs" / "http").glob("*.md"))
    assert [name for name in CompletionFields.model_fields if f"`{name}`" not in pages] == []
