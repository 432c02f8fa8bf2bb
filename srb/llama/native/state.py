"""Converts the saved state of a sequence for a context of another kind. Pure functions.

A state fits only contexts of its own kind. With flash attention, values are stored cell by cell, without it channel by
channel. Keys and values may be bf16 or f16. Streams count cells per stream. This module reads the format that
`llama_context::state_seq_get_data` and `llama_kv_cache::state_write` write in the llama.cpp of llama-cpp-python 0.3.36,
for one sequence of a model without sliding windows.
"""

import struct
from collections.abc import Callable

import numpy as np

from srb.engine.backend import State

_MAGIC = 0xAF143CD8
_F16, _BF16 = 1, 30
_ITEM_BYTES = {0: 4, _F16: 2, _BF16: 2}  # of f32, f16 and bf16, by their ggml_type; others need flash attention


def relaid(state: State) -> bytearray | None:
    """Convert a state for a context with the other setting of flash attention; None if its format is unknown."""
    try:
        n_cells, layout_at, tensors = _tensors(memoryview(state))
        (by_channel,) = struct.unpack_from("<I", state, layout_at)
        values = tensors[len(tensors) // 2 :]
        result = bytearray(state[: values[0][0]])
        struct.pack_into("<I", result, layout_at, 1 - by_channel)
        convert: Callable[[State, int, int, int], bytes] = _to_cells if by_channel else _to_channels
        for at, _, end in values:
            result += convert(state, at, end, n_cells)
    except (struct.error, KeyError, ValueError, IndexError):
        return None
    return result


def retyped(state: State, keys: int, values: int) -> State:
    """Convert keys and values between f16 and bf16, to these ggml types.

    The state is returned unchanged if its format is unknown, or if a number is too large for f16.
    """
    try:
        _, _, tensors = _tensors(memoryview(state))
        n_layers, found = len(tensors) // 2, bytearray()
        wanted = [*[keys] * n_layers, *[values] * n_layers]
        for (at, start, end), kind in zip(tensors, wanted, strict=True):
            (own,) = struct.unpack_from("<i", state, at)
            if {own, kind} == {_F16, _BF16}:
                found = found or bytearray(state)
                struct.pack_into("<i", found, at, kind)
                found[start:end] = _to_f16(state[start:end]) if kind == _F16 else _to_bf16(state[start:end])
    except (struct.error, KeyError, ValueError, FloatingPointError):
        return state
    return found or state


def _to_f16(data: State) -> bytes:
    floats = (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4")
    with np.errstate(over="raise"):
        return bytes(floats.astype("<f2"))


def _to_bf16(data: State) -> bytes:
    bits = np.frombuffer(data, "<f2").astype("<f4").view("<u4")
    return bytes(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2"))  # round to nearest, as ggml does


def in_one_stream(state: bytearray) -> bytearray:
    """Convert a state from a context with streams for a unified one, in place. Unknown formats stay as they are.

    llama.cpp writes the number of cells of each stream, of which only one has any.
    """
    magic, seq_id, n_streams = struct.unpack_from("<IiI", state)
    counts = range(12, min(12 + 4 * n_streams, len(state)), 4)
    at = next((at for at in counts if struct.unpack_from("<I", state, at)[0]), 12)
    n_after = 4 * (n_streams - 1) - (at - 12)  # bytes of the counts of later streams
    if magic == _MAGIC and n_streams > 0 and not any(state[len(state) - n_after :]):
        struct.pack_into("<IiI", state, at - 12, magic, seq_id, 1)
        del state[len(state) - n_after :], state[: at - 12]
    return state


def in_streams(state: State, n_streams: int) -> State:
    """Convert a state from a unified context for one with streams. Unknown formats stay as they are."""
    if len(state) < 16 or struct.unpack_from("<IiI", state)[::2] != (_MAGIC, 1):
        return state
    result = bytearray(len(state) + 4 * (n_streams - 1))  # with no cells in the later streams
    result[: len(state)] = state
    struct.pack_into("<I", result, 8, n_streams)
    return result


def first_position(state: State) -> int:
    """Return the lowest position of a state's cells; 0 if its format is unknown."""
    try:
        magic, _, n_streams, n_cells = struct.unpack_from("<IiII", state)
        if (magic, n_streams) == (_MAGIC, 1) and n_cells:
            return int(np.frombuffer(state, "<i4", 3 * n_cells, 16)[::3].min())
    except (struct.error, ValueError):
        pass
    return 0


def without_beginning(state: State, start: int) -> State:
    """Remove the cells before position `start` from a state. Unknown formats stay as they are."""
    try:
        n_cells, layout_at, tensors = _tensors(memoryview(state))
        (by_channel,) = struct.unpack_from("<I", state, layout_at)
        cells = np.frombuffer(state, "<i4", 3 * n_cells, 16).reshape(n_cells, 3)
        stays = cells[:, 0] >= start
        result = bytearray(state[:12]) + struct.pack("<I", stays.sum()) + cells[stays].tobytes()
        result += state[layout_at : layout_at + 8]
        for k, (at, begin, end) in enumerate(tensors):
            result += state[at:begin]
            numbers = np.frombuffer(state[begin:end], "u1")
            if k >= len(tensors) // 2 and by_channel:
                (item_bytes,) = struct.unpack_from("<I", state, at + 4)
                result += numbers.reshape(-1, n_cells, item_bytes)[:, stays].tobytes()
            else:
                result += numbers.reshape(n_cells, -1)[stays].tobytes()
    except (struct.error, ValueError):
        return state
    return result


def raised(state: bytearray, n_positions: int) -> bytearray | None:
    """Raise all positions of a state by `n_positions`; None if its format is unknown.

    The keys stay those of the old positions, so this is only for measuring times.
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


def _tensors(state: memoryview) -> tuple[int, int, list[tuple[int, int, int]]]:
    """Find the number of cells, the layout's offset, and each tensor's offset, begin of data, and end: keys first."""
    magic, _, n_streams, n_cells = struct.unpack_from("<IiII", state)
    layout_at = 16 + 12 * n_cells  # each cell has 3 numbers: its position, how many seq_ids follow (1), and this seq_id
    by_channel, n_layers = struct.unpack_from("<II", state, layout_at)
    if (magic, n_streams) != (_MAGIC, 1) or by_channel not in (0, 1):
        raise ValueError("it isn't the state of one sequence")
    at, tensors = layout_at + 8, []
    for k in range(2 * n_layers):
        if k >= n_layers and by_channel:
            _, item_bytes, n_channels = struct.unpack_from("<iII", state, at)
            n_bytes = n_cells * item_bytes * n_channels
        else:
            _, row_bytes = struct.unpack_from("<iQ", state, at)
            n_bytes = n_cells * row_bytes
        tensors.append((at, at + 12, at + 12 + n_bytes))
        at += 12 + n_bytes
    if at != len(state):
        raise ValueError("it has another length")
    return n_cells, layout_at, tensors


def _to_channels(state: State, at: int, end: int, n_cells: int) -> bytes:
    """Return a layer's values channel by channel."""
    kind, _ = struct.unpack_from("<iQ", state, at)
    item_bytes = _ITEM_BYTES[kind]
    values = np.frombuffer(state[at + 12 : end], f"u{item_bytes}").reshape(n_cells, -1)
    return struct.pack("<iII", kind, item_bytes, values.shape[1]) + values.T.tobytes()


def _to_cells(state: State, at: int, end: int, n_cells: int) -> bytes:
    """Return a layer's values cell by cell."""
    kind, item_bytes, n_channels = struct.unpack_from("<iII", state, at)
    values = np.frombuffer(state[at + 12 : end], f"u{_ITEM_BYTES[kind]}").reshape(n_channels, n_cells)
    return struct.pack("<iQ", kind, n_channels * item_bytes) + values.T.tobytes()
