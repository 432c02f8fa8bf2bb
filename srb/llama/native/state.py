"""Converts the saved state of a sequence for a context of another kind. Pure functions.

A state fits only contexts of its own kind. With flash attention, values are stored cell by cell, without it channel by
channel. Keys and values may be bf16 or f16. Streams count cells per stream. This module reads the format that
`llama_context::state_seq_get_data` and `llama_kv_cache::state_write` write in the llama.cpp of llama-cpp-python 0.3.36,
for one sequence of a model without sliding windows.
"""

import struct
from typing import Any, NamedTuple

import numpy as np

from srb.engine.backend import State

_MAGIC = 0xAF143CD8
_F16, _BF16 = 1, 30
_ITEM_BYTES = {0: 4, _F16: 2, _BF16: 2}  # of f32, f16 and bf16, by their ggml_type; others are read byte by byte

Array = np.ndarray[Any, np.dtype[Any]]


class StateFormat(NamedTuple):
    """What a state has in common with all contexts that it fits.

    Args:
        keys, values: their ggml types.
        by_channel: whether values are stored channel by channel.
        n_streams: how many streams the context has; 1 if it is unified.
    """

    keys: int
    values: int
    by_channel: bool
    n_streams: int


def converted(state: State, wanted: StateFormat, start: int = 0) -> State:
    """Convert a state to a format, and remove its cells before position `start`.

    The state is returned unchanged if its format is unknown, or if a number is too large for f16.
    """
    try:
        found, cells, tensors = _read(state)
        stays = cells[:, 0] >= start
        if found == wanted and stays.all():
            return state
        return _written(wanted, cells, tensors, ... if stays.all() else stays)
    except (struct.error, ValueError, FloatingPointError):
        return state


def first_position(state: State) -> int:
    """Return the lowest position of a state's cells; 0 if its format is unknown."""
    try:
        return int(_read(state)[1][:, 0].min())
    except (struct.error, ValueError):
        return 0


def raised(state: State, n_positions: int) -> State | None:
    """Raise all positions of a state by `n_positions`; None if its format is unknown.

    The keys stay those of the old positions, so this is only for measuring times.
    """
    try:
        found, cells, tensors = _read(state)
        return _written(found, cells + np.array((n_positions, 0, 0), "<i4"), tensors)
    except (struct.error, ValueError):
        return None


def _read(state: State) -> tuple[StateFormat, Array, list[tuple[int, Array]]]:
    """Return the format of a state, its cells, and the types and numbers of its tensors: keys first.

    A cell has 3 numbers: its position, how many seq_ids follow (1), and this seq_id. A tensor has a row for each cell.
    Raises `ValueError` and `struct.error`.
    """
    data = memoryview(state)
    magic, _, n_streams, n_cells = struct.unpack_from("<IiII", data)
    at, n_empty = 16, 0  # only one stream has cells
    while not n_cells and n_empty < n_streams:
        (n_cells,) = struct.unpack_from("<I", data, at)
        at, n_empty = at + 4, n_empty + 1
    cells = np.frombuffer(data, "<i4", 3 * n_cells, at).reshape(n_cells, 3)
    by_channel, n_layers = struct.unpack_from("<II", data, at + 12 * n_cells)
    if magic != _MAGIC or by_channel > 1 or not n_cells or not n_layers:
        raise ValueError("it isn't the state of one sequence")
    at += 12 * n_cells + 8
    tensors = list[tuple[int, Array]]()
    for k in range(2 * n_layers):
        if by_channel and k >= n_layers:
            kind, item_bytes, n_channels = struct.unpack_from("<iII", data, at)
            shape, row_bytes = (n_channels, n_cells), item_bytes * n_channels
        else:
            kind, row_bytes = struct.unpack_from("<iQ", data, at)
            item_bytes = _ITEM_BYTES.get(kind, 1)
            shape = n_cells, row_bytes // item_bytes
        if not 0 < item_bytes <= len(data) or row_bytes > len(data):
            raise ValueError("it has another format")
        numbers = np.frombuffer(data, f"V{item_bytes}", n_cells * row_bytes // item_bytes, at + 12).reshape(shape)
        tensors.append((kind, numbers.T if by_channel and k >= n_layers else numbers))
        at += 12 + n_cells * row_bytes
    if len(data) - at != 4 * (n_streams - 1 - n_empty) or any(data[at:]):
        raise ValueError("it has another length")
    return StateFormat(tensors[0][0], tensors[-1][0], bool(by_channel), n_streams), cells, tensors


def _written(format_: StateFormat, cells: Array, tensors: list[tuple[int, Array]], rows: Any = ...) -> bytearray:
    """Return the state in this format with these rows of the cells and tensors. `...`: all rows, without a copy."""
    n_layers, cells = len(tensors) // 2, cells[rows]
    result = bytearray(struct.pack("<IiII", _MAGIC, 0, format_.n_streams, len(cells)) + cells.tobytes())
    result += struct.pack("<II", format_.by_channel, n_layers)
    for k, (kind, found) in enumerate(tensors):  # one after the other, because a state may be large
        to = format_.keys if k < n_layers else format_.values
        numbers = _retyped(found[rows], kind, to)
        if format_.by_channel and k >= n_layers:
            result += struct.pack("<iII", to, numbers.itemsize, numbers.shape[1])
            result += numbers.T.tobytes()
        else:
            result += struct.pack("<iQ", to, numbers.shape[1] * numbers.itemsize)
            result += numbers.tobytes()
    result += bytes(4 * (format_.n_streams - 1))
    return result


def _retyped(numbers: Array, kind: int, to: int) -> Array:
    """Convert numbers between f16 and bf16. Those of other types stay as they are."""
    if (kind, to) == (_BF16, _F16):
        floats = (numbers.view("<u2").astype("<u4") << 16).view("<f4")
        with np.errstate(over="raise"):
            return floats.astype("<f2")
    if (kind, to) == (_F16, _BF16):
        bits = numbers.view("<f2").astype("<f4").view("<u4")
        nearest: Array = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16  # rounded as ggml does
        return nearest.astype("<u2")
    if kind != to:
        raise ValueError("these types can't be converted")
    return numbers
