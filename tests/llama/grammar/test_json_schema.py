"""JSON schemas: what they allow, judged by their own test suite, and what of them is refused."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from schema_writer import Writer, judge_of
from tiny_model import write_tiny_model

from srb.errors import InvalidRequestError
from srb.llama.grammar.json_schema import MAX_MULTIPLE, UNENFORCED

CASES = json.loads((Path(__file__).parent / "schema_suite.json").read_text())["cases"]


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    writer = Writer(write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf"))
    yield writer
    writer.backend.close()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["description"])
def test_texts_match_and_what_the_suite_calls_invalid_is_impossible(writer: Writer, case: dict[str, Any]) -> None:
    """bench/checks/schema_suite.py does this with all of the suite."""
    schema = case["schema"]
    tests = [{"data": data, "valid": valid} for valid, name in enumerate(("invalid", "valid")) for data in case[name]]
    matches = judge_of(schema, jsonschema.Draft202012Validator, tests)
    texts = [text for text in writer.texts(schema, 8) if text is not None]
    assert texts
    assert [text for text in texts if not matches(text)] == []
    for data in case["invalid"]:
        assert not writer.can_write(schema, json.dumps(data, ensure_ascii=False)), data


EITHER = {"oneOf": [{"type": "object", "properties": {"t": {"const": k}}, "required": ["t"]} for k in "ab"]}

TAGGED: Any = {  # a discriminated union, as pydantic writes it
    "properties": {"a": {"oneOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}]}},
    "$defs": {
        k: {"type": "object", "properties": {"t": {"const": k, "type": "string"}}, "required": ["t"]} for k in "xy"
    },
}

ALLOWED: list[tuple[Any, str]] = [
    (True, '[1, {"a": null}]'),
    ({"type": "object", "properties": {"a": {}, "b": {}}}, '{"b": 1}'),
    ({"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "integer"}}, '{"a": "", "b": 1}'),
    ({"type": "array", "minItems": 3, "maxItems": 10**9, "items": {"const": 1}}, "[1, 1, 1]"),
    ({"allOf": [{"properties": {k: {}}, "required": [k]} for k in "ab"]}, '{"a": 1, "b": 2}'),
    ({"type": "object", "properties": {"a": {}}, "anyOf": [{"required": ["b"]}]}, '{"a": 1, "b": 2}'),
    ({"pattern": r"^\S\s[^\x00-\x1f]$"}, '"a b"'),
    ({"format": "date"}, '"2024-02-29"'),
    ({"format": "date-time"}, '"2024-02-29T23:59:59.5Z"'),
    ({"format": "time"}, '"23:59:59+01:00"'),
    ({"format": "email"}, '"a.b+c@example.org"'),
    ({"format": "hostname"}, '"www.example-1.org"'),
    ({"format": "date"}, "5"),
    ({"title": "t", "deprecated": True, "x-own": {}, "const": "a"}, '"a"'),
    (EITHER, '{"t": "b"}'),
    (TAGGED, '{"a": {"t": "y"}}'),
    ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}}, "[[], [[]]]"),
    ({"multipleOf": 0.01}, "1.25"),
    ({"type": "str", "minLength": 2.0, "maxLength": None, "enum": None}, '"ab"'),
    ({"type": ["int", "None"]}, "null"),
    ({"type": "any"}, "[]"),
    ({"type": "object", "properties": None, "required": None}, "{}"),
    ({"type": "object", "properties": {"a": None}}, '{"a": []}'),
    ({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer"}}, '{"a": 1}'),
    (
        {"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}, "required": ["a"]},
        '{"a": 1}',
    ),
    ({"type": "object", "properties": {"a": {}}, "propertyNames": {"type": "string", "const": "a"}}, '{"a": []}'),
    (
        {"type": "object", "propertyNames": {"$ref": "#/$defs/n"}, "$defs": {"n": {"title": "N", "enum": ["a"]}}},
        '{"a": 1}',
    ),
    ({"propertyNames": {"pattern": "^k[0-9]$"}, "additionalProperties": {"type": "integer"}}, '{"k1": 5}'),
    ({"type": "string", "format": "cuid2", "pattern": "^[0-9a-z]+$"}, '"a1"'),
    ({"type": "string", "format": "ends_with", "allOf": [{"pattern": "^x.*"}, {"pattern": ".*y$"}]}, '"x-y"'),
    ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, "-5"),
    ({"type": "number", "minimum": -1.8e308, "maximum": 1.8e308}, "-5.5"),
    ({"type": "integer", "default": -(2**63)}, "5"),
    ({"type": "integer"}, "-" + "9" * 16),
    ({"type": "number"}, f"-{'9' * 16}.{'9' * 16}e-300"),
    ({}, '[{"a": 6.022e23, "b": "' + "1" * 40 + '"}]'),
    ({"type": "number", "exclusiveMinimum": 0}, "0.0000000000000001"),
    ({"enum": [1e-20]}, "0." + "0" * 19 + "1"),
    ({"type": "integer", "minimum": 10**17}, "1" + "0" * 17),
    ({"type": "integer", "enum": [10**18]}, "1" + "0" * 18),
    ({"allOf": [{"type": "integer"}, {"minimum": 10**17}]}, "1" + "0" * 17),
    ({"multipleOf": MAX_MULTIPLE - 1}, str(MAX_MULTIPLE - 1)),
]

IMPOSSIBLE: list[tuple[Any, str]] = [
    ({"type": "object", "properties": {"a": {}}}, '{"b": 1}'),
    ({"properties": {"a": {"type": "integer"}}, "additionalProperties": {}}, r'{"\u0061": ""}'),
    ({"format": "date"}, '"2023-02-29"'),
    ({"format": "date"}, '"1900-02-29"'),
    ({"format": "date"}, '"2023-04-31"'),
    ({"format": "time"}, '"12:00:60Z"'),
    ({"pattern": "^\\S$"}, '"\ufeff"'),
    ({"type": "integer", "minimum": 3, "maximum": 12}, "13"),
    ({"type": "integer"}, "1" + "0" * 16),
    ({"type": "number"}, "1" + "0" * 16),
    ({"type": ["number", "null"]}, "0." + "0" * 17),
    ({"type": "number", "minimum": 0}, "0." + "0" * 17),
    ({"anyOf": [{"type": "number"}, {"type": "string"}]}, "1e1000"),
    ({}, "[1" + "0" * 16 + "]"),
    ({"type": "object", "properties": {"a": {"type": "array", "items": {}}}}, '{"a": [1' + "0" * 16 + "]}"),
    ({"type": "object", "additionalProperties": True}, '{"a": [0, 1' + "0" * 16 + "]}"),
    ({"minItems": 1}, "[1" + "0" * 16 + "]"),
    ({"type": "array", "items": {"type": "number", "multipleOf": 0.5}}, "[1" + "0" * 16 + "]"),
    ({"type": ["integer", "null"], "minimum": 0}, "1" + "0" * 16),
    ({"type": "str", "minLength": 2.0, "maxLength": None, "enum": None}, '"a"'),
    (EITHER, '{"t": "c"}'),
    (TAGGED, '{"a": {"t": "z"}}'),
    ({"type": "array"}, "[ ]"),
    ({"properties": {"a": {}}}, "5"),
    ({"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}}, '{"c": 1}'),
    ({"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}}, '{"a": ""}'),
    (
        {"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}, "required": ["b"]},
        '{"a": 1}',
    ),
    ({"properties": {"a": {}}, "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": False}, '{"b": 1}'),
    ({"type": "object", "propertyNames": {"$ref": "#/$defs/n"}, "$defs": {"n": {"enum": ["a"]}}}, '{"b": 1}'),
    ({"propertyNames": {"pattern": "^k[0-9]$"}, "additionalProperties": {"type": "integer"}}, '{"k": 5}'),
    ({"type": "string", "format": "cuid2", "pattern": "^[0-9a-z]+$"}, '"A"'),
]


@pytest.mark.parametrize(
    ("schema", "text", "possible"), [*((*e, True) for e in ALLOWED), *((*e, False) for e in IMPOSSIBLE)]
)
def test_what_can_be_written(writer: Writer, schema: Any, text: str, possible: bool) -> None:
    assert writer.can_write(schema, text) == possible


@pytest.mark.parametrize("schema", [{}, {"type": "number", "exclusiveMaximum": -0.5}, {"multipleOf": 7}], ids=str)
def test_no_number_is_written_forever(writer: Writer, schema: Any) -> None:
    texts = [text for text in writer.texts(schema | {"type": "number"}, 40) if text is not None]
    assert len(texts) == 40
    assert all(len(digits) <= 16 for text in texts for digits in re.findall("[0-9]+", text))


def test_a_choice_is_recognized_before_its_objects_are_closed(writer: Writer) -> None:
    """Closed, the first one would exclude what the second one needs; but {"a": 1} is both as they are."""
    first = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    second = {"type": "object", "properties": {"b": {"type": "integer"}}}
    with pytest.raises(InvalidRequestError, match="oneOf has choices that the same value may match"):
        list(writer.texts({"oneOf": [first, second]}, 1))


OBJECT: Any = {"type": "object", "properties": {}, "additionalProperties": False}
REFUSED: list[tuple[Any, str]] = [
    *(
        ({each: {"x": ["y"]}}, rf"json_schema can't be enforced: .*{each[1:]}.*; leave that out")
        for each in sorted(UNENFORCED)
    ),
    (5, "must be an object, got 5"),
    ({"type": "nope"}, "Invalid type: nope"),
    ({"format": "password"}, "Unknown format: password"),
    ({"pattern": "(?=a)b"}, "regex parse error"),
    ({"$ref": "https://example.org/schema.json"}, "does not fetch resources"),
    ({"$ref": "#"}, "no text can match it"),
    ({"properties": {"a": {"multipleOf": 10_007}}}, "multipleOf is 10007; .* must be at most 10000"),
    ({"multipleOf": 1.00001}, "multipleOf is 1.00001"),
    ({"properties": {"a": {"items": {"pattern": "(?=x)"}}}}, r"be enforced: properties\.a\.items: regex parse error"),
    ({"properties": {"a": {"$ref": "#/$defs/m"}}, "$defs": {"m": {"not": {}}}}, r"be enforced: \$defs\.m: "),
    (OBJECT | {"properties": {"a": OBJECT, "b": {"uniqueItems": True}}}, r"be enforced: properties\.b: Unimplemented"),
    (
        TAGGED | {"properties": {"a": TAGGED["properties"]["a"], "b": {"format": "jwt"}}},
        r"be enforced: properties\.b: ",
    ),
    (
        {"oneOf": [{"$ref": "#/$defs/x"}] * 2, "$defs": TAGGED["$defs"]},
        "oneOf has choices that the same value may match",
    ),
    ({"oneOf": [{"$ref": "#"}, {"$ref": "#/$defs/z"}], "$defs": 1}, "does not exist"),
    ({"properties": {"a": {}, "b": {}}, "propertyNames": {"enum": ["a"]}}, "be enforced: .*propertyNames"),
    ({"minProperties": 2}, "minProperties is 2, but a name may come twice"),
    ({"const": "a\0"}, "a control character"),
    ({"const": -(2**63)}, "a number in const, enum or a bound is -9223372036854775808"),
    ({"type": "integer", "const": -1e30}, r"a number in .* is -1e\+30"),
    ({"items": {"enum": [{"a": 1 - 2**63}]}}, "a number in"),
    ({"$ref": "#/examples/0", "examples": [{"const": -(2**63)}]}, "a number in"),
    ({"enum": [{"a": ["\x7f"]}]}, "a control character"),
    ({"pattern": r"^a\x00b$"}, "a control character"),
    ({"pattern": r"\v"}, "a control character"),
    ({"enum": ["x" * 100_000]}, "the limit is 100000"),
    ({"properties": {str(k): {} for k in range(6_000)}}, "too big"),
]


@pytest.mark.parametrize(("schema", "message"), REFUSED, ids=lambda each: str(each)[:60])
def test_what_cannot_be_enforced_is_refused(writer: Writer, schema: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        list(writer.texts(schema, 1))
    assert caught.value.param == "json_schema"
