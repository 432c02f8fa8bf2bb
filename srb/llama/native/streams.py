"""Contexts in which each sequence has cells of its own.

Attention then sees only the cells of one sequence, so many prompts are faster than in a unified cache. A fork copies
cells, and all sequences have the same number of cells. llama.cpp computes rows in one pass only if their seq_ids are
consecutive. So rows are sorted, and small gaps between them are padded.

`ReproducibleStreams` is for `--reproducible` (docs/running/reproducible.md). In a unified cache, attention is computed
over the cells of all sequences. So the place of a sequence's cells, and the number of rows in a batch, change the last
bits of its logits. In streams they don't. But kernels may also depend on the number of rows: ggml multiplies a single
row in another way than several. So this context first tries which numbers of rows give the same bits, and adds a
padding row to a row that would be alone.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import llama_cpp

from srb.engine.backend import Batch, State
from srb.engine.kv_cache.allocator import Layout
from srb.errors import ModelLoadError
from srb.llama.native import library as log
from srb.llama.native.context import Context
from srb.llama.native.state import first_position
from srb.llama.sampling.candidates import Floats
from srb.options.settings import Settings

BLOCK = 64
"""The size of a prompt's blocks with `--reproducible`, in tokens. Kernels that group rows treat all of these alike."""

_GAP = 4  # padding rows are computed for gaps up to this size, which is faster than to read all weights once more


class Streams(Context):
    """Sequences with cells of their own. Not for models with a window or a recurrent state, nor for M-RoPE images."""

    _pads_have_logits = False

    def __init__(self, model: Any, settings: Settings, layout: Layout, **kwargs: Any) -> None:
        super().__init__(model, settings, layout, **kwargs)
        self._has_forks = False  # llama.cpp copies their cells with the next decode
        self._places: dict[int, int] = {}  # the rows of the last batch, as llama.cpp numbers them

    def decode(self, batch: Batch, interrupted: Callable[[], bool] | None) -> bool:
        self._begin_decode()
        ids, wanted = batch.seq_ids, set(batch.seq_ids)
        if batch.placeholder or len(wanted) == 1 < len(ids):
            return super().decode(batch, interrupted)
        gaps = self._gaps(wanted) if len(wanted) == len(ids) else ()
        pads = {seq_id: self._end(seq_id) for seq_id in gaps}
        padded = Batch(batch.setting)
        for seq_id, row in sorted([*zip(ids, range(len(ids)), strict=True), *((seq_id, -1) for seq_id in pads)]):
            if row < 0:
                padded.add((0,), pads[seq_id], seq_id, outputs=int(self._pads_have_logits))
            else:
                place = padded.add((batch.tokens[row],), batch.positions[row], seq_id, outputs=int(batch.logits[row]))
                self._places[row] = place
        try:
            return super().decode(padded, interrupted)
        finally:
            for seq_id, end in pads.items():
                llama_cpp.llama_memory_seq_rm(self._memory, seq_id, end, -1)

    def _begin_decode(self) -> None:
        self._has_forks = False
        self._places.clear()

    def logits(self, row: int) -> Floats:
        return super().logits(self._places.get(row, row))

    def _gaps(self, wanted: set[int]) -> set[int]:
        """Return the seq_ids of padding rows: those in small gaps between these, if the cells of a gap aren't full."""
        found = set[int]()
        for before, after in pairwise(sorted(wanted)):
            between = range(before + 1, after)
            if 0 < len(between) <= _GAP and all(self._end(seq_id) < self.n_cells for seq_id in between):
                found |= {*between}
        return found

    def discard(self, seq_ids: list[int], start: int, end: int, shared: int) -> None:
        for seq_id in seq_ids:  # they share no cells
            super().discard([seq_id], start, end, 0)

    def fork(self, source: int, target: int, n_tokens: int) -> None:
        # llama.cpp copies all cells of a sequence, or none.
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        self._positions.fork(source, target, n_tokens)
        self._has_forks = True
        self.truncate(target, n_tokens)

    def save(self, seq_id: int, start: int, end: int, max_bytes: int) -> bytearray | None:
        """Return the state of all of a sequence's cells; None if it is larger than `max_bytes`, or can't be had.

        If a fork isn't copied yet, this decodes a row.
        """
        if not (end <= self.length(seq_id) <= self._longest and self._copy_forks()):
            return None
        size = llama_cpp.llama_state_seq_get_size(self.pointer, seq_id)
        return None if size > max_bytes else self._written(seq_id, size)

    @property
    def _longest(self) -> int:
        """The most tokens of a sequence that can be saved."""
        return self.n_cells

    def _copy_forks(self) -> bool:
        """Make llama.cpp copy the cells of forks, by decoding a padding row. Returns False if no stream has room."""
        if not self._has_forks:
            return True
        ends = ((seq_id, self._end(seq_id)) for seq_id in range(self._n_seq_ids))
        free = next(((seq_id, end) for seq_id, end in ends if end < self.n_cells), None)
        if free is None:
            return False
        batch = Batch(self._lora)
        batch.add((0,), free[1], free[0], outputs=0)
        self._begin_decode()
        super().decode(batch, None)
        llama_cpp.llama_memory_seq_rm(self._memory, free[0], free[1], -1)
        return True

    def restore(self, state: State, seq_id: int, start: int, end: int) -> bool:
        """Replace the cells of a sequence with the first `end` of a saved state.

        If a fork isn't copied yet, this decodes a row.

        Returns:
            False if that isn't possible. The sequence then stays as it was if the state begins after position 0, and is
            empty if llama.cpp refuses the state.
        """
        if not self._copy_forks():
            return False  # llama.cpp would copy afterwards: what is restored now, or over it
        if self._is_plain and first_position(state) > 0:
            return False
        with log.collected() as messages:
            restored = self._read(state, seq_id)
        if restored and self.truncate(seq_id, end):
            return True
        messages.log()
        self.remove(seq_id)
        return False


class ReproducibleStreams(Streams):
    """Streams in which no sequence changes another one's logits. Not for recurrent models.

    Each sequence has cells for all of its tokens, even if the model has a sliding window. Raises `ModelLoadError`.
    """

    _pads_have_logits = True

    def __init__(self, model: Any, settings: Settings, layout: Layout, **kwargs: Any) -> None:
        super().__init__(model, settings, layout, **kwargs)
        self.n_cells = layout.n_cells  # a padding row may come after the last
        self.can_shift = self._is_plain = False
        self._window, self._saved = None, self._window  # of a longer sequence llama.cpp saves only the window
        self._least = 1  # the fewest rows of a batch
        self._is_always_alone = settings.parallel == 1  # each row is, so nothing has to be computed with it
        try:
            self._least = 2 if self._changes_with_rows() else 1
        except BaseException:
            self.close()
            raise

    def decode(self, batch: Batch, interrupted: Callable[[], bool] | None) -> bool:
        # Each row is alone in its sequence, or all rows are of one sequence. The last layer computes only the rows that
        # want logits.
        if self._least > 1 < len(batch) and batch.seq_ids[0] == batch.seq_ids[1] and batch.logits[-1]:
            batch.logits[-2] = True
        return super().decode(batch, interrupted)

    def _gaps(self, wanted: set[int]) -> set[int]:
        """Return the seq_ids in small gaps between these, and others so that no row is alone."""
        filled = {*wanted}
        for before, after in pairwise(sorted(wanted)):
            if after - before <= _GAP + 1:
                filled |= {*range(before, after)}
        if self._least > 1 and not self._is_always_alone:
            alone = [seq_id for seq_id in filled if not filled & {seq_id - 1, seq_id + 1}]
            filled |= {seq_id + 1 if seq_id < self._scratch else seq_id - 1 for seq_id in alone}
        return filled - wanted

    def _changes_with_rows(self) -> bool:
        """Return whether a lone row has other logits than a row among others. Raises `ModelLoadError` if all differ."""
        n_seqs = self._scratch + 1
        block = Batch()
        block.add(tuple(n % self._n_vocab for n in range(1, 65)), 0, 0, outputs=1)
        Context.decode(self, block, None)
        found = []
        for n_rows in sorted({1, 2, 3, 4, 5, 8, 13, 16, n_seqs}):
            if n_rows > n_seqs:
                continue
            rows, last = Batch(), n_rows - 1
            if last:
                self.fork(0, last, 64)
            for seq_id in range(n_rows):
                is_same = seq_id in (0, last)
                rows.add_row(1 if is_same else seq_id % self._n_vocab, 64 if is_same else 0, seq_id)
            self._begin_decode()
            Context.decode(self, rows, None)
            found.append({self.logits(row).tobytes() for row in (0, last)})
            for seq_id in range(n_seqs):
                self.truncate(seq_id, 0 if seq_id else 64)
        self.remove(0)
        if len(set().union(*found[1:])) > 1:
            raise ModelLoadError(
                "--reproducible can't be used: with these weights, the last bits of a row's logits change with the "
                "number of rows in its batch; try other --weights, such as q8_0 or bf16"
            )
        return found[0] != found[-1]

    @property
    def _longest(self) -> int:
        return self._saved or self.n_cells
