"""Converts the saved state of a sequence for a context of another kind.

With flash attention the values are stored cell by cell, without it channel by channel. Where bf16 is faster, keys and
values are bf16 unless the context is shifted. A state fits only contexts of its own kind. This module reads the format
that `llama_context::state_seq_get_data` and `llama_kv_cache::state_write` write in the llama.cpp of llama-cpp-python
0.3.36, for one sequence of a model whose layers all attend to everything.
"""

import struct
from collections.abc import Callable

import numpy as np

from srb.engine.backend import State

_MAGIC = 0xAF143CD8
_F16, _BF16 = 1, 30
_ITEM_BYTES = {0: 4, _F16: 2, _BF16: 2}  # of f32, f16 and bf16, by their ggml_type; others need flash attention


def relaid(state: State) -> bytearray | None:
    """The same state with its values in the other layout. None if its format isn't the expected one."""
    try:
        return _relaid(memoryview(state))
    except (struct.error, KeyError, ValueError, IndexError):
        return None


def retyped(state: State, keys: int, values: int) -> State:
    """The same state, whose keys and values that are f16 or bf16 have these ggml types if they are one of both, too.

    It is returned as it is if that is so already, if its format isn't the expected one, or if it has a number that is
    too large for f16.
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
    return bytes(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2"))  # rounded to the nearest, as ggml does


def in_one_stream(state: bytearray) -> bytearray:
    """The same state of one sequence as a unified cache writes it, from a context with streams.

    llama.cpp writes how many cells each stream has, and only one has any. The state is changed in place. It stays as it
    is if its format isn't the expected one.
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
    """The same state for a context with so many streams. It stays as it is if its format isn't the expected one."""
    if len(state) < 16 or struct.unpack_from("<IiI", state)[::2] != (_MAGIC, 1):
        return state
    result = bytearray(len(state) + 4 * (n_streams - 1))  # with no cells in the later streams
    result[: len(state)] = state
    struct.pack_into("<I", result, 8, n_streams)
    return result


def first_position(state: State) -> int:
    """The lowest position of a state's cells; 0 if its format isn't the expected one."""
    try:
        magic, _, n_streams, n_cells = struct.unpack_from("<IiII", state)
        if (magic, n_streams) == (_MAGIC, 1) and n_cells:
            return int(np.frombuffer(state, "<i4", 3 * n_cells, 16)[::3].min())
    except (struct.error, ValueError):
        pass
    return 0


def without_beginning(state: State, start: int) -> State:
    """The state of the cells from position `start` on. It stays as it is if its format isn't the expected one."""
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


def _tensors(state: memoryview) -> tuple[int, int, list[tuple[int, int, int]]]:
    """The number of cells, where the layout is named, and where each tensor, its numbers, and these end: keys first."""
    magic, _, n_streams, n_cells = struct.unpack_from("<IiII", state)
    layout_at = 16 + 12 * n_cells  # each cell has 3 numbers: its position, how many seq_ids follow (1), and this seq_id
    by_channel, n_layers = struct.unpack_from("<II", state, layout_at)
    if (magic, n_streams) != (_MAGIC, 1) or by_channel not in (0, 1):
        raise ValueError("it is no state of one sequence")
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


def _relaid(state: memoryview) -> bytearray:
    n_cells, layout_at, tensors = _tensors(state)
    (by_channel,) = struct.unpack_from("<I", state, layout_at)
    values = tensors[len(tensors) // 2 :]
    result = bytearray(state[: values[0][0]])
    struct.pack_into("<I", result, layout_at, 1 - by_channel)
    convert: Callable[[memoryview, int, int, int], bytes] = _to_cells if by_channel else _to_channels
    for at, _, end in values:
        result += convert(state, at, end, n_cells)
    return result


def _to_channels(state: memoryview, at: int, end: int, n_cells: int) -> bytes:
    """A layer's values channel by channel."""
    kind, _ = struct.unpack_from("<iQ", state, at)
    item_bytes = _ITEM_BYTES[kind]
    values = np.frombuffer(state[at + 12 : end], f"u{item_bytes}").reshape(n_cells, -1)
    return struct.pack("<iII", kind, item_bytes, values.shape[1]) + values.T.tobytes()


def _to_cells(state: memoryview, at: int, end: int, n_cells: int) -> bytes:
    """A layer's values cell by cell."""
    kind, item_bytes, n_channels = struct.unpack_from("<iII", state, at)
    values = np.frombuffer(state[at + 12 : end], f"u{_ITEM_BYTES[kind]}").reshape(n_channels, n_cells)
    return struct.pack("<iQ", kind, n_channels * item_bytes) + values.T.tobytes()
