"""Prepares JSON schemas for llguidance, and finds what it can't enforce. Pure functions.

llguidance accepts more than it enforces (docs/http/grammars.md). This module gives it better patterns for some formats,
and refuses what it gets wrong or takes long for. A schema is first compiled as it came, which decides whether it can be
enforced, and then with its objects closed.
"""

import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, TypeGuard, cast

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

MAX_DIGITS = 16
"""The most digits on each side of a number's point, as in llama-server: a small model might write digits forever."""

_MAX_MULTIPLE_VALUE = 2**53 - 1
"""The largest multiple, in either direction, for a schema without bounds."""

_TYPES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "dict": "object",
    "list": "array",
    "tuple": "array",
    "set": "array",
    "None": "null",
    "NoneType": "null",
    None: "null",
}
"""Python's names of types, by which some tools describe their arguments."""

_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
# Values of keywords that exclude nothing.
_SAYS_NOTHING: dict[str, tuple[Any, ...]] = {
    "propertyNames": (True, {}, {"type": "string"}),
    "uniqueItems": (False,),
    "dependencies": ({},),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
}

OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
"""Keywords with an object of schemas."""

OF_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
"""Keywords with a list of schemas."""

OF_ONE = ("items", "additionalItems", "additionalProperties")
"""Keywords with one schema, of those that are enforced."""

_ANNOTATIONS = ("title", "description", "default", "examples", "example", "$comment", "deprecated")

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
    """Return a schema in the notation that llguidance reads, with better patterns for some formats.

    A null is an absent keyword, 2.0 is an integer, Python's names of types are JSON's, and what excludes nothing is
    left out, as are titles and descriptions. Names that `propertyNames` lists become properties, and its pattern one of
    `patternProperties`.
    A oneOf whose choices exclude each other is an anyOf.
    llguidance's date allows the 29th of February in any year.
    """

    def correct(each: dict[str, Any]) -> dict[str, Any]:
        result = {
            name: value
            for name, value in each.items()
            if (value is not None or name == "const") and not (name in _ANNOTATIONS and isinstance(value, str))
        }
        for name in OF_NAMES:
            if isinstance(result.get(name), dict):
                result[name] = {key: {} if value is None else value for key, value in result[name].items()}
        if "type" in each:
            _correct_type(result)
        for name, value in list(result.items()):
            if name in _SAYS_NOTHING and any(
                value == each and type(value) is type(each) for each in _SAYS_NOTHING[name]
            ):
                del result[name]
            elif name in _COUNTS and isinstance(value, float) and value.is_integer():
                result[name] = int(value)
        _name_properties(result, schema)
        if "anyOf" not in result and _exclude_each_other(result.get("oneOf"), schema):
            result["anyOf"] = result.pop("oneOf")  # llguidance doesn't follow references to see this
        for name in (*_LOWER, *_UPPER):
            if _excludes_nothing(name, result.get(name), result.get("type")):
                del result[name]
        if _is_label(result):
            del result["format"]
        if isinstance(result.get("pattern"), str):
            result["pattern"] = _javascript(result["pattern"])
        if isinstance(result.get("patternProperties"), dict):
            result["patternProperties"] = {
                _javascript(key): value for key, value in result["patternProperties"].items()
            }
        pattern = _PATTERNS.get(str(result.get("format")))
        if pattern:
            del result["format"]
            others = result.get("allOf", [])
            result["allOf"] = [*(others if isinstance(others, list) else [others]), {"pattern": pattern}]
        return result

    return _mapped(schema, correct)


def _correct_type(schema: dict[str, Any]) -> None:
    """Replace Python's names of types; `any` is no type."""
    kinds = schema.pop("type", None)
    listed = kinds if isinstance(kinds, list) else [kinds]
    if kinds is None or any(kind in ("any", "Any") for kind in listed):
        return
    found = [_TYPES.get(kind, kind) if isinstance(kind, str | None) else kind for kind in listed]
    schema["type"] = found if isinstance(kinds, list) else found[0]


def _name_properties(schema: dict[str, Any], root: Any) -> None:
    """Replace `propertyNames`, as zod and pydantic write it for records, if it lists the names or has a pattern."""
    known, rest = schema.get("properties", {}), schema.get("additionalProperties", {})
    if "patternProperties" in schema or not isinstance(known, dict):
        return
    match _named(schema.get("propertyNames"), root):
        case {"enum": list(names)} if all(isinstance(name, str) for name in names) and known.keys() <= set(names):
            others = () if rest is False else (name for name in names if name not in known)
            schema["properties"] = known | dict.fromkeys(others, rest)
        case {"pattern": str(pattern)} if not known:
            schema["patternProperties"] = {pattern: rest}
        case _:
            return
    del schema["propertyNames"]
    schema["additionalProperties"] = False


def _named(names: Any, root: Any) -> Any:
    """Return a schema of names that has only an enum or a pattern, if this one is such; pydantic refers to enums."""
    names = _referred(names, root)
    kept = {name: value for name, value in names.items() if name not in _ANNOTATIONS} if isinstance(names, dict) else {}
    if kept.pop("type", "string") != "string" or len(kept) != 1:
        return None
    return {"enum": [kept["const"]]} if "const" in kept else kept


def _referred(schema: Any, root: Any) -> Any:
    """Return the schema that a reference is to, if it is one of `$defs`; another schema as it is."""
    match schema, root:
        case {"$ref": str(place), **others}, {"$defs": dict(schemas)} if not others:
            return schemas.get(place.removeprefix("#/$defs/"))
    return schema


def _exclude_each_other(choices: Any, root: Any) -> bool:
    """Return whether each choice requires a property with other texts than the others, as in discriminated unions."""
    tags = [_tags(_referred(choice, root)) for choice in choices] if isinstance(choices, list) and choices else [{}]
    common = set.intersection(*(set(each) for each in tags))
    return any(
        sum(len(each[name]) for each in tags) == len(set().union(*(each[name] for each in tags))) for name in common
    )


def _tags(schema: Any) -> dict[str, set[str]]:
    """Return the properties that an object must have with one of certain texts, and these texts."""
    match schema:
        case {"type": "object", "properties": dict(properties), "required": list(required)}:
            given = {name: each for name, each in properties.items() if name in required and isinstance(each, dict)}
        case _:
            return {}
    values = {name: [each["const"]] if "const" in each else each.get("enum") for name, each in given.items()}
    return {
        name: set(texts)
        for name, texts in values.items()
        if isinstance(texts, list) and all(isinstance(text, str) for text in texts)
    }


def _is_label(schema: dict[str, Any]) -> bool:
    """Return whether an unknown `format` only names the patterns next to it, as zod writes them."""
    others = schema.get("allOf")
    listed = [schema, *(each for each in (others if isinstance(others, list) else ()) if isinstance(each, dict))]
    return (
        isinstance(schema.get("format"), str)
        and schema["format"] not in FORMATS
        and any(isinstance(each.get("pattern"), str) for each in listed)
    )


def _excludes_nothing(name: str, bound: Any, kind: Any) -> bool:
    """Return whether all numbers of this type are within a bound: all doubles, or integers of 64 bits."""
    if not isinstance(bound, int | float) or isinstance(bound, bool):
        return False
    outward = -bound if name in _LOWER else bound
    return outward >= (2**63 - 1 if kind == "integer" else sys.float_info.max)


def most_digits(schema: Any) -> int:
    """Return how many digits a number may have on each side of its point: `MAX_DIGITS`, or more if the schema has more.

    One more than the schema's own, because above a minimum of 17 nines there are only numbers with 18 digits.
    """
    runs = [run for number in _numbers(schema) for run in f"{Decimal(str(number)):f}".lstrip("-").split(".")]
    longest = max(map(len, runs), default=0)
    return MAX_DIGITS if longest <= MAX_DIGITS else longest + 1


def _numbers(value: Any) -> Iterator[float]:
    if _is_number(value):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _numbers(each)


def _limits(value: Any) -> Iterator[float]:
    """Yield the numbers in constants and bounds anywhere, because references may lead into examples."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from (_numbers if name in ("const", "enum", *_LOWER, *_UPPER) else _limits)(each)
    for each in value if isinstance(value, list) else ():
        yield from _limits(each)


def bounded(schema: Any) -> Any:
    """Change the schemas of numbers that `MAX_DIGITS` alone could leave without a last digit.

    Multiples get bounds, and exclusive bounds become inclusive ones: the next number with `MAX_DIGITS`.
    """

    def bound(each: dict[str, Any]) -> dict[str, Any]:
        changed = dict(each)
        for (name, exclusive), sign in ((_LOWER, -1), (_UPPER, 1)):
            limit, strict = each.get(name), each.get(exclusive)
            if _is_number(strict) and abs(strict) < 10**MAX_DIGITS and each.get("type") != "integer":
                del changed[exclusive]
                inside = strict - sign * max(10**-MAX_DIGITS, math.ulp(strict))
                changed[name] = sign * min(sign * inside, sign * limit) if _is_number(limit) else inside
            elif "multipleOf" in each and not _is_number(limit) and not _is_number(strict):
                changed[name] = sign * _MAX_MULTIPLE_VALUE
        return changed

    return _mapped(schema, bound)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


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


def narrowed(schema: Any) -> Iterator[Any]:
    """Yield a schema with closed objects and bounded multiples, then with closed objects alone, where these differ."""
    whole, seen = closed(schema), [schema]
    for each in (bounded(whole), whole):
        if each not in seen:
            seen.append(each)
            yield each


def unenforced(schema: Any) -> list[str]:
    """Return the keywords and formats in a schema that a lenient llguidance doesn't always enforce."""
    found: dict[str, None] = {}
    for each in schemas_in(schema):
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
    # llguidance overflows its stack if an integer must be the least of 64 bits, to which it rounds any number below.
    for number in _limits(schema):
        if number <= 1024 - 2**63:
            return f"a number in const, enum or a bound is {number!s:.60}, but must be above {1024 - 2**63}"
    for each in schemas_in(schema):
        multiple = each.get("multipleOf")
        if isinstance(multiple, int | float) and _digits(+multiple) > MAX_MULTIPLE:  # +True is 1
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


def schemas_in(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and all schemas in it."""
    if isinstance(schema, list):
        for each in schema:
            yield from schemas_in(each)
    elif isinstance(schema, dict):
        yield schema
        for name, value in schema.items():
            if name in OF_NAMES and isinstance(value, dict):
                yield from schemas_in(list(value.values()))
            elif name not in _VALUES:
                yield from schemas_in(value)


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
        elif name in OF_NAMES and isinstance(value, dict):
            result[name] = {key: _mapped(each, change, skip) for key, each in value.items()}
        else:
            result[name] = _mapped(value, change, skip)
    return change(result)
