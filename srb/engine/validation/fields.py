"""Checks whether the values of a dataclass have the types that its fields say, and are in their ranges."""

import dataclasses
import numbers
import types
import typing
from dataclasses import field, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from srb.errors import InvalidRequestError

# Keeps what each field of a request means in one place, for `help`, for the wire formats and for the documentation.

Kind = TypeVar("Kind")


def described(default: Any, meaning: str) -> Any:
    """A field of a dataclass with its default and its meaning."""
    return field(default=default, metadata={"meaning": meaning})


def meanings(kind: Any) -> dict[str, str]:
    """The meaning of each field of a dataclass such as `SamplingParams`, by the field's name."""
    return {each.name: each.metadata["meaning"] for each in dataclasses.fields(kind)}


def documented(kind: type[Kind]) -> type[Kind]:
    """Adds the meanings of the fields to the docstring of a dataclass, for `help`."""
    texts = "\n".join(f"    - `{name}`: {text}" for name, text in meanings(kind).items())
    kind.__doc__ = f"{kind.__doc__ or ''}\n{texts}\n"
    return kind


Text = str | tuple[int, ...]
"""A text, or the ids of its tokens."""

NAMES: dict[type, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "a tuple",
    Path: "a path, as a text or a pathlib.Path",
    types.NoneType: "None",
}
"""The types that are checked, and how an error message calls each."""


def wrong_field(instance: Any) -> tuple[str, str] | None:
    """The first field whose value is of a wrong type, and what to pass instead; None where all are right.

    Only fields whose types are in NAMES are checked, and unions of such types. Numbers may be numpy's, too.
    """
    for name, kinds in _kinds(instance.__class__):
        value = getattr(instance, name)
        if type(value) not in kinds and not any(_fits(value, kind) for kind in kinds):
            takes = " or ".join(NAMES[kind] for kind in kinds)
            instead = f"; write ({value!r:.40},)" if isinstance(value, str) and tuple in kinds else ""
            return name, f"takes {takes}, got {value!r:.60}{instead}"
    return None


def check_types(asked: Any) -> None:
    """Raises `InvalidRequestError` where a field's value is of a wrong type, and says what to pass."""
    if wrong := wrong_field(asked):
        raise InvalidRequestError(" ".join(wrong), param=wrong[0])


def check_ranges(asked: Any, ranges: dict[str, tuple[float, float]]) -> None:
    """Raises `InvalidRequestError` for a number outside of its range. Both ends of the range, and None, are allowed."""
    for name, (low, high) in ranges.items():
        value = getattr(asked, name)
        if value is not None and not low <= value <= high:  # NaN is in no range
            raise InvalidRequestError(f"{name} must be from {low} to {high}, got {value!s:.60}", param=name)


def check_text(name: str, text: Any) -> None:
    """Raises `InvalidRequestError` if `text` is neither a text nor the ids of its tokens, or is empty."""
    if not isinstance(text, (str, tuple)):
        raise InvalidRequestError(f"{name} takes a text, or a tuple of token ids, got {text!r:.60}", param=name)
    if not text:
        raise InvalidRequestError(f"{name} must have at least one token", param=name)
    if isinstance(text, tuple) and {*map(type, text)} != {int} and not all(_fits(each, int) for each in text):
        raise InvalidRequestError(f"{name} takes whole numbers as token ids, got {text!r:.60}", param=name)


def _fits(value: Any, kind: type) -> bool:
    if kind in (int, float):
        number = numbers.Integral if kind is int else numbers.Real
        return isinstance(value, number) and not isinstance(value, bool)
    return isinstance(value, kind)


@cache
def _kinds(of: Any) -> tuple[tuple[str, tuple[type, ...]], ...]:
    """The fields that are checked, each with the types that it takes."""
    found = []
    for each in fields(of):
        hint: Any = each.type
        is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
        hints = typing.get_args(hint) if is_union else (hint,)
        kinds = tuple(typing.get_origin(one) or one for one in hints)
        if all(kind in NAMES for kind in kinds):
            found.append((each.name, kinds))
    return tuple(found)
