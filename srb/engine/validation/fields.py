"""Declares fields of dataclasses with their meaning, range and choices, and checks values against these.

`help`, `--help`, `/openapi.json` and the page show what is declared here.
"""

import dataclasses
import difflib
import math
import numbers
import types
import typing
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from srb.errors import InvalidRequestError

Kind = TypeVar("Kind")

Text = str | tuple[int, ...]
"""A text, or the ids of its tokens."""

Range = tuple[float, float]
"""The lowest and the highest value of a number, both allowed. The highest may be `math.inf`."""

NAMES: dict[type, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "a text",
    tuple: "a tuple",
    Path: "a path, as a text or a pathlib.Path",
    types.NoneType: "None",
}
"""The types that are checked, and their names in error messages."""


def described(default: Any, meaning: str, within: Range | None = None, choices: tuple[Any, ...] = ()) -> Any:
    """Declare a field of a dataclass. Without a default, pass `dataclasses.MISSING`."""
    return dataclasses.field(default=default, metadata={"meaning": meaning, "range": within, "choices": choices})


def meanings(kind: Any) -> dict[str, str]:
    """Return the meaning of each field of a dataclass, by the field's name."""
    return {each.name: each.metadata["meaning"] for each in dataclasses.fields(kind)}


def documented(kind: type[Kind]) -> type[Kind]:
    """Add the meanings of the fields to the docstring of a dataclass, for `help`."""
    texts = "\n".join(f"    - `{name}`: {text}" for name, text in meanings(kind).items())
    kind.__doc__ = f"{kind.__doc__ or ''}\n{texts}\n"
    return kind


def check_fields(instance: Any) -> None:
    """Raise `InvalidRequestError` for the first field whose type, range or choices its value doesn't fit."""
    if wrong := wrong_field(instance):
        raise InvalidRequestError(" ".join(wrong), param=wrong[0])
    for name, (low, high), choices in _limits(instance.__class__):
        value = getattr(instance, name)
        if value is None or (choices and value in choices):
            continue
        if choices:
            *others, last = (f'"{each}"' if isinstance(each, str) else str(each).lower() for each in choices)
            problem = f"{', '.join(others)} or {last}"
        elif not low <= value <= high:  # NaN is in no range
            problem = f"at least {low}" if high == math.inf else f"from {low} to {high}"
        else:
            continue
        raise InvalidRequestError(f"{name} must be {problem}, got {value!s:.60}", param=name)


def check_names(of: type, given: Iterable[str]) -> None:
    """Raise `InvalidRequestError` for the first name that isn't a field of a dataclass, with the nearest one."""
    names = of.__dataclass_fields__  # type: ignore[attr-defined]
    for name in given:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {close[0]}?" if close else f"help(srb.{of.__name__}) lists the fields"
            raise InvalidRequestError(f"{of.__name__} has no field {name!r}; {hint}", param=name)


def _example(hint: Any) -> Any:
    """Return a value of a type, for errors. None: there is none as short."""
    if isinstance(hint, types.UnionType):
        return next(filter(None, map(_example, typing.get_args(hint))), None)
    if typing.get_origin(hint) is tuple:
        found = tuple(_example(each) for each in typing.get_args(hint) if each is not ...)
        return None if None in found else found
    return {int: 1, float: 0.5, str: "a"}.get(hint)


def wrong_field(instance: Any) -> tuple[str, str] | None:
    """Return the first field whose value has a wrong type, and what to pass instead. None: all are right.

    Only fields whose types are in `NAMES` are checked, and unions of such types. Numbers may also be numpy's.
    """
    for name, kinds in _kinds(instance.__class__):
        value = getattr(instance, name)
        if type(value) not in kinds and not any(_fits(value, kind) for kind in kinds):
            takes = " or ".join(NAMES[kind] for kind in kinds)
            instead = ""
            if kinds[0] is tuple and (example := _example(instance.__class__.__dataclass_fields__[name].type)):
                is_one = isinstance(value, str) and isinstance(example[0], str)
                instead = f"; write {(value[:40],)}" if is_one else f"; write a tuple such as {example}"
            return name, f"takes {takes}, got {value!r:.60}{instead}"
    return None


def check_text(name: str, text: Any) -> None:
    """Raise `InvalidRequestError` if `text` is neither a text nor a tuple of token ids, or is empty."""
    if not isinstance(text, (str, tuple)):
        raise InvalidRequestError(f"{name} takes a text, or a tuple of token ids, got {text!r:.60}", param=name)
    if not text:
        raise InvalidRequestError(f"{name} must have at least one token", param=name)
    if isinstance(text, tuple) and {*map(type, text)} != {int} and not all(_fits(each, int) for each in text):
        raise InvalidRequestError(f"{name} takes whole numbers as token ids, got {text!r:.60}", param=name)


def check_strings(name: str, strings: tuple[str, ...], most: int, longest: int) -> None:
    """Raise `InvalidRequestError` for more than `most` strings, or for one without 1 to `longest` characters."""
    if len(strings) > most:
        raise InvalidRequestError(f"{name} takes at most {most} strings, got {len(strings)}", param=name)
    for text in strings:
        if not isinstance(text, str):
            raise InvalidRequestError(f"{name} takes texts, got {text!r:.60}", param=name)
        if not 1 <= len(text) <= longest:
            raise InvalidRequestError(f"{name} takes strings of 1 to {longest} characters, got {len(text)}", param=name)


def _fits(value: Any, kind: type) -> bool:
    if kind in (int, float):
        number = numbers.Integral if kind is int else numbers.Real
        return isinstance(value, number) and not isinstance(value, bool)
    return isinstance(value, kind)


@cache
def _limits(of: Any) -> tuple[tuple[str, Range, tuple[Any, ...]], ...]:
    """Return the name, range and choices of the fields that have limits."""
    return tuple(
        (each.name, each.metadata.get("range") or (0, math.inf), each.metadata.get("choices", ()))
        for each in dataclasses.fields(of)
        if each.metadata.get("range") or each.metadata.get("choices")
    )


@cache
def _kinds(of: Any) -> tuple[tuple[str, tuple[type, ...]], ...]:
    """Return the fields whose types are checked, each with the types that it takes."""
    found = []
    for each in dataclasses.fields(of):
        hint: Any = each.type
        is_union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
        hints = typing.get_args(hint) if is_union else (hint,)
        kinds = tuple(typing.get_origin(one) or one for one in hints)
        if all(kind in NAMES for kind in kinds):
            found.append((each.name, kinds))
    return tuple(found)
