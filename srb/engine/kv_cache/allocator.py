"""Counts the cells and seq_ids of the KV cache: which are in use, and by whom."""

import heapq
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """How the cells of one context are laid out.

    In the *unified* layout all sequences share one pool of cells. A fork is free, and attention computes every row over
    the cells of all sequences. In *streams* each sequence has cells of its own. A fork copies them, and attention sees
    only the cells of one sequence. So one prompt with many alternatives is fastest in a unified cache, and many prompts
    in streams.

    Attributes:
        is_unified: whether all sequences share one pool of cells; otherwise they are in streams.
        n_cells: how many cells the pool has, or each stream.
        n_seqs: how many sequences there can be; seq_ids go from 0 to n_seqs - 1.
        flash_attn: the kind of attention, which only the backend understands.
    """

    is_unified: bool
    n_cells: int
    n_seqs: int
    flash_attn: str = ""

    def __str__(self) -> str:
        return f"{self.name}, {self.n_cells} cells, {self.n_seqs} sequences"

    @property
    def name(self) -> str:
        """The layout's name, as `--kv-layout` has it."""
        return "unified" if self.is_unified else "streams"


@dataclass(frozen=True, slots=True)
class Load:
    """A prompt that runs or waits, and the rows that continue it; a backend chooses the layout by these.

    Attributes:
        n_tokens: the tokens of the prompt.
        n_computed: how many of them are in cells, or will be without computing them.
        n_shared: how many of its first tokens have the same cells in a unified cache as those of an earlier prompt.
        n_rows: how many rows continue it.
        n_generated: how many generated tokens each row has in cells, at most.
        max_tokens: how many tokens each row may still generate.
        needs_unified: whether its rows fork or move each other's cells, which streams can't do, or only slowly.
    """

    n_tokens: int
    n_computed: int
    n_shared: int
    n_rows: int
    n_generated: int
    max_tokens: int
    needs_unified: bool = False


class Span:
    """Cells allocated for the positions from `start` to `end` of a sequence.

    The cells before `start` belong to its parent, or to its parent's parent, and so on. So spans are trees whose roots
    begin at 0.
    """

    __slots__ = ("children", "end", "is_freed", "parent", "start")

    def __init__(self, parent: "Span | None", start: int, end: int) -> None:
        self.parent = parent
        self.start = start
        self.end = end
        self.children: set[Span] = set()
        self.is_freed = False


class CellAllocator:
    """Allocates seq_ids and cells. It only counts cells; the backend fills and empties them.

    A cell is one KV position. Sequences that begin alike share cells. A shared cell is counted once, and is free when
    the last of these sequences has freed it. In streams no cell is shared, and each sequence has all of its cells from
    the start; counted as shared, they never run out there.
    """

    def __init__(self, layout: Layout) -> None:
        self.reset(layout)

    def reset(self, layout: Layout, seq_ids: Collection[int] = ()) -> None:
        """Starts again with another layout. No cells may be in use."""
        self.layout = layout
        self.longest = layout.n_cells  # how many cells one sequence can have
        self.n_cells = self.free_cells = layout.n_cells * (1 if layout.is_unified else layout.n_seqs)
        self._seq_ids = set(seq_ids)
        self._free_seq_ids = [each for each in range(layout.n_seqs) if each not in seq_ids]  # a heap: the lowest first

    @property
    def used_cells(self) -> int:
        """How many cells are in use."""
        return self.n_cells - self.free_cells

    @property
    def free_seqs(self) -> int:
        """How many seq_ids are free."""
        return len(self._free_seq_ids)

    def allocate_seq(self) -> int:
        """Returns a free seq_id. Ask `free_seqs` first."""
        seq_id = heapq.heappop(self._free_seq_ids)
        self._seq_ids.add(seq_id)
        return seq_id

    def free_seq(self, seq_id: int) -> None:
        """Frees a seq_id."""
        self._seq_ids.remove(seq_id)
        heapq.heappush(self._free_seq_ids, seq_id)

    def allocate(self, parent: Span | None, start: int, end: int) -> Span:
        """Allocates the cells from `start` to `end` of a sequence that shares those before `start` with `parent`.

        Ask `free_cells` first.
        """
        if end - start > self.free_cells:
            raise RuntimeError(f"{end - start} cells are not free")
        while parent and start <= parent.start:  # none of the shared cells is this parent's own
            parent = parent.parent
        span = Span(parent, start, end)
        if parent:
            parent.children.add(span)
        self.free_cells -= end - start
        return span

    def resize(self, span: Span, end: int) -> None:
        """Moves the end of a span. No other may share the cells after the new end. Ask `free_cells` first."""
        if end - span.end > self.free_cells:
            raise RuntimeError(f"{end - span.end} cells are not free")
        self.free_cells -= end - span.end
        span.end = end

    def drop(self, span: Span, n: int) -> None:
        """Takes `n` cells out of a span. All children of the span must share these cells, and no other may."""
        self.free_cells += n
        span.end -= n
        for child in span.children:
            child.start -= n
            child.end -= n

    def free(self, span: Span) -> None:
        """Frees a span. Cells that its children share stay in use until the children are freed, too."""
        if span.is_freed:
            raise RuntimeError("cells were given back twice")
        span.is_freed = True
        last: Span | None = span
        while last and last.is_freed:
            end = max((child.start for child in last.children), default=last.start)
            self.free_cells += last.end - end
            last.end = end
            if last.children or last.parent is None:
                break
            last.parent.children.remove(last)
            last = last.parent
