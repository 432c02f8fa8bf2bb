"""Images and sounds in prompts: the placeholders that stand for them.

To the engine a prompt is a list of numbers. In the place of an image the prompt has placeholders: negative numbers, one
for each cell that the image takes, made of a hash of its contents. So two prompts with the same image after the same
tokens begin alike. Like any tokens, the image is computed once for all alternatives, and cached for later requests. An
example, with an image of three cells:

    "What is " -1520448213 -58812 -900117  "?"

An image is computed as a whole or not at all, so its placeholders can't be parted. The first one is from another range
of numbers than the rest, so that the numbers alone say where a prompt may be parted (`whole`).

So prefix lookup, allocation and caching know nothing of images. Three parts do: `PrefixTree.find` never ends inside
one, the planner gives each one a batch of its own (`Batch.placeholder`), and samplers see only the text tokens.
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

    Attributes:
        name: a hash of the contents, and of everything else that changes what the model sees of it.
        tokens: its placeholders, one for each of its cells.
        content: what the backend computes in their place.
    """

    name: str
    tokens: tuple[int, ...]
    content: Any

    @classmethod
    def of(cls, name: str, n_cells: int, content: Any) -> "Media":
        """Makes media with placeholders from a name. n_cells: at least 1."""
        digest = hashlib.shake_128(f"{name} {n_cells}".encode()).digest(4 * n_cells)
        bits = [int.from_bytes(digest[4 * k : 4 * k + 4]) >> (32 - _BITS) for k in range(n_cells)]
        return cls(name, (_FIRST - 1 - bits[0], *(-1 - each for each in bits[1:])), content)


PromptPart = str | bytes
"""A part of a prompt: a text, or the contents of a file with an image or a sound."""


class MediaReader(Protocol):
    """Turns files into parts of prompts. May be used from any thread."""

    @property
    def kinds(self) -> Collection[str]:
        """The kinds of files that the model takes: image, audio."""

    @property
    def n_encoded(self) -> int:
        """How many images and sounds, or parts of them, it has encoded for the model."""

    def read(self, file: bytes) -> "list[int | Media]":
        """Returns the parts of a prompt that stand for a file: its media, and the tokens around them.

        Raises:
            InvalidRequestError: the model can't take the file.
        """

    def is_ready(self, media: Media) -> bool:
        """Whether media can be computed without a long wait. If not, they are prepared from now on, in the background.

        May be called only from the engine's thread.
        """


def no_media() -> InvalidRequestError:
    """Returns the error for a request with media, if the model was started without a projector."""
    return InvalidRequestError(
        "this model takes no images and sounds: the server was started without --mmproj, which names the file that "
        "makes them a part of prompts",
        code="unsupported_media",
    )


def whole(tokens: Sequence[int], n_tokens: int) -> int:
    """Returns how many first tokens, up to `n_tokens`, can be parted from the rest without cutting through media."""
    while n_tokens < len(tokens) and _FIRST <= tokens[n_tokens] < 0:
        n_tokens -= 1
    return n_tokens


def whole_blocks(tokens: Sequence[int], n_tokens: int, block_size: int) -> int:
    """Returns how many of the first `n_tokens` are in whole blocks, and in whole media; all of them without blocks.

    Where a block ends, logits depend on all of it (`Backend.block_size`).
    """
    while block_size and (end := whole(tokens, n_tokens - n_tokens % block_size)) < n_tokens:
        n_tokens = end
    return n_tokens


def words(tokens: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the tokens without placeholders: the same tuple if there are none."""
    return tuple(token for token in tokens if token >= 0) if min(tokens, default=0) < 0 else tokens


def placed(tokens: tuple[int, ...], media: Iterable[Media]) -> dict[int, Media]:
    """Returns the media in a prompt, by their positions. Raises `InvalidRequestError` if one is missing."""
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
    """Returns a key that tells apart prompts whose media have so few placeholders that others may have the same."""
    return "".join(f" {each.name}" for each in media if len(each.tokens) < _FEW)
