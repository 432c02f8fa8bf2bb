"""`Streams`: a context in which each sequence has cells of its own, so that no sequence changes another one's logits.

In a unified cache the place of a sequence's cells, and the number of rows in a batch, change the last bits of its
logits: attention is computed over the cells of all. Here it is computed over the cells of one sequence. A fork copies
cells, and the memory is divided: each sequence has as many cells as any other.

Kernels may also change with the number of rows: ggml multiplies one row in another way than several. So a context tries
at its start which numbers of rows give the same bits, and a row that would be alone gets another one beside it.
llama.cpp computes rows together only if their seq_ids follow each other. So small gaps between them are filled, too.
"""

from itertools import pairwise
from typing import Any

import llama_cpp

from srb.engine.backend import Batch, State
from srb.errors import ModelLoadError
from srb.llama.native import log
from srb.llama.native.context import Context
from srb.llama.native.state import relaid
from srb.llama.sampling.logprobs import Floats
from srb.options.settings import Settings

_GAP = 4
"""Up to so many rows that nobody needs are computed in order not to read all weights once more."""


class Streams(Context):
    """Sequences with cells of their own (`Context` says what the methods do). A recurrent state can't be had.

    Each has cells for all of its tokens, also where the model has a sliding window, so nothing is forgotten.
    Raises `ModelLoadError` if the logits of a row depend on the number of rows beside it.
    """

    def __init__(self, model: Any, settings: Settings, **kwargs: Any) -> None:
        super().__init__(model, settings, **kwargs)
        self.n_cells -= 1  # a row that nobody needs may be behind the last
        self.can_shift = False
        self._window, self._longest = None, self._window  # of a longer sequence llama.cpp saves only the window
        # By its target, each fork that llama.cpp carries out with the next decode; None if its source is gone.
        self._sources: dict[int, int | None] = {}
        self._copied: set[int] = set()  # the sources of these forks
        self._places: dict[int, int] = {}  # the numbers of rows, as llama.cpp has them in the last decode
        self._least = 1  # how many rows must be computed together
        self._is_always_alone = settings.parallel == 1  # each row is, so nothing has to be computed beside it
        try:
            self._least = 2 if self._changes_with_rows() else 1
        except BaseException:
            self.close()
            raise

    def decode(self, batch: Batch, interrupted: Any) -> bool:
        """See `Context.decode`. Each row is alone in its sequence, or all rows are of one sequence."""
        self._begin_decode()
        if batch.atom or (len(batch) > 1 and batch.seq_ids[0] == batch.seq_ids[1]):
            if self._least > 1 and batch.logits[-1]:  # the last layer computes only the rows that want logits
                batch.logits[-2] = True
            return super().decode(batch, interrupted)
        ids = self._filled(set(batch.seq_ids))
        rows = {seq_id: row for row, seq_id in enumerate(batch.seq_ids)}
        lengths = {seq_id: self.length(seq_id) for seq_id in ids if seq_id not in rows}
        padded = Batch(batch.setting)
        for seq_id in ids:
            if seq_id in lengths:
                padded.add_row(0, lengths[seq_id], seq_id)
            else:
                row = rows[seq_id]
                self._places[row] = padded.add_row(batch.tokens[row], batch.positions[row], seq_id)
        try:
            return super().decode(padded, interrupted)
        finally:
            for seq_id, length in lengths.items():
                llama_cpp.llama_memory_seq_rm(self._memory, seq_id, length, -1)

    def _begin_decode(self) -> None:
        self._sources.clear()
        self._copied.clear()
        self._places.clear()

    def logits(self, row: int) -> Floats:
        """See `Context.logits`."""
        return super().logits(self._places.get(row, row))

    def _filled(self, wanted: set[int]) -> list[int]:
        """These seq_ids and those in small gaps between them, in their order, so that none of them is alone."""
        ids = sorted(wanted)
        filled = {*ids}
        for before, after in pairwise(ids):
            if after - before <= _GAP + 1:
                filled |= {*range(before, after)}
        if self._least > 1 and not self._is_always_alone:
            alone = [seq_id for seq_id in filled if not filled & {seq_id - 1, seq_id + 1}]
            filled |= {seq_id + 1 if seq_id < self._scratch else seq_id - 1 for seq_id in alone}
        return sorted(filled)

    def _changes_with_rows(self) -> bool:
        """Whether a row alone has other logits than one beside others. Raises `ModelLoadError` if all differ."""
        n_seqs = self._scratch + 1
        block = Batch()
        block.add(tuple(n % self._n_vocab for n in range(1, 65)), 0, 0, outputs=1)
        super().decode(block, None)
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
            super().decode(rows, None)
            found.append({self.logits(row).tobytes() for row in (0, last)})
            for seq_id in range(n_seqs):
                self.truncate(seq_id, 0 if seq_id else 64)
        self.remove(0)
        if len(set().union(*found[1:])) > 1:
            raise ModelLoadError(
                "--reproducible can't be had: with these weights, the last bits of a row's logits change with the "
                "number of rows beside it; try other --weights, such as q8_0 or bf16"
            )
        return found[0] != found[-1]

    def fork(self, source: int, target: int, n_tokens: int) -> None:
        """Copies the first `n_tokens` cells of `source`. llama.cpp copies all cells of a sequence, or none."""
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        self._positions.fork(source, target, n_tokens)
        self._sources[target] = source
        self._copied.add(source)
        self.truncate(target, n_tokens)

    def remove(self, seq_id: int) -> None:
        """See `Context.remove`. Another sequence may get the seq_id, before what was forked off this one is copied."""
        super().remove(seq_id)
        self._sources |= {target: None for target, source in self._sources.items() if source == seq_id}

    def save(self, seq_id: int, start: int, end: int, max_bytes: int) -> bytearray | None:
        """The state of all of a sequence's cells: only so are those in it that were evaluated together."""
        at: int | None = seq_id
        while at in self._sources:  # what isn't copied yet is where it comes from
            at = self._sources[at]
        if at is None or not end <= self.length(at) <= (self._longest or self.n_cells):
            return None
        size = llama_cpp.llama_state_seq_get_size(self._context, at)
        return None if size > max_bytes else self._written(at, size)

    def restore(self, state: State, seq_id: int, start: int, end: int) -> bool:
        """Replaces the cells of a sequence by the first `end` of a state that `save` returned."""
        if seq_id in self._sources or seq_id in self._copied:
            return False  # llama.cpp would copy afterwards: what is restored now, or over it
        with log.collected() as complaints:
            restored = self._read(state, seq_id) or ((other := relaid(state)) is not None and self._read(other, seq_id))
        if not restored:
            complaints.log()
            self.remove(seq_id)
        return restored and self.truncate(seq_id, end)
