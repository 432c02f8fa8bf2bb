"""The positions of tokens, for models that don't give an image one position for each cell (M-RoPE).

With M-RoPE, an image of 6 by 4 cells has a width and a height. The token after it is 6 positions after the image's
beginning, not 24. All other modules count tokens; `Context` translates these numbers into positions with this module.
"""

import struct

from srb.engine.backend import State

_IMAGE = struct.Struct("<III")
_COUNT = struct.Struct("<I")

Image = tuple[int, int, int]
"""An image: how many tokens of its sequence come before it, how many cells it has, and how many positions."""


class Positions:
    """The images that each sequence holds, in their order in the sequence."""

    def __init__(self) -> None:
        self._images: dict[int, list[Image]] = {}

    def __bool__(self) -> bool:
        return bool(self._images)

    def of(self, seq_id: int, n_tokens: int) -> int:
        """The position of the token that comes after the first `n_tokens` of a sequence."""
        images = self._images.get(seq_id, ())
        return n_tokens - sum(cells - places for start, cells, places in images if start + cells <= n_tokens)

    def tokens_in(self, seq_id: int, n_positions: int) -> int:
        """How many tokens a sequence holds that takes so many positions: the inverse of `of`.

        A sequence that ends within an image holds all of it; see `is_length`.
        """
        fewer = 0  # how many positions fewer than tokens there are so far
        for start, cells, places in self._images.get(seq_id, ()):
            if n_positions <= start - fewer:
                break
            if n_positions <= start - fewer + places:
                return start + cells
            fewer += cells - places
        return n_positions + fewer

    def is_length(self, seq_id: int, n_tokens: int, length: int) -> bool:
        """Whether a sequence of so many tokens takes `length` positions in llama.cpp's memory.

        If the sequence ends with an image, the memory doesn't tell how many positions the image has. Then every length
        that ends within the image counts.
        """
        for start, cells, _ in self._images.get(seq_id, ()):
            if start + cells == n_tokens:
                return self.of(seq_id, start) < length <= self.of(seq_id, n_tokens)
        return length == self.of(seq_id, n_tokens)

    def add(self, seq_id: int, image: Image) -> None:
        """Adds an image at the end of a sequence."""
        self._images.setdefault(seq_id, []).append(image)

    def fork(self, source: int, target: int, n_tokens: int) -> None:
        """Gives a sequence the images among the first `n_tokens` of another."""
        if images := self._within(source, 0, n_tokens):
            self._images[target] = images

    def truncate(self, seq_id: int, n_tokens: int) -> None:
        """Forgets the images after the first `n_tokens` of a sequence."""
        images = self._within(seq_id, 0, n_tokens)
        self.remove(seq_id)
        if images:
            self._images[seq_id] = images

    def remove(self, seq_id: int) -> None:
        """Forgets all images of a sequence."""
        self._images.pop(seq_id, None)

    def packed(self, seq_id: int, start: int, end: int) -> bytes:
        """The images among these tokens, as bytes that are put after the saved state of their cells."""
        images = self._within(seq_id, start, end)
        return b"".join(_IMAGE.pack(*image) for image in images) + _COUNT.pack(len(images))

    def take(self, state: State, seq_id: int, end: int) -> memoryview:
        """Adds the images of a saved state to a sequence, and returns the state without them.

        Only the images that end within the first `end` tokens are added.
        """
        data = memoryview(state)
        (count,) = _COUNT.unpack(data[-_COUNT.size :])
        at = len(data) - _COUNT.size - count * _IMAGE.size
        for start, cells, places in _IMAGE.iter_unpack(data[at : -_COUNT.size]):
            if start + cells <= end:
                self.add(seq_id, (start, cells, places))
        return data[:at]

    def _within(self, seq_id: int, start: int, end: int) -> list[Image]:
        return [image for image in self._images.get(seq_id, ()) if start <= image[0] and image[0] + image[1] <= end]
