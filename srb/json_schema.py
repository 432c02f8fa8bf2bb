"""JSON schemas as llguidance is to enforce them: how they are written for it, and what it can't. Pure functions."""

import json
import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, cast

MAX_MULTIPLE = 10_000
"""The largest number, without its point and zeros at its end, that `multipleOf` may have: it costs 0.2 s."""

_OPTIONS = {
    "whitespace_flexible": False,  # else a small model may write spaces without end
    "item_separator": ", ",
    "key_separator": ": ",
    # Without \u, which lets a name that `properties` has come as another one: "\u0061" for "a".
    "json_allowed_escapes": 'nrbtf\\"',
}

_DATE = (
    r"(?:(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})-"
    r"(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = "[a-zA-Z0-9]{1,20}(?:-[a-zA-Z0-9]{1,20}){0,2}"  # at most 62 characters
_ATOM = "[a-zA-Z0-9_!#$%&'*+/=?^`{|}~-]{1,20}"
_PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "hostname": rf"^{_LABEL}(?:\.{_LABEL}){{0,3}}$",
    "email": rf"^{_ATOM}(?:\.{_ATOM}){{0,2}}@{_LABEL}(?:\.{_LABEL}){{1,2}}$",
}
"""Dates and times of RFC 3339 from the year 1 on, without leap seconds; names that are within the limits of DNS."""

_SPACE = r"\x09-\x0d \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_CLASSES = {"\\s": f"[{_SPACE}]", "\\S": f"[^{_SPACE}]"}
"""What is whitespace in patterns, which are JavaScript's."""

FORMATS = ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid", "unknown")
"""The formats of strings that are enforced."""

UNENFORCED = {
    *("contains", "dependencies", "dependentRequired", "dependentSchemas", "if", "then", "else", "not"),
    *("minContains", "maxContains", "propertyNames", "unevaluatedItems", "unevaluatedProperties", "uniqueItems"),
    *("$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef"),
}
"""The keywords that llguidance refuses, or leaves out where it is lenient."""

_OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_VALUES = ("const", "enum", "default", "examples", "example")
# Where a schema says what other properties there may be, and where closing one part would contradict another.
_SAYS = {"additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "$ref"}

# A control character that JSON has no short escape for, as the whole of a part of a regular expression.
_CONTROL = re.compile(r"[\0-\x07\v\x0e-\x1f\x7f]")
_CONTROL_ESCAPE = re.compile(
    r"[\0-\x07\v\x0e-\x1f\x7f]|(?<!\\)(?:\\\\)*(?<!-)\\(?:x(?:0[0-7bBeEfF]|1[0-9a-fA-F]|7[fF])|u00(?:0[0-7bBeEfF]|1[0-9a-fA-F]|7[fF])|[0av]|c[A-Za-z])(?!-)"
)


def as_lark(schema: Any, **options: bool) -> str:
    """A schema as a part of a grammar in Lark. options: of llguidance, such as `lenient`."""
    if isinstance(schema, dict):
        schema = schema | {"x-guidance": _OPTIONS | options}
    return f"%json {json.dumps(schema)}"


def corrected(schema: Any) -> Any:
    """The schema with patterns where llguidance's own are too generous: each year of its has a 29th of February."""

    def correct(each: dict[str, Any]) -> dict[str, Any]:
        result = dict(each)
        if isinstance(each.get("pattern"), str):
            result["pattern"] = _javascript(each["pattern"])
        if isinstance(each.get("patternProperties"), dict):
            result["patternProperties"] = {_javascript(key): value for key, value in each["patternProperties"].items()}
        pattern = _PATTERNS.get(str(each.get("format")))
        if pattern:
            del result["format"]
            others = each.get("allOf", [])
            result["allOf"] = [*(others if isinstance(others, list) else [others]), {"pattern": pattern}]
        return result

    return _mapped(schema, correct)


def _javascript(pattern: str) -> str:
    return re.sub(r"\\.", lambda found: _CLASSES.get(found[0], found[0]), pattern)


def closed(schema: Any) -> Any:
    """The schema with objects that have no properties but the ones they name, unless it says more about them.

    What has properties is an object then, also where the schema doesn't say so.
    """

    def close(each: dict[str, Any]) -> dict[str, Any]:
        properties, required = each.get("properties"), each.get("required", [])
        named = (
            isinstance(properties, dict) and isinstance(required, list) and all(name in properties for name in required)
        )
        return (
            {"type": "object"} | each | {"additionalProperties": False} if named and not _SAYS & each.keys() else each
        )

    return _mapped(schema, close, (*_VALUES, "allOf"))


def unenforced(schema: Any) -> list[str]:
    """What a schema asks for that isn't enforced, or not always, where llguidance is lenient: keywords and formats."""
    found: dict[str, None] = {}
    for each in _schemas(schema):
        found |= dict.fromkeys(name for name in each if name in UNENFORCED or name == "oneOf")
        if (
            "format" in each
            and each["format"] not in FORMATS
            and each.get("type", "string") not in ("integer", "number")
        ):
            found[f"format={each['format']!s:.60}"] = None
    return list(found)


def problem(schema: Any) -> str | None:
    """What llguidance takes in this schema, but gets wrong, or takes very long for."""
    for each in _schemas(schema):
        multiple = each.get("multipleOf")
        if isinstance(multiple, int | float) and _digits(multiple) > MAX_MULTIPLE:
            return (
                f"multipleOf is {multiple!s:.60}; without its point and the zeros at its end it must be at most "
                f"{MAX_MULTIPLE}"
            )
        least, required = each.get("minProperties", 0), each.get("required", [])
        if isinstance(least, int | float) and least > max(1, len(required) if isinstance(required, list) else 0):
            return (
                f"minProperties is {least!s:.60}, but a name may come twice; it must be 1, or at most the number of "
                "names in `required`"
            )
        patterns = [each.get("pattern"), *_names(each.get("patternProperties"))]
        values = list(_texts([each.get("const"), each.get("enum")]))
        if any(map(_CONTROL.search, values)) or any(map(_CONTROL_ESCAPE.search, _texts(patterns))):
            return "a control character in const, enum or pattern can't be written"
    return None


def _digits(number: float) -> int:
    """The digits of a number, without its point and zeros at the end of its decimals; 0 if it isn't finite."""
    if not math.isfinite(number):
        return 0
    value = Decimal(str(number)).normalize()
    exponent = cast(int, value.as_tuple().exponent)
    return abs(int(value.scaleb(max(0, -exponent))))


def _names(value: Any) -> list[Any]:
    return list(value) if isinstance(value, dict) else []


def _texts(value: Any) -> Iterator[str]:
    """All strings in a JSON value."""
    if isinstance(value, str):
        yield value
    for each in (
        [*_names(value), *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from _texts(each)


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all that are in it."""
    if isinstance(schema, list):
        for each in schema:
            yield from _schemas(each)
    elif isinstance(schema, dict):
        yield schema
        for name, value in schema.items():
            if name in _OF_NAMES and isinstance(value, dict):
                yield from _schemas(list(value.values()))
            elif name not in _VALUES:
                yield from _schemas(value)


def _mapped(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]], keep: tuple[str, ...] = _VALUES) -> Any:
    """The schema with each schema in it changed, but for those that the keywords in `keep` have."""
    if isinstance(schema, list):
        return [_mapped(each, change, keep) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {}
    for name, value in schema.items():
        if name in keep:
            result[name] = value
        elif name in _OF_NAMES and isinstance(value, dict):
            result[name] = {key: _mapped(each, change, keep) for key, each in value.items()}
        else:
            result[name] = _mapped(value, change, keep)
    return change(result)
