"""Reads a body's bytes into its fields. An error names the field, its value, and what the value should be."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, RootModel, ValidationError

from srb.errors import InvalidRequestError


@contextmanager
def depth_refused() -> Iterator[None]:
    """A context manager for reading a body. Raises `InvalidRequestError` if the body is nested too deeply."""
    try:
        yield
    except RecursionError:  # reading a body, or quoting it in an error, recurses as deeply as the body is nested
        raise InvalidRequestError("the body is nested too deeply", code="invalid_json") from None


Fields = TypeVar("Fields", bound=BaseModel)


def read_fields(body: bytes, kind: type[Fields]) -> Fields:
    """The fields of a body. Raises `InvalidRequestError` if it isn't a JSON object with fields of these types.

    If `kind` is a `RootModel`, the body has to be a list.
    """
    return validate(_read_json(body), kind)


def _read_json(body: bytes) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise InvalidRequestError(f"the body is not JSON: {constant} is no JSON number", code="invalid_json")

    try:
        return json.loads(body, parse_constant=refuse)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"the body is not JSON: {error}", code="invalid_json") from None
    except ValueError:  # Python limits the digits of a number, since converting many is slow
        raise InvalidRequestError("the body has a number with too many digits", code="invalid_json") from None


def validate(data: Any, kind: type[Fields]) -> Fields:
    """The fields of a body that json has read. Raises `InvalidRequestError`."""
    wanted, name = (list, "list") if issubclass(kind, RootModel) else (dict, "object")
    if not isinstance(data, wanted):
        raise InvalidRequestError(f"the body must be a JSON {name}, got {kind_of(data)}")
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param, value = "", data
        for part in first["loc"]:
            if isinstance(part, int):
                param += f"[{part}]"
            elif not param or param.endswith("]") or (isinstance(value, dict) and part in value):
                param += f".{part}" if param else part
            else:  # pydantic's name for a member of a union
                continue
            value = _inside(value, part)
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "model_type":  # pydantic's message names the class, which clients don't know
            message = "Input should be an object"
        got = kind_of(first["input"]) if param.startswith("messages") else show(first["input"])
        raise InvalidRequestError(f"{param}: {message}, got {got}", param=param) from None


def _inside(value: Any, part: str | int) -> Any:
    """The value at this place of an object or a list. None if there is none."""
    try:
        return value[part]
    except (LookupError, TypeError):
        return None


def kind_of(value: Any) -> str:
    """The JSON type of a value, in words. Errors name it in place of a prompt, because errors are logged."""
    names = {list: "a list", str: "a string", dict: "an object", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def show(value: Any) -> str:
    """A value as error messages quote it, in up to 60 characters."""
    text = repr(value) if not isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
