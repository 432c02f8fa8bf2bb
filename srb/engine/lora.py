"""Adapters (LoRA): small files that change what a model computes, and which of them an alternative uses.

A state that was computed with an adapter can only be continued with the same adapter, at the same scale. So each prompt
has its `Lora`. Rows with different ones are never in the same decode, and only prompts with the same one share a
beginning.

If the branches of a request differ in it, the request has its prompt once for each setting. llama.cpp sets adapters for
a whole decode, so `BatchPlanner.next` makes a batch for each `Lora`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from srb.errors import InvalidRequestError

Lora = tuple[tuple[str, float], ...]
"""The identities of the adapters that rows are computed with, and their scales. Empty: the model without adapters."""

Asked = tuple[tuple[int | str, float], ...]
"""The adapters that a request asks for, by number or name, and their scales."""

MAX_SCALE = 100.0


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that was loaded with the model.

    Attributes:
        name: the name of its file, without the ending.
        path: its file.
        identity: the same for the same contents, whatever the file's name.
        scale: its scale in requests without `lora`; 0: they don't use it.
    """

    name: str
    path: str
    identity: str
    scale: float = 1.0


class Adapters:
    """The adapters that a model was loaded with, numbered from 0. May be used from any thread."""

    def __init__(self, adapters: Sequence[Adapter] = ()) -> None:
        self._adapters = tuple(adapters)

    @property
    def listed(self) -> tuple[Adapter, ...]:
        """All adapters, with their present scales."""
        return self._adapters

    def set_scales(self, asked: Asked) -> None:
        """Sets the scales in requests without `lora`. An adapter that `asked` doesn't name gets 0.

        Raises:
            InvalidRequestError: an adapter isn't loaded, or a scale is out of range.
        """
        scales = self._scales(asked)
        self._adapters = tuple(replace(each, scale=scale) for each, scale in zip(self._adapters, scales, strict=True))

    def lora(self, asked: Asked | None) -> Lora:
        """Returns the adapters that an alternative is computed with.

        Args:
            asked: those that it asks for; None: all adapters, with their present scales.

        Raises:
            InvalidRequestError: an adapter isn't loaded, or a scale is out of range.
        """
        adapters = self._adapters
        scales = [each.scale for each in adapters] if asked is None else self._scales(asked)
        used = sorted((each.identity, scale) for each, scale in zip(adapters, scales, strict=True) if scale)
        return tuple(used)

    def _scales(self, asked: Asked) -> list[float]:
        scales = [0.0] * len(self._adapters)
        for name, scale in asked:
            if not -MAX_SCALE <= scale <= MAX_SCALE:  # NaN is in no range
                raise InvalidRequestError(
                    f"lora: a scale must be from {-MAX_SCALE:g} to {MAX_SCALE:g}, got {scale!s:.60}", param="lora"
                )
            numbers = [k for k, each in enumerate(self._adapters) if name in (k, each.name)]
            if not numbers:
                there = ", ".join(f"{k} ({each.name})" for k, each in enumerate(self._adapters))
                raise InvalidRequestError(
                    f"lora: there is no adapter {name!r:.60}; "
                    + (f"there are {there}" if there else "start the server with --lora FILE to have one"),
                    param="lora",
                )
            scales[numbers[0]] = scale
        return scales


def key_of(lora: Lora) -> str:
    """Returns a key that tells apart states which were computed with different adapters; empty without adapters."""
    return " ".join(f"{identity}={scale!r}" for identity, scale in lora)
