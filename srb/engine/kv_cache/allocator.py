"""The books of the KV cache: which seq_ids are leased, and how many cells, and to whom."""

import heapq
from collections.abc import Collection
from dataclasses import dataclass

# `Layout`: how the cells of a KV cache are laid out, and `Load`, by which a backend chooses a layout. In the
# *unified* layout all sequences share one pool of cells. A fork is free, and attention computes every row over the
# cells of all sequences. In *streams* each sequence has cells of its own. A fork copies them, and attention sees
# only the cells of one sequence. So one prompt with many alternatives is fastest in a unified cache, and many
# prompts in streams.


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of one context.

    is_unified: whether all sequences share one pool of cells; otherwise they are in streams.
    n_cells: how many cells the pool has, or each stream.
    n_seqs: how many sequences there can be; seq_ids go from 0 to n_seqs - 1.
    flash_attn: the kind of attention, which is the backend's own business.
    """

    is_unified: bool
    n_cells: int
    n_seqs: int
    flash_attn: str = ""

    @property
    def name(self) -> str:
        """The layout's name, as `--kv-layout` has it."""
        return "unified" if self.is_unified else "streams"


@dataclass(frozen=True, slots=True)
class Load:
    """A prompt that runs or waits, with the rows that continue it.

    n_tokens: the tokens of the prompt. n_computed: how many of them are in cells, or will be without evaluating them.
    n_shared: how many of its first tokens have the same cells in a unified cache as those of an earlier prompt.
    n_rows: how many rows continue it.
    n_generated: how many tokens each row has in cells behind the prompt, at most.
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
    """Cells leased for the positions from `start` to `end` of a sequence.

    The cells of the positions before belong to its parent, or to its parent's parent, and so on. So the spans are trees
    whose roots begin at 0.
    """

    __slots__ = ("children", "closed", "end", "parent", "start")

    def __init__(self, parent: "Span | None", start: int, end: int) -> None:
        self.parent = parent
        self.start = start
        self.end = end
        self.children: set[Span] = set()
        self.closed = False

    @property
    def line(self) -> "list[Span]":
        """The span, its parent, and so on: all that have to stay leased for it."""
        return [self, *(self.parent.line if self.parent else [])]


class CellAllocator:
    """Leases out seq_ids and cells. This class only counts cells; the backend fills and empties them.

    A cell is one KV position. Sequences that begin alike share cells. A shared cell is leased once, and is free when
    the last of these sequences has given it back. In streams no cell is shared, and each sequence has all of its cells
    from the start; counted as shared, they never run out there.

    longest: how many cells one sequence can have.
    """

    def __init__(self, layout: Layout) -> None:
        self.lay_out(layout)

    def lay_out(self, layout: Layout, kept: Collection[int] = ()) -> None:
        """Begins anew, with another layout. No cells may be leased. kept: the seq_ids that stay leased."""
        self.layout = layout
        self.longest = layout.n_cells
        self.n_cells = self.free_cells = layout.n_cells * (1 if layout.is_unified else layout.n_seqs)
        self._leased = set(kept)
        self._free_seq_ids = [
            each for each in range(layout.n_seqs) if each not in kept
        ]  # a heap: the lowest comes first

    @property
    def leased_cells(self) -> int:
        """How many cells are leased."""
        return self.n_cells - self.free_cells

    @property
    def free_seqs(self) -> int:
        """How many seq_ids are free."""
        return len(self._free_seq_ids)

    def lease_seq(self) -> int:
        """Leases a seq_id. Ask `free_seqs` first."""
        seq_id = heapq.heappop(self._free_seq_ids)
        self._leased.add(seq_id)
        return seq_id

    def release_seq(self, seq_id: int) -> None:
        """Takes a seq_id back."""
        self._leased.remove(seq_id)
        heapq.heappush(self._free_seq_ids, seq_id)

    def lease(self, parent: Span | None, start: int, end: int) -> Span:
        """Leases the cells from `start` to `end` of a sequence that shares those before `start` with `parent`.

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
        """Moves the end of a lease. Nobody else may share the cells behind the new end. Ask `free_cells` first."""
        if end - span.end > self.free_cells:
            raise RuntimeError(f"{end - span.end} cells are not free")
        self.free_cells -= end - span.end
        span.end = end

    def drop(self, span: Span, n: int) -> None:
        """Takes back n cells of a lease. All children of the lease must share these cells, and nobody else may."""
        self.free_cells += n
        span.end -= n
        for child in span.children:
            child.start -= n
            child.end -= n

    def close(self, span: Span) -> None:
        """Ends a lease. Cells that children share stay leased until the children's leases have ended, too."""
        if span.closed:
            raise RuntimeError("cells were given back twice")
        span.closed = True
        last: Span | None = span
        while last and last.closed:
            end = max((child.start for child in last.children), default=last.start)
            self.free_cells += last.end - end
            last.end = end
            if last.children or last.parent is None:
                break
            last.parent.children.remove(last)
            last = last.parent
