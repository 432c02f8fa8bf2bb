"""`Rollback`: how a sequence goes back, when a rule takes some of its tokens back.

A full cache remembers every token, so the cells behind a token are cut, and the sequence goes on there (`Rollback`).
The logits behind that token were kept if held-back text begins there. If it doesn't, the token is evaluated again.

Other models forget: a recurrent state belongs to a sequence's end alone. There a sequence sets a mark: a second seq_id
that keeps the state at a point which the sequence may go back to (`MarkedRollback`). It is a fork of the sequence where
held-back text begins, with the logits after it. The sequence goes back by being forked off its mark, and the tokens
between are evaluated again, one in each step (`Sequence.n_pending_recompute`). Marks need no cells, because all that
they hold is their sequence's, and where nothing is held back, nothing is done.
"""

from collections.abc import Sequence as Many

from srb.engine.backend import Backend, Logits
from srb.engine.kv_cache.allocator import CellAllocator
from srb.engine.sequence import Sequence

_FAR = 32
"""When a sequence's mark lies this many tokens or more before its held text, the sequence sets a new mark nearer to it.
"""


class Rollback:
    """That of a model that remembers every token of a sequence."""

    forgets = False

    def __init__(self, backend: Backend, cache: CellAllocator) -> None:
        self._backend = backend
        self._cache = cache
        self._kept: dict[Sequence, tuple[int, list[Logits]]] = {}  # after how many own tokens, and the logits there

    def n_ids(self, seq: Sequence) -> int:
        """How many seq_ids a sequence needs beside its own."""
        return 0

    def lease(self, sequences: Many[Sequence]) -> None:
        """Leases these, for sequences that have their own."""

    def release(self, seq: Sequence) -> None:
        """Gives back what is leased and kept for a sequence."""
        self._kept.pop(seq, None)

    def swap_out(self, seq: Sequence) -> None:
        """Called before the cells of a sequence are swapped out."""

    def swap_in(self, seq: Sequence) -> None:
        """Called when the cells of a sequence were swapped in."""

    def give_back(self, seq: Sequence) -> None:
        """Gives back what is leased for a sequence that is swapped out. What is kept for it stays in memory."""

    def n_settled(self, seq: Sequence) -> int:
        """How many of a sequence's own tokens are in its cells and will never be taken back."""
        return max(0, seq.n_final - 1)

    def logits(self, seq: Sequence) -> list[Logits]:
        """The logits from which a sequence without a row draws, and those of its companions."""
        if seq in self._kept:
            return self._kept[seq][1]
        return [each.prompt.logits for each in seq.group if each.prompt.logits is not None]

    def keep(self, seq: Sequence, logits: Logits, beside: Many[Logits]) -> None:
        """Called where a sequence may go back to: the token that it draws from these logits may be taken back.

        beside: the logits of its companions.
        """
        self._kept[seq] = len(seq.computed_tokens), [each.copy() for each in (logits, *beside)]

    def move_on(self, seq: Sequence) -> None:
        """Called for each token that a sequence has drawn and that stays for now."""

    def go_back(self, seq: Sequence) -> None:
        """Removes the cells of tokens that a sequence has taken back, and sets how many it must evaluate again."""
        has_logits = seq in self._kept and self._kept[seq][0] == len(seq.tokens)
        for each in seq.group:
            assert each.seq_id is not None
            each.n_pending_recompute = -1 if has_logits else 0
            is_cut = self._backend.truncate(each.seq_id, each.position)
            assert is_cut, "this model remembers"


class _Mark:
    """A point that a sequence can go back to: a number of its tokens, and the logits behind them; None: not set yet."""

    __slots__ = ("logits", "n_tokens", "seq_id")

    def __init__(self, seq_id: int) -> None:
        self.seq_id = seq_id
        self.n_tokens = 0
        self.logits: Logits | None = None


class MarkedRollback(Rollback):
    """That of a model that forgets. A sequence that may go back has a mark, and so have its companions."""

    forgets = True

    def __init__(self, backend: Backend, cache: CellAllocator) -> None:
        super().__init__(backend, cache)
        self._marks: dict[Sequence, _Mark] = {}
        self._swapped: dict[Sequence, _Mark] = {}

    def n_ids(self, seq: Sequence) -> int:
        """See `Rollback.n_ids`: one for the mark."""
        return int(seq.may_go_back)

    def lease(self, sequences: Many[Sequence]) -> None:
        """See `Rollback.lease`. A prompt keeps its seq_id as long as others are free: its end may still be forked."""
        going_back = [seq for seq in sequences if seq.may_go_back]
        for seq in sequences:
            if seq.span and seq.seq_id is None and self._cache.free_seqs > len(going_back):
                seq.seq_id = self._cache.lease_seq()
        # Marks come last: llama.cpp evaluates recurrent sequences together only if their seq_ids are consecutive.
        for seq in going_back:
            mark = self._swapped.pop(seq, None) or _Mark(-1)
            mark.seq_id = self._cache.lease_seq()
            self._marks[seq] = mark

    def release(self, seq: Sequence) -> None:
        """See `Rollback.release`."""
        self._swapped.pop(seq, None)
        if mark := self._marks.pop(seq, None):
            if mark.logits is not None:
                self._backend.remove(mark.seq_id)
            self._cache.release_seq(mark.seq_id)

    def swap_out(self, seq: Sequence) -> None:
        """Lets the sequence go back to its mark if it may still need that, and empties the mark."""
        mark = self._marks.get(seq)
        if mark is None or mark.logits is None:
            return
        assert seq.seq_id is not None
        if (seq.positive or seq).rollback_window or seq.n_pending_recompute < 0:
            seq.n_pending_recompute = len(seq.tokens) - 1 - mark.n_tokens
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

    def give_back(self, seq: Sequence) -> None:
        """Gives the mark's seq_id back, and remembers the mark if the sequence still needs it."""
        if mark := self._marks.pop(seq, None):
            self._cache.release_seq(mark.seq_id)
            if mark.logits is not None:
                self._swapped[seq] = mark

    def n_settled(self, seq: Sequence) -> int:
        """See `Rollback.n_settled`. A sequence that evaluates tokens again is settled only up to its mark."""
        mark = self._marks.get(seq.positive or seq)
        if mark and mark.logits is not None and (seq.n_pending_recompute or seq.n_final < len(seq.tokens)):
            return mark.n_tokens
        return super().n_settled(seq)

    def logits(self, seq: Sequence) -> list[Logits]:
        """See `Rollback.logits`: those of the marks, if the sequence has gone back to its mark."""
        marks = self._set_marks(seq)
        return [each.logits for each in marks if each.logits is not None] or super().logits(seq)

    def keep(self, seq: Sequence, logits: Logits, beside: Many[Logits]) -> None:
        """See `Rollback.keep`. Sets the mark of the sequence to where it is now."""
        n_tokens = len(seq.computed_tokens)
        if seq not in self._marks or any(mark.n_tokens == n_tokens for mark in self._set_marks(seq)):
            return
        for each, own in zip(seq.group, (logits, *beside), strict=True):
            assert each.seq_id is not None
            mark = self._marks[each]
            if mark.logits is not None:
                self._backend.remove(mark.seq_id)
            mark.n_tokens, mark.logits = n_tokens, own.copy()
            self._backend.fork(each.seq_id, mark.seq_id, each.n_computed)

    def move_on(self, seq: Sequence) -> None:
        """See `Rollback.move_on`. If its mark is far behind, the sequence evaluates sure tokens again, and sets it."""
        mark = self._marks.get(seq)
        if mark and mark.logits is not None and seq.rollback_window and seq.n_final - mark.n_tokens >= _FAR:
            self.go_back(seq)

    def go_back(self, seq: Sequence) -> None:
        """See `Rollback.go_back`. The sequence is forked off its mark anew, and evaluates the tokens behind it
        again."""
        for each in seq.group:
            assert each.seq_id is not None
            mark = self._marks[each]
            each.n_pending_recompute = len(seq.tokens) - 1 - mark.n_tokens
            self._backend.remove(each.seq_id)
            self._backend.fork(mark.seq_id, each.seq_id, each.n_computed)

    def _set_marks(self, seq: Sequence) -> list[_Mark]:
        marks = (self._marks[each] for each in seq.group if each in self._marks)
        return [mark for mark in marks if mark.logits is not None]


def rollback_of(backend: Backend, cache: CellAllocator) -> Rollback:
    """How the sequences of a backend go back."""
    return Rollback(backend, cache) if backend.window is None else MarkedRollback(backend, cache)
