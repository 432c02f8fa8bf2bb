"""Reads constraints on the text in the notations of OpenAI and vLLM. Pure functions."""

import json
from typing import Any

from srb.engine.sampling_params import in_lark
from srb.errors import InvalidRequestError

KINDS = ("json", "json_object", "regex", "choice", "grammar")
"""The kinds of constraints in vLLM's `structured_outputs`."""


def as_schema(value: Any) -> Any:
    """Return a JSON schema as an object; `value` may also be its text. Raises `ValueError`."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise ValueError(f"Input should be a JSON schema or its text: {error}") from None


def of_response_format(form: dict[str, Any]) -> dict[str, Any]:
    """Return OpenAI's `response_format` as fields of `SamplingParams`. Raises `InvalidRequestError`."""
    kind = form.get("type")
    if kind == "json_object":
        return _json(form.get("schema") or form.get("value") or {"type": "object"})
    if kind == "json_schema":
        inner = form.get("json_schema")
        if isinstance(inner, dict) and "schema" in inner:
            return _json(inner["schema"])
        raise InvalidRequestError("response_format.json_schema.schema is missing", param="response_format")
    if kind != "text":
        raise InvalidRequestError(
            f"response_format.type is text, json_object or json_schema, got {kind!r:.60}", param="response_format"
        )
    return {}


def of_structured_outputs(asked: dict[str, Any]) -> dict[str, Any]:
    """Return vLLM's `structured_outputs` as fields of `SamplingParams`. Raises `InvalidRequestError`."""
    kinds = [name for name in KINDS if asked.get(name) not in (None, False)]
    if len(kinds) != 1:
        raise _wrong(f"must have one of {', '.join(KINDS)}; got {', '.join(kinds) or 'none of them'}")
    kind, value = kinds[0], asked[kinds[0]]
    if kind == "json_object":
        return _json({"type": "object"})
    if kind == "json":
        try:
            return _json(as_schema(value))
        except ValueError as error:
            raise _wrong(f".json: {error}") from None
    if kind == "choice":
        if not (isinstance(value, list) and value and all(isinstance(text, str) and text for text in value)):
            raise _wrong(f".choice must be a list of texts, got {value!r:.60}")
        return {"grammar": in_lark("start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in value))}
    if not isinstance(value, str):
        raise _wrong(f".{kind} must be a text, got {value!r:.60}")
    return {kind: value}


def _json(schema: Any) -> dict[str, Any]:
    return {"json_schema": json.dumps(schema)}


def _wrong(what: str) -> InvalidRequestError:
    separator = "" if what.startswith(".") else " "
    return InvalidRequestError(f"structured_outputs{separator}{what}", param="structured_outputs")
