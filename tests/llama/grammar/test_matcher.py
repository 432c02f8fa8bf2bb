"""Grammars in Lark, as tools have them: what they allow, and what can't be one."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jsonschema_rs
import pytest
from driver import request, run, stops, texts
from llguidance import LLMatcher
from odd_tools import odd_function
from tiny_model import CONTROL

from srb.engine.engine import Engine
from srb.engine.events import StreamEvent
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams, in_lark
from srb.errors import InvalidRequestError, NoTokenError
from srb.llama.backend import LlamaBackend
from srb.llama.grammar.matcher import GrammarMatcher
from srb.wire.reasoning import ReasoningFormat
from srb.wire.tools.calls import PLAIN, CallFormat, CallReader
from srb.wire.tools.definitions import ToolFields, Tools, tools_of

Load = Callable[..., LlamaBackend]

SCHEMAS: list[dict[str, Any]] = [
    tool["function"]["parameters"]
    for path in sorted((Path(__file__).parents[2] / "server/formats/clients").glob("*.json"))
    for tool in json.loads(path.read_text())["body"].get("tools", ())
]
"""Of the tools that clients send."""


def offer(*functions: dict[str, Any], choice: str = "auto", parallel: bool = False) -> Tools:
    tools = tools_of([ToolFields.model_validate({"function": each}) for each in functions], choice, parallel)
    assert tools
    return tools


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_the_arguments_of_a_required_call_match_its_schema(load: Load, schema: dict[str, Any]) -> None:
    """Whatever the model is: this one's weights are random."""
    params = offer({"name": "f", "parameters": schema}, choice="required").constrain(
        SamplingParams(seed=0, max_tokens=400), PLAIN
    )
    events = run(Engine(load()), CompletionRequest(((1,),), params.alternatives(8)))
    ended = [index for index, stop in stops(events).items() if stop.finish_reason == "stop"]
    for index in ended:
        reader = CallReader(PLAIN)
        name, *arguments = reader.push(texts(events)[index])
        assert (name.kind, name.text, reader.is_complete) == ("name", "f", True)
        value = json.loads("".join(delta.text for delta in arguments))
        jsonschema_rs.validate({"type": "object"} | schema, value)
    assert ended


def test_after_the_mark_of_a_call_comes_nothing_else(load: Load) -> None:
    form = CallFormat("!{", ":", "}", "},{")
    params = offer({"name": "f"}, parallel=True).constrain(SamplingParams(), form)
    said = texts(run(Engine(load()), request("p", 32, grammar=params.grammar, temperature=2, max_tokens=300))).values()
    calls = [text.partition("!")[2] for text in said if "!" in text]
    assert calls
    for call in calls:
        longest = "{f:{}" + "},{f:{}" * len(call)
        assert re.fullmatch(r"\{f:\{\}(\},\{f:\{\})*\}", call) or longest.startswith(call)  # or it was cut


CALL = PLAIN.write([{"function": {"name": "f", "arguments": "{}"}}])
BARE = CallFormat('{"name": "', '", "parameters": ', "}", None)
BARE_CALL = BARE.write([{"function": {"name": "f", "arguments": "{}"}}])
NOISE = f"so: {CALL[:25]} no, {BARE_CALL[:15]}"
"""Thoughts with calls that end where no call would."""

WITH_THOUGHTS = [
    ("auto", PLAIN, None, [CALL, f"Well:\n{CALL}", "Yes. ", "", "  \nYes. <think>"], [CALL[:-5], f"{CALL[:12]}\n\n"]),
    ("auto", BARE, None, [BARE_CALL, "Yes. ", "", "  \nYes. <think>"], [BARE_CALL[:-2]]),
    ("required", PLAIN, None, [CALL], ["Yes.", ""]),
    ("auto", PLAIN, '{"type": "boolean"}', [CALL, "true"], ["Yes.", ""]),
]


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize(("choice", "form", "schema", "right", "wrong"), WITH_THOUGHTS, ids=range(len(WITH_THOUGHTS)))
def test_thoughts_before_calls_are_free(
    load: Load,
    is_open: bool,
    choice: str,
    form: CallFormat,
    schema: str | None,
    right: list[str],
    wrong: list[str],
) -> None:
    backend = load()
    reasoning = ReasoningFormat("<think>", "</think>", is_open)
    params = offer({"name": "f"}, choice=choice).constrain(SamplingParams(json_schema=schema), form, reasoning)
    grammar = backend.compile((params,))

    def matches(text: str) -> bool:
        constraint = grammar.constraint(params)
        assert constraint
        constraint = constraint.copy()
        for token in text.encode():
            if not constraint.allows(token):
                return False
            constraint.accept(token)
        return any(map(constraint.allows, backend.tokenizer.ends))

    begin = "" if is_open else "<think>\n"
    for end in ("</think>", "\n</think>\n\n"):
        assert [text for text in right if not matches(f"{begin}{NOISE}{end}{text}")] == []
        assert [text for text in wrong if matches(f"{begin}{NOISE}{end}{text}")] == []
    assert [text for text in right if matches(text)] == ([] if is_open else right)
    assert not matches(f"{begin}{NOISE}"), "thoughts end"


def test_a_control_token_counts_as_its_name_where_that_is_in_the_text(load: Load) -> None:
    params = SamplingParams(grammar=in_lark('start: "<|control|>" /[ab]/'), seed=0)
    used = []
    for special in (True, False):
        each = CompletionRequest(((1,),), params.alternatives(8), special_tokens=special, logprobs=0)
        events = run(Engine(load()), each)
        assert all(re.fullmatch(r"<\|control\|>[ab]", text) for text in texts(events).values())
        assert {stop.finish_reason for stop in stops(events).values()} == {"stop"}
        used.append({event.token.id for event in events if isinstance(event, StreamEvent) and event.token})
    assert [CONTROL in each for each in used] == [True, False]


def test_alternatives_that_exclude_each_others_tokens_keep_to_a_grammar(load: Load) -> None:
    params = SamplingParams(grammar=in_lark("start: /[abc]/"), samplers=(), seed=0)
    events = run(Engine(load()), CompletionRequest(((1,),), params.alternatives(3), distinct=True))
    assert sorted(texts(events).values()) == ["a", "b", "c"]


def test_a_grammar_that_turns_out_to_be_too_complex_allows_nothing() -> None:
    class Broken:
        """A matcher that has met one of its limits, which takes a large vocabulary."""

        def is_stopped(self) -> bool:
            return True

        def is_error(self) -> bool:
            return True

        def compute_bitmask(self) -> bytes:
            return b"\0"

        def get_error(self) -> str:
            return "parser error: Too many items (limit 30000; mask); try avoiding single-byte/short lexemes\n<x/>"

    constraint = GrammarMatcher(cast(LLMatcher, Broken()), frozenset({2}), 3)
    assert not any(constraint.allows(token) for token in range(3))
    with pytest.raises(NoTokenError, match="too complex for this text: Too many items; write it") as caught:
        constraint.banned()
    assert (caught.value.code, caught.value.param, caught.value.status) == ("no_token", "grammar", 400)


def test_branches_match_what_each_must(load: Load) -> None:
    each: list[dict[str, Any]] = [
        {"regex": r"[a-c]{3}-[0-9]/é?"},
        {"regex": "^(?:yes|no)$"},
        {"grammar": in_lark('start: "<" x ">"\nx: /[a-z]/ x | ""')},
        {"json_schema": '{"enum": [1, "two"]}'},
        {"grammar": 'root ::= "x"'},
        {},
    ]
    branches = tuple(SamplingParams(**params, seed=0, temperature=2, max_tokens=50) for params in each)
    said = texts(run(Engine(load()), CompletionRequest(((1,),), branches * 4)))
    for k in range(4):
        code, answer, nested, value, x, _ = (said[6 * k + index] for index in range(6))
        assert re.fullmatch(r"[a-c]{3}-[0-9]/é?", code)
        assert answer in ("yes", "no")
        assert re.fullmatch("<[a-z]*(>|$)", nested)
        assert (json.loads(value) in (1, "two"), x) == (True, "x")


LOOK_AHEAD = r"^(?!\.)[^@ ]+@[^@ ]+$"

REDUCED: list[tuple[Any, list[str]]] = [
    ({"type": "string", "format": "email", "pattern": LOOK_AHEAD}, ["pattern"]),
    ({"anyOf": [{"type": "number"}, {"type": "string", "pattern": LOOK_AHEAD}]}, ["pattern"]),
    ({"type": "string", "pattern": r"\bword\b"}, ["pattern"]),
    ({"type": "string", "pattern": r"[^]\cA"}, ["pattern"]),
    ({"type": "object", "patternProperties": {"^(?!a)": {"type": "string"}}}, ["patternProperties"]),
    ({"$ref": "#/$defs/nowhere"}, ["$ref"]),
    ({"type": "object", "minProperties": 3}, ["minProperties"]),
    ({"type": "file"}, ["type"]),
    ({"enum": []}, ["enum"]),
    ({"type": "integer", "minimum": 3, "maximum": 1}, ["maximum"]),
    ({"const": "a\0"}, ["const"]),
    ({"const": {"a": [-(2**63)]}}, ["const"]),  # a crash of llguidance
    ({"enum": [1 - 2**63]}, ["enum"]),
    ("a text", ["properties"]),
    (None, []),
    ({"type": "object", "properties": None, "required": None}, []),
    ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, []),
    ({"type": "str", "minLength": 2.0}, []),
]


@pytest.mark.parametrize(("schema", "left_out"), REDUCED, ids=lambda each: str(each)[:60])
def test_tools_with_what_cannot_be_enforced_run_without_it(load: Load, schema: Any, left_out: list[str]) -> None:
    parameters = {"type": "object", "properties": {"a": schema, "b": {"const": "b"}}, "required": ["a", "b"]}
    tools = offer({"name": "good"}, {"name": "bad", "parameters": parameters}, choice="required")
    assert tools.ignored == [f"tools.bad.{name}" for name in left_out]
    assert tools.functions[1]["parameters"] == parameters  # what the model sees
    params = tools.constrain(SamplingParams(seed=0, max_tokens=400), PLAIN)
    said = texts(run(Engine(load()), CompletionRequest(((1,),), params.alternatives(8)))).values()
    assert not [text for text in said if text.endswith("</tool_call>") and '"bad"' in text and '"b": "b"' not in text]


def test_a_format_is_enforced_beside_a_pattern_that_cannot_be(load: Load) -> None:
    email = {"type": "string", "format": "email", "pattern": LOOK_AHEAD}
    tools = offer({"name": "f", "parameters": {"properties": {"a": email}, "required": ["a"]}}, choice="required")
    params = tools.constrain(SamplingParams(seed=0, max_tokens=400), PLAIN)
    said = texts(run(Engine(load()), CompletionRequest(((1,),), params.alternatives(8)))).values()
    ended = [text for text in said if text.endswith("</tool_call>")]
    assert ended
    assert [text for text in ended if not re.search(r'"a": "[^"@]+@[^"@]+\.[^"@]+"', text)] == []


def many(n: int) -> list[dict[str, Any]]:
    arguments = {f"argument_{k}": {"type": ("string", "integer", "boolean")[k % 3]} for k in range(10)}
    return [{"name": f"tool_{k}", "parameters": {"properties": arguments}} for k in range(n)]


def test_tools_that_are_too_large_together_are_enforced_less(load: Load) -> None:
    functions = [
        {
            "name": f"tool_{k}",
            "parameters": {"properties": {f"argument_{k}_{j}": {"type": "integer"} for j in range(n)}},
        }
        for k, n in enumerate([30] * 120 + [1])
    ]
    tools = offer(*functions, choice="required").fitted(PLAIN)
    reported = set(tools.ignored)
    assert 0 < len(reported) < 100
    assert reported < {f"tools.tool_{k}.parameters" for k in range(120)}
    names = [name for name in ("tool_0", "tool_119", "tool_120") if f"tools.{name}.parameters" not in reported]
    matches = matcher(load(), tools)
    for name in names:
        assert matches(name, f'{{"argument_{name.removeprefix("tool_")}_0": 5}}'), name
        assert not matches(name, '{"other": 5}'), name
    assert matches(sorted(reported)[0].split(".")[1], '{"other": [5, {}]}')
    assert "tool_120" in names, "the largest are opened first"


def matcher(backend: LlamaBackend, tools: Tools) -> Callable[[str, str], bool]:
    """Return a function that tells whether a call of a tool may have these arguments."""
    params = tools.constrain(SamplingParams(), PLAIN)
    grammar = backend.compile((params,))

    def matches(name: str, arguments: str) -> bool:
        found = grammar.constraint(params)
        assert found
        found = found.copy()
        for token in PLAIN.write([{"function": {"name": name, "arguments": arguments}}]).encode():
            if not found.allows(token):
                return False
            found.accept(token)
        return True

    return matches


def test_no_tool_is_blamed_for_their_number(load: Load) -> None:
    tools = offer(*({"name": f"{k:0128}"} for k in range(8000)))
    with pytest.raises(InvalidRequestError) as caught:
        tools.fitted(PLAIN).constrain(SamplingParams(), PLAIN)
    assert caught.value.param == "tools"
    assert "8000 tools are too many for one grammar of 24000 symbols" in caught.value.message
    assert "0000" not in caught.value.message.replace("1000000", "").replace("8000", "").replace("24000", "")


def test_a_schema_of_the_text_is_blamed_for_itself() -> None:
    tools = offer({"name": "f"}, {"name": "g", "parameters": {"properties": {"a": {}}}})
    with pytest.raises(InvalidRequestError) as caught:
        tools.constrain(SamplingParams(json_schema='{"type": "file"}'), PLAIN)
    assert caught.value.param == "json_schema"


def test_an_object_of_many_optional_properties_is_any_object(load: Load) -> None:
    """At one position of a text, a grammar may have only so many continuations; beyond, the text would fail."""
    parameters = {"properties": {f"argument_{k}": {"type": "string"} for k in range(700)}}
    tools = offer({"name": "f", "parameters": parameters}, *many(100)).fitted(PLAIN)
    assert tools.ignored == ["tools.f.properties"]
    assert matcher(load(), tools)("f", '{"argument_1": "x", "argument_2": "y"}')


def test_300_odd_functions(load: Load) -> None:
    backend = load()
    for seed in range(60):
        rng = random.Random(seed)
        tools = offer(*(odd_function(rng, k) for k in range(5))).fitted(PLAIN)
        backend.compile((tools.constrain(SamplingParams(), PLAIN),))
