"""From bytes to the fields of a body, or to an error that names the field, the value and what it should be."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, RootModel, ValidationError

from srb.errors import InvalidRequestError


@contextmanager
def depth_refused() -> Iterator[None]:
    """Where a body is read: turns too deep a nesting into `InvalidRequestError`."""
    try:
        yield
    except RecursionError:  # reading it, and quoting it in an error, go down as deep as it does
        raise InvalidRequestError("the body is nested too deeply", code="invalid_json") from None


Fields = TypeVar("Fields", bound=BaseModel)


def read_fields(body: bytes, kind: type[Fields]) -> Fields:
    """The fields of a body. Raises `InvalidRequestError` if it isn't a JSON object with fields of these types.

    A `RootModel` is of a body that is a list.
    """
    return validate(_read_json(body), kind)


def _read_json(body: bytes) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise InvalidRequestError(f"the body is not JSON: {constant} is no JSON number", code="invalid_json")

    try:
        return json.loads(body, parse_constant=refuse)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"the body is not JSON: {error}", code="invalid_json") from None
    except ValueError:  # Python's guard against slow conversions
        raise InvalidRequestError("the body has a number with too many digits", code="invalid_json") from None


def validate(data: Any, kind: type[Fields]) -> Fields:
    """The fields of a body as JSON. Raises `InvalidRequestError`."""
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
        if first["type"] == "model_type":  # pydantic's words name our class
            message = "Input should be an object"
        got = kind_of(first["input"]) if param.startswith("messages") else show(first["input"])
        raise InvalidRequestError(f"{param}: {message}, got {got}", param=param) from None


def _inside(value: Any, part: str | int) -> Any:
    """What is at this place of an object or a list, if there is anything."""
    try:
        return value[part]
    except (LookupError, TypeError):
        return None


def kind_of(value: Any) -> str:
    """What something is in JSON: messages are logged, prompts are not."""
    if isinstance(value, list):
        return "a list with something else in it"
    names = {str: "a string", dict: "an object", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def show(value: Any) -> str:
    """A value as an error message quotes it."""
    text = repr(value) if not isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
