"""Reduces a JSON schema to what llguidance can enforce, for schemas that the client didn't write: those of tools.

llguidance's lenient mode leaves out only unknown keywords and formats: it refuses wrong types, look-arounds and
references to nothing (182 of 291 tools of tests/support/odd_tools.py).
"""

import json
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from srb.engine.sampling_params import MAX_LARK_CHARS
from srb.llama.grammar.json_schema import (
    OF_LISTS,
    OF_NAMES,
    OF_ONE,
    as_lark,
    corrected,
    narrowed,
    problem,
    schemas_in,
    unenforced,
)
from srb.llama.grammar.limits import compiled, is_too_large

_STACK_BYTES_PER_CHAR = 1024
_MAX_TRIED = 1_000_000

_MAX_OPTIONAL = 400
"""How many optional properties an object may have. Each takes four of the 2,000 items that a position may have."""

_LAST = ("allOf", "pattern", "patternProperties")  # an earlier keyword is kept where two contradict each other


@lru_cache(maxsize=1024)
def enforceable(text: str) -> tuple[Any, tuple[str, ...]]:
    """Return what can be enforced of a schema of arguments, an object as JSON, and the keywords of the rest."""
    schema = corrected({"properties": {}} | json.loads(text)) | {"type": "object"}
    left_out = dict.fromkeys(unenforced(schema))
    if refusal(schema):
        try:
            schema = _Trials(schema).reduced(schema, left_out) | {"type": "object"}
        except _TooManyError:
            schema = {"type": "object"}
            left_out["parameters"] = None
    for each in (*narrowed(schema), schema):
        if not refusal(each):
            return each, tuple(left_out)
    return {"type": "object"}, (*left_out, "parameters")


@lru_cache(maxsize=32)
def fits(grammar: str) -> bool:
    """Return whether a grammar in Lark, of schemas that can be enforced, is within the limits of all together."""
    return len(grammar) <= MAX_LARK_CHARS and not is_too_large(_error_of(grammar))


def place_of_fault(schema: Any) -> str | None:
    """Return the path of the innermost schema that can't be enforced, such as `properties.email`; None if unknown.

    It has the same kind of fault as the whole: a part without its document may have another one of its own.
    """
    try:
        kind = _kind(refusal(schema, lenient=False))
        return (_Trials(schema, lenient=False).place(schema, "", kind) or "").removeprefix(".") or None
    except (RecursionError, _TooManyError):
        return None


def refusal(schema: Any, *, lenient: bool = True) -> str | None:
    """Return why llguidance can't enforce a schema; None if it can."""
    try:
        if found := problem(schema):
            return found
        if any(map(_has_too_many, schemas_in(schema))):
            return "it has too many optional properties"
        grammar = f"start: {as_lark(schema, lenient=lenient)}"
    except RecursionError:
        return "it is nested too deeply"
    return _error_of(grammar).partition("\n")[0].removeprefix(_HEAD) or None


def _has_too_many(schema: dict[str, Any]) -> bool:
    properties, required = schema.get("properties"), schema.get("required")
    n_required = len(required) if isinstance(required, list) else 0
    return isinstance(properties, dict) and len(properties) - n_required > _MAX_OPTIONAL


def _error_of(grammar: str) -> str:
    """Return llguidance's message about a grammar in Lark; empty if there is none."""
    from srb.llama.native.stack import with_stack

    matcher = with_stack(lambda: compiled(_bytes(), grammar), _STACK_BYTES_PER_CHAR * len(grammar))
    return matcher.get_error()


def _kind(reason: str | None) -> str | None:
    """Return what a refusal says before its details, such as `Unknown format`."""
    return reason and reason.partition(":")[0]


_HEAD = "at 1(8): failed to compile JSON schema: "
"""The beginning of llguidance's messages about schemas."""


@cache
def _bytes() -> Any:
    """The tokenizer of a vocabulary of bytes, because no schema depends on the vocabulary."""
    from llguidance import LLTokenizer

    return LLTokenizer("byte")


class _TooManyError(Exception):
    """Trying the parts of a schema takes too long."""


class _Trials:
    """Tries the parts of a schema, each without its document. lenient: whether oneOf may be anyOf."""

    def __init__(self, root: Any, *, lenient: bool = True) -> None:
        self._resolves = _resolver(root)
        self._lenient = lenient
        self._n_tried = 0

    def reduced(self, schema: dict[str, Any], left_out: dict[str, None]) -> dict[str, Any]:
        """Return a schema without the keywords that can't be enforced, which are added to `left_out`."""
        schema = dict(schema)
        for name, value in schema.items():  # the schemas in it first, because it may be enforced without their parts
            if name in OF_NAMES and isinstance(value, dict):
                schema[name] = {key: self._member(name, each, left_out) for key, each in value.items()}
            elif name in OF_LISTS and isinstance(value, list):
                schema[name] = [self._member(name, each, left_out) for each in value]
            elif name in OF_ONE and isinstance(value, dict):
                schema[name] = self.reduced(value, left_out)
        if not self._fails(schema):
            return schema
        kept: dict[str, Any] = {}
        for name in sorted(schema, key=lambda each: (each != "type", each in _LAST)):
            if self._fails(kept | {name: schema[name]}):
                left_out[name] = None
            else:
                kept[name] = schema[name]
        if "patternProperties" in schema and "patternProperties" not in kept:
            kept["additionalProperties"] = True  # the names that it allows can't be told from others
        return kept

    def place(self, schema: Any, path: str, kind: str | None) -> str | None:
        """Return the path of the innermost schema with this kind of fault."""
        parts: list[tuple[str, Any]] = []
        for name, value in schema.items() if isinstance(schema, dict) else ():
            if name in OF_NAMES and isinstance(value, dict):
                parts += [(f"{path}.{name}.{key}", part) for key, part in value.items()]
            elif name in OF_LISTS and isinstance(value, list):
                parts += [(f"{path}.{name}[{k}]", part) for k, part in enumerate(value)]
            elif name in OF_ONE:
                parts.append((f"{path}.{name}", value))
        schemas = [(place, part) for place, part in parts if not isinstance(part, bool)]
        found = next((found for place, part in schemas if (found := self.place(part, place, kind))), None)
        return found or (path if _kind(self._refusal(schema)) == kind else None)

    def _member(self, name: str, schema: Any, left_out: dict[str, None]) -> Any:
        if isinstance(schema, dict):
            return self.reduced(schema, left_out)
        if isinstance(schema, bool) or (name == "dependencies" and isinstance(schema, list)):
            return schema
        left_out[name] = None
        return {}

    def _fails(self, schema: Any) -> bool:
        return self._refusal(schema) is not None

    def _refusal(self, schema: Any) -> str | None:
        alone = self._alone(schema)
        self._n_tried += len(json.dumps(alone))
        if self._n_tried > _MAX_TRIED:
            raise _TooManyError
        return refusal(alone, lenient=self._lenient)

    def _alone(self, schema: Any) -> Any:
        """Return a schema whose references allow everything, if they can be resolved."""
        if isinstance(schema, list):
            return [self._alone(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        return {
            name: self._alone(value)
            for name, value in schema.items()
            if name not in ("$defs", "definitions", "$id", "$anchor") and not (name == "$ref" and self._resolves(value))
        }


def _resolver(root: Any) -> Callable[[Any], bool]:
    """Return a function that tells whether a reference is to a schema within `root`."""
    named = {
        f"{mark}{each[name]}"
        for each in schemas_in(root)
        for name, mark in (("$id", ""), ("$anchor", "#"))
        if isinstance(each.get(name), str)
    }

    def resolves(reference: Any) -> bool:
        if not isinstance(reference, str):
            return False
        if reference in named or reference == "#":
            return True
        value, is_pointer = root, reference.startswith("#/")
        for part in reference[2:].split("/") if is_pointer else ():
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            elif isinstance(value, dict) and key in value:
                value = value[key]
            else:
                return False
        return is_pointer and isinstance(value, dict | bool)

    return resolves
