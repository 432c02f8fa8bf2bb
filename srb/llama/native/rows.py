"""The arrays behind a `llama_batch`."""

import ctypes
from typing import Any

import llama_cpp

from srb.engine.backend import Batch
from srb.errors import BackendError
from srb.llama.native.positions import Positions


class Rows:
    """The arrays behind a `llama_batch` of up to `size` rows, `outputs` of which may have logits."""

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
        """The rows of a batch as a `llama_batch`, valid until the next call.

        positions: translates the places of tokens into positions, if sequences have images with M-RoPE.
        """
        n = len(batch)
        if not 0 < n <= self._size:
            raise BackendError(f"a batch has 1 to {self._size} rows, not {n}")
        if (outputs := sum(batch.logits)) > self._outputs:
            raise BackendError(f"a batch has up to {self._outputs} rows with logits, not {outputs}")
        self._tokens[:n] = batch.tokens
        places = batch.positions
        if positions:
            places = [positions.of(*row) for row in zip(batch.seq_ids, batch.positions, strict=True)]
        self._positions[:n] = places
        self._seq_ids[:n] = batch.seq_ids
        self._logits[:n] = batch.logits
        return llama_cpp.llama_batch(
            n, self._tokens, None, self._positions, self._n_seq_ids, self._seq_id_pointers, self._logits
        )
