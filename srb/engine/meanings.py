"""What each field of a request means. It is said once, for `help`, for the wire formats and for the documentation."""

import dataclasses
from dataclasses import field
from typing import Any, TypeVar

Kind = TypeVar("Kind")


def described(default: Any, meaning: str) -> Any:
    """A field of a dataclass with its default and what it means."""
    return field(default=default, metadata={"meaning": meaning})


def meanings(kind: Any) -> dict[str, str]:
    """What each field of `SamplingParams` or `CompletionRequest` means."""
    return {each.name: each.metadata["meaning"] for each in dataclasses.fields(kind)}


def documented(kind: type[Kind]) -> type[Kind]:
    """Adds what the fields mean to the docstring, for `help`."""
    texts = "\n".join(f"    - `{name}`: {text}" for name, text in meanings(kind).items())
    kind.__doc__ = f"{kind.__doc__ or ''}\n{texts}\n"
    return kind
