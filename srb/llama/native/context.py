"""A llama.cpp context: its KV cache, and the calls that decode in it."""

import ctypes
import dataclasses
import os
import re
from collections.abc import Callable
from typing import Any

import llama_cpp
import numpy as np

from srb.engine.backend import Batch, State
from srb.engine.kv_cache.allocator import Layout
from srb.engine.lora import Lora
from srb.engine.media import Media
from srb.errors import BackendError, ModelLoadError
from srb.llama.adapters import Pointers, set_adapters, set_control_vectors
from srb.llama.multimodal.projector import LlamaMedia
from srb.llama.native import library as log
from srb.llama.native.batch import Positions, Rows
from srb.llama.native.params import engine_params
from srb.llama.native.state import StateFormat, converted
from srb.llama.sampling.candidates import Floats
from srb.options.settings import Settings

_CELLS = re.compile(r"\bsize = +([\d.]+) MiB \( *\d+ cells")
_ROTATED = 64  # llama.cpp rotates quantized keys of heads whose size is a multiple of this


def window_of(model: Any) -> int | None:
    """Return how many last tokens of a sequence the model's memory holds (`Backend.window`)."""
    if llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model):
        return 0
    return int(llama_cpp.llama_model_n_swa(model)) or None


def new_context(model: Any, params: Any, name: str) -> Any:
    """Make a `llama_context`. Raises `ModelLoadError` if llama.cpp can't."""
    return _new_context(model, params, name)[0]


def _new_context(model: Any, params: Any, name: str) -> tuple[Any, list[str]]:
    """Make a `llama_context`. Returns it with the lines of llama.cpp's log."""
    with log.collected() as messages:
        context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise ModelLoadError(f"llama.cpp can't make {name}: {messages.reason}")
    messages.log()
    return context, messages.lines


def cells_bytes(lines: list[str]) -> int:
    """Return the bytes of all cells of a context, from llama.cpp's log of making it."""
    return int(sum(float(found[1]) for line in lines if (found := _CELLS.search(line))) * 2**20)


def shiftable(settings: Settings) -> Settings:
    """Return the settings with a cache that can be shifted: not bf16, because ggml can't rotate bf16 keys."""
    if settings.cache_type_k != "bf16":
        return settings
    # Flash attention on a GPU wants keys and values of one type.
    values = "f16" if settings.cache_type_v == "bf16" else settings.cache_type_v
    return dataclasses.replace(settings, cache_type_k="f16", cache_type_v=values)


def _cannot_rotate(model: Any, keys: str | None) -> bool:
    """Return whether llama.cpp can't rotate these quantized keys. A shift would then end the process."""
    if keys in (None, "f32", "f16", "bf16"):
        return False
    value, architecture = ctypes.create_string_buffer(100), ctypes.create_string_buffer(100)
    llama_cpp.llama_model_meta_val_str(model, b"general.architecture", architecture, 100)
    name = architecture.value + b".attention.key_length"
    found = llama_cpp.llama_model_meta_val_str(model, name, value, 100) > 0
    head_size = llama_cpp.llama_model_n_embd(model) // max(1, llama_cpp.llama_model_n_head(model))
    head_size = int(value.value) if found else head_size
    return head_size % _ROTATED > 0 or bool(os.environ.get("LLAMA_ATTN_ROT_DISABLE"))


class Context:
    """Sequences in a unified KV cache. `srb.engine.backend.Backend` documents the methods. Raises `ModelLoadError`.

    Args:
        layout: the cells and sequences, and the kind of attention: on, off or auto.
        n_outputs: the most rows with logits in a batch.
        adapters: the LoRA adapters that a batch may name.
        media: evaluates batches that are images or sounds.

    Attributes:
        pointer: the `llama_context`; None once it is closed.
        n_cells: the most cells of one sequence.
        cell_bytes: the bytes of memory per cell.
        can_shift: `Backend.can_shift`.
        format: what the saved states of sequences have in common.
    """

    def __init__(
        self,
        model: Any,
        settings: Settings,
        layout: Layout,
        *,
        n_outputs: int,
        adapters: Pointers | None = None,
        control_vectors: Floats | None = None,
        media: LlamaMedia | None = None,
    ) -> None:
        params = engine_params(model, settings, layout, n_outputs=n_outputs)
        self.pointer, lines = _new_context(model, params, f"a context of {params.n_ctx} cells")
        self.cell_bytes = max(1, cells_bytes(lines) // params.n_ctx)
        if control_vectors is not None:
            set_control_vectors(self.pointer, control_vectors)
        self._memory = llama_cpp.llama_get_memory(self.pointer)
        self._window = window_of(model)
        self.n_cells: int = llama_cpp.llama_n_ctx(self.pointer) // (1 if layout.is_unified else params.n_seq_max)
        self._n_vocab: int = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._scratch = layout.n_seqs  # a seq_id for saving and restoring states
        self._n_seq_ids: int = params.n_seq_max
        self._rows = Rows(params.n_batch, n_outputs)
        self._views: dict[int, Floats] = {}  # numpy's views of rows of logits, by address; they are slow to make
        self._adapters = adapters or {}
        self._media = media
        self._positions = Positions()
        n_streams = 1 if layout.is_unified else self._n_seq_ids
        self.format = StateFormat(params.type_k, params.type_v, layout.flash_attn == "off", n_streams)
        self._has_positions = media is not None and media.has_positions  # of images, with M-RoPE
        is_plain = self._window is None and not self._has_positions  # `state.py` can read its states
        self._is_plain = is_plain and bool(llama_cpp.llama_memory_can_shift(self._memory))
        cannot_rotate = shiftable(settings) != settings or _cannot_rotate(model, settings.cache_type_k)
        self.can_shift = self._is_plain and not cannot_rotate
        self._lora: Lora = ()  # the adapters of the last batch
        self._interrupted: Callable[[], bool] | None = None
        self._abort_callback = llama_cpp.ggml_abort_callback(self._ask_interrupted)
        llama_cpp.llama_set_abort_callback(self.pointer, llama_cpp.ggml_abort_callback(), None)

    @property
    def is_closed(self) -> bool:
        """Whether the context was freed. No other method may be called then, except `close`."""
        return self.pointer is None

    def close(self) -> None:
        """Free the context. May be called again."""
        context, self.pointer = self.pointer, None
        if context:
            llama_cpp.llama_free(context)

    def decode(self, batch: Batch, interrupted: Callable[[], bool] | None) -> bool:
        # llama.cpp calls back into Python for every node of the graph, so the callback is set only if it's wanted.
        self._interrupted = interrupted
        callback = self._abort_callback if interrupted else llama_cpp.ggml_abort_callback()
        llama_cpp.llama_set_abort_callback(self.pointer, callback, None)
        if batch.setting != self._lora:
            set_adapters(self.pointer, self._adapters, batch.setting)
            self._lora = batch.setting
        with log.collected() as messages:
            if batch.placeholder:
                code = self._decode_media(batch, batch.placeholder)
            else:
                code = llama_cpp.llama_decode(self.pointer, self._rows.fill(batch, self._positions))
        # llama_decode returns while a GPU still computes. Synchronizing counts its time as part of the decode, and
        # makes sure that the GPU no longer uses this memory if it was interrupted.
        llama_cpp.llama_synchronize(self.pointer)
        if code == 2:
            return False
        if code:
            reason = messages.reason
            named = tuple(int(seq_id) for seq_id in re.findall(r"tokens of sequence (\d+)", reason))
            raise BackendError(f"llama_decode failed with code {code}: {reason}", seq_ids=named)
        messages.log()
        return True

    def _decode_media(self, batch: Batch, media: Media) -> int:
        assert self._media, "a projector has read them"
        start, seq_id = batch.positions[0], batch.seq_ids[0]
        code = self._media.decode(self.pointer, media, self._positions.of(seq_id, start), seq_id)
        if not code and self._has_positions:
            self._positions.add(seq_id, (start, len(media.tokens), media.content.n_positions))
        return code

    def _ask_interrupted(self, _data: ctypes.c_void_p) -> bool:
        return self._interrupted is not None and self._interrupted()

    def logits(self, row: int) -> Floats:
        logits = llama_cpp.llama_get_logits_ith(self.pointer, row)
        if not logits:
            raise BackendError(f"llama.cpp has no logits for row {row}")
        address = ctypes.addressof(logits.contents)
        if address not in self._views:
            self._views[address] = np.ctypeslib.as_array(logits, (self._n_vocab,))
        return self._views[address]

    def length(self, seq_id: int) -> int:
        return self._positions.tokens_in(seq_id, self._end(seq_id))

    def used_seq_ids(self) -> list[int]:
        return [seq_id for seq_id in range(self._n_seq_ids) if self._end(seq_id) > 0]

    def _end(self, seq_id: int) -> int:
        """Return the position after the last one of a sequence."""
        return int(llama_cpp.llama_memory_seq_pos_max(self._memory, seq_id)) + 1

    def continuable_from(self, seq_id: int) -> int:
        if self._window is None:
            return 0
        if self._window == 0:
            return self._end(seq_id)
        # The token at position n attends to the positions from n - window + 1 on.
        first = int(llama_cpp.llama_memory_seq_pos_min(self._memory, seq_id))
        return first + self._window - 1 if first > 0 else 0

    def discard(self, seq_ids: list[int], start: int, end: int, shared: int) -> None:
        if not self.can_shift:  # llama.cpp would end the process
            raise RuntimeError("positions of this model can't change")
        for seq_id in seq_ids:
            llama_cpp.llama_memory_seq_rm(self._memory, seq_id, start, end)
        n = end - start
        if end < shared:  # shared cells must be changed only once
            llama_cpp.llama_memory_seq_add(self._memory, seq_ids[0], end, shared, -n)
        for seq_id in seq_ids:
            llama_cpp.llama_memory_seq_add(self._memory, seq_id, max(end, shared), -1, -n)

    def fork(self, source: int, target: int, n_tokens: int) -> None:
        if n_tokens < self.continuable_from(source):  # llama.cpp would silently go on with a state of other tokens
            raise RuntimeError(f"sequence {source} can't be forked after {n_tokens} tokens")
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, 0, self._positions.of(source, n_tokens))
        self._positions.fork(source, target, n_tokens)

    def truncate(self, seq_id: int, n_tokens: int) -> bool:
        end = self._positions.of(seq_id, n_tokens)
        if self._end(seq_id) > end and not llama_cpp.llama_memory_seq_rm(self._memory, seq_id, end, -1):
            return False
        self._positions.truncate(seq_id, n_tokens)
        is_whole = self._positions.is_length(seq_id, n_tokens, self._end(seq_id))
        return is_whole and n_tokens >= self.continuable_from(seq_id)

    def remove(self, seq_id: int) -> None:
        if not llama_cpp.llama_memory_seq_rm(self._memory, seq_id, -1, -1):
            raise BackendError(f"llama.cpp can't remove sequence {seq_id}")
        self._positions.remove(seq_id)

    def save(self, seq_id: int, start: int, end: int, max_bytes: int) -> bytearray | None:
        places = self._positions.of(seq_id, start), self._positions.of(seq_id, end)
        llama_cpp.llama_memory_seq_cp(self._memory, seq_id, self._scratch, *places)
        try:
            size = llama_cpp.llama_state_seq_get_size(self.pointer, self._scratch)
            if size > max_bytes:
                return None
            state = self._written(self._scratch, size)
            return state + self._positions.packed(seq_id, start, end) if state and self._has_positions else state
        finally:
            self.remove(self._scratch)

    def _written(self, seq_id: int, size: int) -> bytearray | None:
        """Return the state of all of a sequence's cells, which takes `size` bytes."""
        state = bytearray(size)
        written = llama_cpp.llama_state_seq_get_data(self.pointer, log.pointer_to(state), len(state), seq_id)
        return state if written == len(state) else None

    def restore(self, state: State, seq_id: int, start: int, end: int) -> bool:
        first = self._positions.of(seq_id, start)
        if self._has_positions:
            state = self._positions.take(state, seq_id, end)
        with log.collected() as messages:
            # A state from a stream begins before `start`, and there may be no room for all of it.
            restored = self._read(state, self._scratch, start)
        if restored:
            last = self._positions.of(seq_id, end)
            llama_cpp.llama_memory_seq_cp(self._memory, self._scratch, seq_id, first, last)
            if start and self._window and end - start > self._window:
                self._replace_window(seq_id)
        else:
            messages.log()
            self._positions.truncate(seq_id, start)
        self.remove(self._scratch)
        return restored

    def _read(self, state: State, seq_id: int, start: int = 0) -> bool:
        """Fill an empty sequence with the cells of a state from `start` on. Returns whether this worked."""
        if self._is_plain:  # it may come from a context of another kind
            state = converted(state, self.format, start)
        read = llama_cpp.llama_state_seq_set_data(self.pointer, log.pointer_to(state), len(state), seq_id)
        return bool(read == len(state))

    def _replace_window(self, seq_id: int) -> None:
        """Replace the window of a sequence with that of the scratch sequence.

        The sequence also has the window of the state that was restored before. `continuable_from` wouldn't notice the
        gap between the two windows.
        """
        partial = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        state = bytearray(llama_cpp.llama_state_seq_get_size_ext(self.pointer, self._scratch, partial))
        pointer = log.pointer_to(state)
        llama_cpp.llama_state_seq_get_data_ext(self.pointer, pointer, len(state), self._scratch, partial)
        if llama_cpp.llama_state_seq_set_data_ext(self.pointer, pointer, len(state), seq_id, partial) != len(state):
            self.remove(seq_id)
