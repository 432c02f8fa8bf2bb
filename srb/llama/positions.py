"""Where the tokens of a sequence are, in a model whose images have other positions than one for each cell.

In M-RoPE an image of 6 by 4 cells has a width and a height, and the token behind it is 6 positions after its beginning,
not 24. All others count tokens; `Context` translates with what is here.
"""

import struct

from srb.engine.backend import State

_IMAGE = struct.Struct("<III")
_COUNT = struct.Struct("<I")

Image = tuple[int, int, int]
"""Before how many tokens of its sequence an image is, how many cells it has, and how many positions."""


class Positions:
    """The images of the sequences, in the order that they come in."""

    def __init__(self) -> None:
        self._images: dict[int, list[Image]] = {}

    def __bool__(self) -> bool:
        return bool(self._images)

    def of(self, seq_id: int, n_tokens: int) -> int:
        """The position of what comes behind the first tokens of a sequence."""
        images = self._images.get(seq_id, ())
        return n_tokens - sum(cells - places for start, cells, places in images if start + cells <= n_tokens)

    def is_length(self, seq_id: int, n_tokens: int, length: int) -> bool:
        """Whether a sequence of so many tokens ends before the position `length`.

        Behind an image it can't be told from the memory how many positions that has.
        """
        for start, cells, _ in self._images.get(seq_id, ()):
            if start + cells == n_tokens:
                return self.of(seq_id, start) < length <= self.of(seq_id, n_tokens)
        return length == self.of(seq_id, n_tokens)

    def add(self, seq_id: int, image: Image) -> None:
        """A sequence ends with an image now."""
        self._images.setdefault(seq_id, []).append(image)

    def fork(self, source: int, target: int, n_tokens: int) -> None:
        """A sequence begins with tokens of another."""
        if images := self._within(source, 0, n_tokens):
            self._images[target] = images

    def truncate(self, seq_id: int, n_tokens: int) -> None:
        """A sequence has only its first tokens left."""
        images = self._within(seq_id, 0, n_tokens)
        self.remove(seq_id)
        if images:
            self._images[seq_id] = images

    def remove(self, seq_id: int) -> None:
        """A sequence is empty."""
        self._images.pop(seq_id, None)

    def packed(self, seq_id: int, start: int, end: int) -> bytes:
        """The images among these tokens, to be put behind the state of their cells."""
        images = self._within(seq_id, start, end)
        return b"".join(_IMAGE.pack(*image) for image in images) + _COUNT.pack(len(images))

    def take(self, state: State, seq_id: int, end: int) -> memoryview:
        """Adds the images of a saved state, up to a number of tokens, to a sequence; returns the state without them."""
        data = memoryview(state)
        (count,) = _COUNT.unpack(data[-_COUNT.size :])
        at = len(data) - _COUNT.size - count * _IMAGE.size
        for start, cells, places in _IMAGE.iter_unpack(data[at : -_COUNT.size]):
            if start + cells <= end:
                self.add(seq_id, (start, cells, places))
        return data[:at]

    def _within(self, seq_id: int, start: int, end: int) -> list[Image]:
        return [image for image in self._images.get(seq_id, ()) if start <= image[0] and image[0] + image[1] <= end]
