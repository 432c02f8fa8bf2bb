"""Turns a `Batch` into a `llama_batch`.

Other modules count tokens. Models with M-RoPE don't give an image one position per cell: an image of 6 by 4 cells has a
width and a height, and the token after it is 6 positions after the image's beginning, not 24. `Positions` translates.
"""

import ctypes
import struct
from typing import Any

import llama_cpp

from srb.engine.backend import Batch, State
from srb.errors import BackendError

_IMAGE = struct.Struct("<III")
_COUNT = struct.Struct("<I")

Image = tuple[int, int, int]
"""An image: the tokens of its sequence before it, its cells, and its positions."""


class Positions:
    """The M-RoPE images in each sequence, in order. Translates numbers of tokens into positions."""

    def __init__(self) -> None:
        self._images: dict[int, list[Image]] = {}

    def __bool__(self) -> bool:
        return any(self._images.values())

    def of(self, seq_id: int, n_tokens: int) -> int:
        """Return the position of the token after the first `n_tokens` of a sequence."""
        images = self._images.get(seq_id, ())
        return n_tokens - sum(cells - places for start, cells, places in images if start + cells <= n_tokens)

    def tokens_in(self, seq_id: int, n_positions: int) -> int:
        """Return how many tokens a sequence of `n_positions` holds: the inverse of `of`.

        A sequence that ends within an image holds all of it (`is_length`).
        """
        fewer = 0  # tokens so far, minus positions
        for start, cells, places in self._images.get(seq_id, ()):
            if n_positions <= start - fewer:
                break
            if n_positions <= start - fewer + places:
                return start + cells
            fewer += cells - places
        return n_positions + fewer

    def is_length(self, seq_id: int, n_tokens: int, length: int) -> bool:
        """Return whether a sequence of `n_tokens` takes `length` positions in llama.cpp's memory.

        If the sequence ends with an image, the memory doesn't say how many positions the image has. Then any length
        that ends within the image counts.
        """
        for start, cells, _ in self._images.get(seq_id, ()):
            if start + cells == n_tokens:
                return self.of(seq_id, start) < length <= self.of(seq_id, n_tokens)
        return length == self.of(seq_id, n_tokens)

    def add(self, seq_id: int, image: Image) -> None:
        """Append an image to a sequence."""
        self._images.setdefault(seq_id, []).append(image)

    def fork(self, source: int, target: int, n_tokens: int) -> None:
        """Give `target` the images among the first `n_tokens` of `source`."""
        self._images[target] = self._within(source, 0, n_tokens)

    def truncate(self, seq_id: int, n_tokens: int) -> None:
        """Forget the images after the first `n_tokens` of a sequence."""
        self._images[seq_id] = self._within(seq_id, 0, n_tokens)

    def remove(self, seq_id: int) -> None:
        """Forget all images of a sequence."""
        self._images.pop(seq_id, None)

    def packed(self, seq_id: int, start: int, end: int) -> bytes:
        """Return the images among these tokens as bytes, to be appended to the saved state of their cells."""
        images = self._within(seq_id, start, end)
        return b"".join(_IMAGE.pack(*image) for image in images) + _COUNT.pack(len(images))

    def take(self, state: State, seq_id: int, end: int) -> memoryview:
        """Give a sequence the images of a saved state that end within its first `end` tokens.

        Returns the state without the images.
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


class Rows:
    """The arrays of a `llama_batch` of up to `size` rows, of which `outputs` may have logits."""

    def __init__(self, size: int, outputs: int) -> None:
        self._size = size
        self._outputs = outputs
        self._tokens: Any = (ctypes.c_int32 * size)()
        self._positions: Any = (ctypes.c_int32 * size)()
        self._seq_ids: Any = (ctypes.c_int32 * size)()
        self._logits: Any = (ctypes.c_int8 * size)()
        self._n_seq_ids = (ctypes.c_int32 * size)(*[1] * size)
        pointer = ctypes.POINTER(ctypes.c_int32)
        item, base = ctypes.sizeof(ctypes.c_int32), ctypes.addressof(self._seq_ids)
        self._seq_id_pointers = (pointer * size)(*[ctypes.cast(base + i * item, pointer) for i in range(size)])

    def fill(self, batch: Batch, positions: Positions) -> llama_cpp.llama_batch:
        """Return a batch as a `llama_batch`, which is valid until the next call. Raises `BackendError`."""
        n = len(batch)
        if not 0 < n <= self._size:
            raise BackendError(f"a batch has 1 to {self._size} rows, not {n}")
        if (outputs := sum(batch.logits)) > self._outputs:
            raise BackendError(f"a batch has up to {self._outputs} rows with logits, not {outputs}")
        self._tokens[:n] = batch.tokens
        has_images = bool(positions)
        rows = zip(batch.seq_ids, batch.positions, strict=True)
        self._positions[:n] = [positions.of(*row) for row in rows] if has_images else batch.positions
        self._seq_ids[:n] = batch.seq_ids
        self._logits[:n] = batch.logits
        return llama_cpp.llama_batch(
            n, self._tokens, None, self._positions, self._n_seq_ids, self._seq_id_pointers, self._logits
        )
