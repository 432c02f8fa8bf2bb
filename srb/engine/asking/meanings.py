"""Keeps what each field of a request means in one place, for `help`, for the wire formats and for the documentation."""

import dataclasses
from dataclasses import field
from typing import Any, TypeVar

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
