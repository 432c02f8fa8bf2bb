"""Random tools as nobody should write them, from a seed: odd keywords, values of wrong types, names that are none."""

import random
import re
from typing import Any

_VALUES: list[Any] = [
    *(None, True, False, 0, -1, 2.0, 1.5, 2**63, -(2**63), 1.8e308, "", "a text", "int", "any", "null", "file"),
    *([], {}, [None], [1, "a"], ["string", "null"], {"type": "integer"}, [{"type": "string"}], ["a", "a"]),
    *("^(?!a)b$", "[", r"\bword\b", r"\d+", "#", "#/$defs/a", "#/properties/a", "https://example.org/x.json", "a\0b"),
]
_KEYWORDS = re.findall(
    r"\S+",
    """
    type properties required items prefixItems additionalProperties additionalItems patternProperties
    propertyNames enum const format pattern minLength maxLength minimum maximum exclusiveMinimum
    exclusiveMaximum multipleOf minItems maxItems uniqueItems contains minProperties maxProperties anyOf
    allOf oneOf not if then else $ref $defs definitions $id $anchor dependencies dependentRequired
    dependentSchemas title description default examples nullable x-order $schema strict
    """,
)
_TYPES = ["string", "integer", "number", "boolean", "array", "object", "null", "int", "str", "float", "any", "Date"]
_FORMATS = ["date", "email", "uri", "int32", "password", "", None, "date-time"]
_NAMES = ["a", "b", "integer", "type", "$ref", "", "é", 'a"b', "a b"]


def odd_schema(rng: random.Random, depth: int = 3) -> Any:
    """Return a schema, or what isn't one."""
    if depth == 0 or rng.random() < 0.1:
        return rng.choice([{"type": rng.choice(_TYPES)}, *_VALUES])
    schema: dict[str, Any] = {"type": rng.choice(_TYPES)} if rng.random() < 0.7 else {}
    for name in rng.sample(_KEYWORDS, rng.randint(0, 4)):
        schema[name] = _value(rng, name, depth - 1)
    return schema


def _value(rng: random.Random, name: str, depth: int) -> Any:
    if rng.random() < 0.3:
        return rng.choice(_VALUES)
    match name:
        case "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" | "dependencies":
            return {each: odd_schema(rng, depth) for each in rng.sample(_NAMES, rng.randint(0, 4))}
        case "anyOf" | "allOf" | "oneOf" | "prefixItems":
            return [odd_schema(rng, depth) for _ in range(rng.randint(0, 3))]
        case "items" | "additionalProperties" | "not" | "if" | "then" | "else" | "contains" | "propertyNames":
            return odd_schema(rng, depth)
        case "type":
            return rng.choice([rng.choice(_TYPES), rng.sample(_TYPES, 2)])
        case "format":
            return rng.choice(_FORMATS)
        case "required":
            return rng.sample(_NAMES, rng.randint(0, 3))
    return rng.choice(_VALUES)


def odd_function(rng: random.Random, k: int) -> dict[str, Any]:
    """Return a function with a name of its own, and a schema that is odd."""
    parameters = odd_schema(rng)
    if rng.random() < 0.7:
        properties = {each: odd_schema(rng) for each in rng.sample(_NAMES, rng.randint(1, 4))}
        parameters = {"type": "object", "properties": properties, "required": rng.sample(_NAMES, 1)}
    return {"name": f"tool_{k}", "description": rng.choice(["It helps.", None, 5]), "parameters": parameters}


def odd_tool(rng: random.Random, k: int) -> Any:
    """Return a tool in one of several notations, or what isn't one."""
    function = odd_function(rng, k)
    return rng.choice(
        [
            *([{"type": "function", "function": function}] * 6),
            {"type": "function"} | function,
            {"type": "function", "function": None} | function,
            {"type": None, "function": function, "strict": "yes"},
            {"function": function | {"name": rng.choice([None, "", "a b", "é", 5, "x" * 200, "tool_0"])}},
            {"type": "custom", "name": f"tool_{k}", "input_schema": function["parameters"]},
            {"name": f"tool_{k}", "inputSchema": function["parameters"]},
            *({}, None, "a text", 5, [], {"type": 5}, {"type": "web_search"}, {"type": "function", "function": "text"}),
        ]
    )
