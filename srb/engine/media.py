"""Images and sounds in prompts: the placeholders that stand for them.

To the engine a prompt is a list of numbers. In the place of an image the prompt has placeholders: negative numbers, one
for each cell that the image takes, made of a hash of its contents. So two prompts with the same image behind the same
tokens begin alike. Like any tokens, the image is evaluated once for all alternatives, found by the next request, and
retained. An example, with an image of three cells:

    "What is " -1520448213 -58812 -900117  "?"

A piece of media is evaluated as a whole or not at all, so its placeholders must stay together. The first one is from
another range of numbers than the rest, so that the numbers alone say where a prompt may be parted (`whole`).

So what looks up, leases and keeps knows nothing of images. Three parts do: `PrefixTree.find` never ends in the middle
of one, the planner gives each one a batch of its own (`Batch.placeholder`), and samplers see only the words.
"""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from srb.errors import InvalidRequestError

_BITS = 30
_FIRST = -(1 << _BITS)  # the first placeholder of an image is less than this number, the others aren't

_FEW = 5
"""With fewer placeholders than this, two different images might have the same ones by chance."""


@dataclass(frozen=True, slots=True, eq=False)
class Media:
    """An image or a sound, or a part of one, as it is in a prompt.

    name: a hash of the contents, and of everything else that changes what the model sees of it. tokens: its
        placeholders, one for each of its cells. content: what the backend evaluates in their place.
    """

    name: str
    tokens: tuple[int, ...]
    content: Any

    @classmethod
    def of(cls, name: str, n_cells: int, content: Any) -> "Media":
        """Media with placeholders that are made of its name. n_cells: at least 1."""
        drawn = hashlib.shake_128(f"{name} {n_cells}".encode()).digest(4 * n_cells)
        bits = [int.from_bytes(drawn[4 * k : 4 * k + 4]) >> (32 - _BITS) for k in range(n_cells)]
        return cls(name, (_FIRST - 1 - bits[0], *(-1 - each for each in bits[1:])), content)


PromptPart = str | bytes
"""A piece of a prompt: a text, or the contents of a file with an image or a sound."""


class MediaReader(Protocol):
    """Turns files into parts of prompts. May be used from any thread."""

    @property
    def kinds(self) -> Collection[str]:
        """The kinds of files that the model takes: image, audio."""

    @property
    def n_encoded(self) -> int:
        """How many pieces of media it has encoded for the model."""

    def read(self, file: bytes) -> "list[int | Media]":
        """The parts of a prompt that stand for a file: its media, and the tokens around them.

        Raises `InvalidRequestError`.
        """

    def is_ready(self, media: Media) -> bool:
        """Whether media can be evaluated without a long wait. If not, they are prepared from now on, in the background.

        May be called only from the engine's thread.
        """


def no_media() -> InvalidRequestError:
    """The error for a request with media, if the model was started without a projector."""
    return InvalidRequestError(
        "this model takes no images and sounds: the server was started without --mmproj, which names the file that "
        "makes them a part of prompts",
        code="unsupported_media",
    )


def whole(tokens: Sequence[int], n_tokens: int) -> int:
    """How many first tokens, up to `n_tokens`, can be parted from the rest without cutting through media."""
    while n_tokens < len(tokens) and _FIRST <= tokens[n_tokens] < 0:
        n_tokens -= 1
    return n_tokens


def words(tokens: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens without placeholders: the same tuple if there are none."""
    return tuple(token for token in tokens if token >= 0) if min(tokens, default=0) < 0 else tokens


def placed(tokens: tuple[int, ...], media: Iterable[Media]) -> dict[int, Media]:
    """The media in a prompt, by their positions. Raises `InvalidRequestError` if a placeholder stands for nothing."""
    found: dict[int, Media] = {}
    if not (by_first := {each.tokens[0]: each for each in media}):
        return found
    at = 0
    for k, token in enumerate(tokens):
        if k < at or token >= 0:
            continue
        each = by_first.get(token)
        if each is None or tokens[k : k + len(each.tokens)] != each.tokens:
            raise InvalidRequestError(
                f"prompt has the number {token}, which stands for an image or a sound that the request doesn't have",
                param="prompt",
            )
        found[k], at = each, k + len(each.tokens)
    return found


def key_of_few(media: Iterable[Media]) -> str:
    """The key that tells apart prompts whose media have so few placeholders that other media may have the same."""
    return "".join(f" {each.name}" for each in media if len(each.tokens) < _FEW)
