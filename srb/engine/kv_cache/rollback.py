"""How a sequence goes back, when a constraint takes some of its tokens back.

A full cache remembers every token. So the cells after a token are cut, the token is computed again for the logits after
it, and the sequence goes on there (`Rollback`). Nothing is stored for that.

Other models forget: a recurrent state belongs to a sequence's end alone. There a sequence sets a mark: a second seq_id
with the state at a point which the sequence may go back to (`MarkedRollback`). It is a fork of the sequence where
held-back text begins, with the logits after it. The sequence goes back by being forked off its mark, and the tokens
between are computed again, one in each step (`Sequence.n_own_computed`). Marks need no cells, because all that
they have is their sequence's, and where nothing is held back, nothing is done.
"""

from collections import abc

from srb.engine.backend import Backend, Logits
from srb.engine.kv_cache.allocator import CellAllocator
from srb.engine.sequence import Sequence

_FAR = 32
"""A sequence whose mark lies this many tokens or more before its held text sets a new mark nearer to it."""


class Rollback:
    """Rollback with a model that remembers every token of a sequence."""

    forgets = False

    def __init__(self, backend: Backend, allocator: CellAllocator) -> None:
        self._backend = backend
        self._allocator = allocator

    def n_ids(self, seq: Sequence) -> int:
        """Returns how many seq_ids a sequence needs besides its own."""
        return 0

    def allocate(self, sequences: abc.Sequence[Sequence]) -> None:
        """Allocates these seq_ids, for sequences that were admitted."""

    def release(self, seq: Sequence, *, is_swapped: bool = False) -> None:
        """Frees what a sequence has here. is_swapped: it goes on later, so what is in memory stays."""

    def swap_out(self, seq: Sequence) -> None:
        """Called before the cells of a sequence are swapped out."""

    def swap_in(self, seq: Sequence) -> None:
        """Called when the cells of a sequence were swapped in."""

    def n_settled(self, seq: Sequence) -> int:
        """Returns how many of a sequence's own tokens are in its cells and will never be taken back."""
        return max(0, min(seq.n_own_computed, seq.n_final - 1))

    def logits(self, seq: Sequence) -> list[Logits]:
        """Returns the logits from which a sequence without a row samples, and those of its negatives."""
        return [each.prompt.logits for each in seq.group if each.prompt.logits is not None]

    def mark(self, seq: Sequence, logits: Logits, negatives: abc.Sequence[Logits]) -> None:
        """Notes where a sequence may go back to: the token that it samples from these logits may be taken back."""

    def stayed(self, seq: Sequence) -> None:
        """Called for each token that a sequence has sampled and that stays for now."""

    def go_back(self, seq: Sequence) -> None:
        """Removes the cells of tokens that a sequence has taken back, and sets how many it must compute again."""
        for each in seq.group:
            assert each.seq_id is not None
            each.n_own_computed = max(0, len(seq.tokens) - 1)
            is_cut = self._backend.truncate(each.seq_id, each.position)
            assert is_cut, "this model remembers"


class _Mark:
    """A point that a sequence can go back to: a number of its tokens, and the logits after them; None: not set yet."""

    __slots__ = ("logits", "n_tokens", "seq_id")

    def __init__(self, seq_id: int) -> None:
        self.seq_id = seq_id
        self.n_tokens = 0
        self.logits: Logits | None = None


class MarkedRollback(Rollback):
    """Rollback with a model that forgets. A sequence that may go back has a mark, and so have its negatives."""

    forgets = True

    def __init__(self, backend: Backend, allocator: CellAllocator) -> None:
        super().__init__(backend, allocator)
        self._marks: dict[Sequence, _Mark] = {}
        self._swapped: dict[Sequence, _Mark] = {}

    def n_ids(self, seq: Sequence) -> int:
        return int(seq.may_go_back)

    def allocate(self, sequences: abc.Sequence[Sequence]) -> None:
        going_back = [seq for seq in sequences if seq.may_go_back]
        # The last sequence doesn't take over its prompt's seq_id while others are free: the prompt's end may be forked.
        for seq in sequences:
            if seq.span and seq.seq_id is None and self._allocator.free_seqs > len(going_back):
                seq.seq_id = self._allocator.allocate_seq()
        # Marks come last: llama.cpp computes recurrent sequences in one batch only if their seq_ids are consecutive.
        for seq in going_back:
            mark = self._swapped.pop(seq, None) or _Mark(-1)
            mark.seq_id = self._allocator.allocate_seq()
            self._marks[seq] = mark

    def release(self, seq: Sequence, *, is_swapped: bool = False) -> None:
        if not is_swapped:
            self._swapped.pop(seq, None)
        if mark := self._marks.pop(seq, None):
            if mark.logits is not None:
                if is_swapped:
                    self._swapped[seq] = mark
                else:
                    self._backend.remove(mark.seq_id)
            self._allocator.free_seq(mark.seq_id)

    def swap_out(self, seq: Sequence) -> None:
        """Lets the sequence go back to its mark if it may still need that, and empties the mark."""
        mark = self._marks.get(seq)
        if mark is None or mark.logits is None:
            return
        assert seq.seq_id is not None
        if seq.leader.rollback_window:
            seq.n_own_computed = mark.n_tokens
            self._backend.remove(seq.seq_id)
            self._backend.fork(mark.seq_id, seq.seq_id, seq.n_computed)
        else:
            mark.logits = None
        self._backend.remove(mark.seq_id)

    def swap_in(self, seq: Sequence) -> None:
        """Sets the mark again, where the sequence is."""
        mark = self._marks.get(seq)
        if mark and mark.logits is not None:
            assert seq.seq_id is not None
            self._backend.fork(seq.seq_id, mark.seq_id, seq.n_computed)

    def n_settled(self, seq: Sequence) -> int:
        # While tokens are held or computed again, it may go back to its mark.
        mark = self._marks.get(seq.leader)
        is_at_end = seq.n_own_computed + 1 == seq.n_final == len(seq.tokens)
        if mark and mark.logits is not None and not is_at_end:
            return mark.n_tokens
        return super().n_settled(seq)

    def logits(self, seq: Sequence) -> list[Logits]:
        marks = self._marks_of(seq)  # those of a sequence that has gone back to its mark
        return [each.logits for each in marks if each.logits is not None] or super().logits(seq)

    def mark(self, seq: Sequence, logits: Logits, negatives: abc.Sequence[Logits]) -> None:
        """Sets the mark of the sequence to where it is now."""
        n_tokens = seq.n_own_computed
        if seq not in self._marks or any(mark.n_tokens == n_tokens for mark in self._marks_of(seq)):
            return
        for each, own in zip(seq.group, (logits, *negatives), strict=True):
            assert each.seq_id is not None
            mark = self._marks[each]
            if mark.logits is not None:
                self._backend.remove(mark.seq_id)
            mark.n_tokens, mark.logits = n_tokens, own.copy()
            self._backend.fork(each.seq_id, mark.seq_id, each.n_computed)

    def stayed(self, seq: Sequence) -> None:
        """Lets a sequence whose mark is far away compute final tokens again, so that it sets a nearer one."""
        mark = self._marks.get(seq)
        if mark and mark.logits is not None and seq.rollback_window and seq.n_final - mark.n_tokens >= _FAR:
            self.go_back(seq)

    def go_back(self, seq: Sequence) -> None:
        """Forks the sequence off its mark again; it computes the tokens after the mark again."""
        for each in seq.group:
            assert each.seq_id is not None
            mark = self._marks[each]
            each.n_own_computed = mark.n_tokens
            self._backend.remove(each.seq_id)
            self._backend.fork(mark.seq_id, each.seq_id, each.n_computed)

    def _marks_of(self, seq: Sequence) -> list[_Mark]:
        marks = (self._marks[each] for each in seq.group if each in self._marks)
        return [mark for mark in marks if mark.logits is not None]


def rollback_of(backend: Backend, allocator: CellAllocator) -> Rollback:
    """Returns the rollback that a backend's model needs."""
    return Rollback(backend, allocator) if backend.window is None else MarkedRollback(backend, allocator)
