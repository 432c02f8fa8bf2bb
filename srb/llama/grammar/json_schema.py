"""Prepares JSON schemas for llguidance, and finds what it can't enforce. Pure functions.

llguidance accepts more than it enforces (docs/http/grammars.md). This module gives it better patterns for some formats,
and refuses what it gets wrong or takes long for. A schema is first compiled as it came, which decides whether it can be
enforced, and then with its objects closed.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, cast

MAX_MULTIPLE = 10_000
"""The largest `multipleOf`, without its decimal point and trailing zeros. It takes 0.2 s."""

_OPTIONS = {
    "whitespace_flexible": False,  # otherwise a small model might write spaces forever
    "item_separator": ", ",
    "key_separator": ": ",
    # \u isn't allowed, because a model could write "\u0061" for the property "a".
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
"""The character classes of whitespace as JavaScript has them: patterns in JSON schemas are JavaScript's."""

FORMATS = ("date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid", "unknown")
"""The formats of strings that are enforced."""

UNENFORCED = {
    *("contains", "dependencies", "dependentRequired", "dependentSchemas", "if", "then", "else", "not"),
    *("minContains", "maxContains", "propertyNames", "unevaluatedItems", "unevaluatedProperties", "uniqueItems"),
    *("$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef"),
}
"""The keywords that llguidance refuses, or ignores if it is lenient."""

_OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_VALUES = ("const", "enum", "default", "examples", "example")
# A schema with one of these keywords isn't closed: it says which other properties are allowed, or closing one of its
# parts would contradict another part.
_OPEN = {"additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "$ref"}

# Control characters without a short escape in JSON, and how a regular expression may write them, except as an end of a
# range.
_CONTROL = re.compile(r"[\0-\x07\v\x0e-\x1f\x7f]")
_CONTROL_ESCAPE = re.compile(
    r"[\0-\x07\v\x0e-\x1f\x7f]|(?<!\\)(?:\\\\)*(?<!-)\\(?:x(?:0[0-7bBeEfF]|1[0-9a-fA-F]|7[fF])|u00(?:0[0-7bBeEfF]|1[0-9a-fA-F]|7[fF])|[0av]|c[A-Za-z])(?!-)"
)


def as_lark(schema: Any, **options: bool) -> str:
    """Return a schema as a part of a Lark grammar. options: those of llguidance, such as `lenient`."""
    if isinstance(schema, dict):
        schema = schema | {"x-guidance": _OPTIONS | options}
    return f"%json {json.dumps(schema)}"


def corrected(schema: Any) -> Any:
    """Give some formats better patterns: llguidance's date allows the 29th of February in any year."""

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
    """Close the objects of a schema: only named properties are allowed, unless the schema says otherwise.

    A schema with `properties` becomes an object's, even without a `type`.
    """

    def close(each: dict[str, Any]) -> dict[str, Any]:
        properties, required = each.get("properties"), each.get("required", [])
        named = (
            isinstance(properties, dict) and isinstance(required, list) and all(name in properties for name in required)
        )
        return (
            {"type": "object"} | each | {"additionalProperties": False} if named and not _OPEN & each.keys() else each
        )

    return _mapped(schema, close, (*_VALUES, "allOf"))


def unenforced(schema: Any) -> list[str]:
    """Return the keywords and formats in a schema that a lenient llguidance doesn't always enforce."""
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
    """Return the first part of a schema that llguidance gets wrong or takes very long for; None if there is none."""
    for each in _schemas(schema):
        multiple = each.get("multipleOf")
        if isinstance(multiple, int | float) and _digits(multiple) > MAX_MULTIPLE:
            return (
                f"multipleOf is {multiple!s:.60}; without its decimal point and trailing zeros it must be at most "
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
    """Return the digits of a number, without its decimal point and trailing zeros; 0 if it isn't finite."""
    if not math.isfinite(number):
        return 0
    value = Decimal(str(number)).normalize()
    exponent = cast(int, value.as_tuple().exponent)
    return abs(int(value.scaleb(max(0, -exponent))))


def _names(value: Any) -> list[Any]:
    return list(value) if isinstance(value, dict) else []


def _texts(value: Any) -> Iterator[str]:
    """Yield all strings in a JSON value, including names in its objects."""
    if isinstance(value, str):
        yield value
    for each in (
        [*_names(value), *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from _texts(each)


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and all schemas in it."""
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


def _mapped(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]], skip: tuple[str, ...] = _VALUES) -> Any:
    """Change a schema and all schemas in it. Values of the keywords in `skip` stay as they are."""
    if isinstance(schema, list):
        return [_mapped(each, change, skip) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {}
    for name, value in schema.items():
        if name in skip:
            result[name] = value
        elif name in _OF_NAMES and isinstance(value, dict):
            result[name] = {key: _mapped(each, change, skip) for key, each in value.items()}
        else:
            result[name] = _mapped(value, change, skip)
    return change(result)
