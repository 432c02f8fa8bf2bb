"""Converts the saved state of a sequence for a context with the other setting of flash attention.

With flash attention the values are stored cell by cell, without it channel by channel. A state fits only contexts of
its own kind. This module reads the format that `llama_context::state_seq_get_data` and `llama_kv_cache::state_write`
write in the llama.cpp of llama-cpp-python 0.3.36, for one sequence of a model whose layers all attend to everything.
"""

import struct
from collections.abc import Callable

import numpy as np

from srb.engine.backend import State

_MAGIC = 0xAF143CD8
_ITEM_BYTES = {0: 4, 1: 2, 30: 2}  # of f32, f16 and bf16, by their ggml_type; others need flash attention


def relaid(state: State) -> bytearray | None:
    """The same state with its values in the other layout. None if its format isn't the expected one."""
    try:
        return _relaid(memoryview(state))
    except (struct.error, KeyError, ValueError):
        return None


def moved(state: bytearray, n_positions: int) -> bytearray | None:
    """The same state with all positions higher by `n_positions`. None if its format isn't the expected one.

    The keys stay those of the old positions, so the result is no state of any text. It is only for measuring times.
    """
    if len(state) < 16 or struct.unpack_from("<IiI", state)[::2] != (_MAGIC, 1):
        return None
    (n_cells,) = struct.unpack_from("<I", state, 12)
    if 16 + 12 * n_cells > len(state):
        return None
    result = bytearray(state)
    cells = np.frombuffer(result, "<i4", 3 * n_cells, 16).reshape(n_cells, 3)
    if (cells[:, 0] != np.arange(n_cells) + cells[0, 0]).any() or (cells[:, 1] != 1).any():
        return None
    cells[:, 0] += n_positions
    return result


def _relaid(state: memoryview) -> bytearray | None:
    magic, _, n_streams, n_cells = struct.unpack_from("<IiII", state)
    layout_at = 16 + 12 * n_cells  # each cell has 3 numbers: its position, how many seq_ids follow (1), and this seq_id
    by_channel, n_layers = struct.unpack_from("<II", state, layout_at)
    if (magic, n_streams) != (_MAGIC, 1) or by_channel not in (0, 1):
        return None
    at = layout_at + 8
    for _ in range(n_layers):  # the keys
        _, row_bytes = struct.unpack_from("<iQ", state, at)
        at += 12 + n_cells * row_bytes
    result = bytearray(state[:at])
    struct.pack_into("<I", result, layout_at, 1 - by_channel)
    convert: Callable[[memoryview, int, int], tuple[int, bytes]] = _to_cells if by_channel else _to_channels
    for _ in range(n_layers):
        at, layer = convert(state, at, n_cells)
        result += layer
    return result if at == len(state) else None


def _to_channels(state: memoryview, at: int, n_cells: int) -> tuple[int, bytes]:
    """Where a layer's values end, and these values channel by channel."""
    kind, row_bytes = struct.unpack_from("<iQ", state, at)
    item_bytes, start, end = _ITEM_BYTES[kind], at + 12, at + 12 + n_cells * row_bytes
    values = np.frombuffer(state[start:end], f"u{item_bytes}").reshape(n_cells, -1)
    return end, struct.pack("<iII", kind, item_bytes, values.shape[1]) + values.T.tobytes()


def _to_cells(state: memoryview, at: int, n_cells: int) -> tuple[int, bytes]:
    """Where a layer's values end, and these values cell by cell."""
    kind, item_bytes, n_channels = struct.unpack_from("<iII", state, at)
    start, end = at + 12, at + 12 + n_cells * n_channels * item_bytes
    values = np.frombuffer(state[start:end], f"u{_ITEM_BYTES[kind]}").reshape(n_channels, n_cells)
    return end, struct.pack("<iQ", kind, n_channels * item_bytes) + values.T.tobytes()
