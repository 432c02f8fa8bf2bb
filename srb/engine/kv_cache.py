"""The books of the KV cache: which seq_ids and how many cells are leased."""

import heapq
from collections.abc import Iterable


class KVCache:
    """Leases out seq_ids and cells. It counts; the backend does.

    A cell is one KV position. Sequences that were forked from one prompt share its cells, which are leased once.
    """

    def __init__(self, n_cells: int, n_seqs: int) -> None:
        self.n_cells = n_cells
        self.n_seqs = n_seqs
        self.free_cells = n_cells
        self._leased: set[int] = set()
        self._free_seq_ids = list(range(n_seqs))  # a heap: the lowest is leased first

    @property
    def leased_seqs(self) -> int:
        """How many seq_ids are leased."""
        return len(self._leased)

    @property
    def leased_cells(self) -> int:
        """How many cells are leased."""
        return self.n_cells - self.free_cells

    def has_room(self, cells: int, seqs: int) -> bool:
        """Whether so many cells and seq_ids are free."""
        return cells <= self.free_cells and seqs <= len(self._free_seq_ids)

    def lease(self, cells: int, seqs: int) -> list[int]:
        """Leases so many cells and returns so many seq_ids. Ask `has_room` first."""
        if not self.has_room(cells, seqs):
            raise RuntimeError(f"{cells} cells and {seqs} seq_ids are not free")
        self.free_cells -= cells
        seq_ids = [heapq.heappop(self._free_seq_ids) for _ in range(seqs)]
        self._leased.update(seq_ids)
        return seq_ids

    def release(self, cells: int, seq_ids: Iterable[int] = ()) -> None:
        """Takes cells and seq_ids back."""
        for seq_id in seq_ids:
            self._leased.remove(seq_id)
            heapq.heappush(self._free_seq_ids, seq_id)
        self.free_cells += cells
        if self.free_cells > self.n_cells:
            raise RuntimeError(f"{cells} cells were given back that nobody had leased")


def common_prefix(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
