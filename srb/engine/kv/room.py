"""`Room`: the cells that are free, and those that can be had from alternatives which take all the room there is.

An example: two alternatives with `max_tokens` -1 have leased 500 cells each, and have used 100. A request comes that
needs 300 cells. Each of them gives 150, and gets them again when nobody waits.
"""

from collections.abc import Collection, Iterable

from srb.engine.kv.kv_cache import KVCache
from srb.engine.kv.needs import spare
from srb.engine.sequence import Prompt, Sequence


class Room:
    """Divides free cells between the sequences that want all the room (`Sequence.wants_rest`).

    prompts: those that hold cells; the scheduler adds and removes them.
    """

    def __init__(self, cache: KVCache, prompts: list[Prompt]) -> None:
        self._cache = cache
        self._prompts = prompts

    @property
    def cells(self) -> int:
        """How many cells can be had now."""
        return self._cache.free_cells + sum(map(spare, self._open_ended()))

    def make(self, cells: int) -> bool:
        """Frees cells, until so many are free, by taking some from sequences that have leased all the room there was.

        All of these give the same number if they can. Each keeps the room that it needs for now, see `Way.least_room`.
        Returns False, and takes nothing, if there would still be too few.
        """
        givers = sorted(self._open_ended(), key=spare)
        if cells > self._cache.free_cells + sum(map(spare, givers)):
            return False
        for k, seq in enumerate(givers):
            lacking = max(0, cells - self._cache.free_cells)
            given = min(spare(seq), -(-lacking // (len(givers) - k)))
            self._resize(seq, -given // len(seq.together))
        return True

    def divide(self, wave: Iterable[Sequence], cells: int) -> None:
        """Gives the free cells but for `cells` to those of these sequences that want all the room."""
        rest = [seq for seq in wave if seq.wants_rest]
        share = (self._cache.free_cells - cells) // max(1, sum(len(seq.together) for seq in rest))
        for seq in rest:
            seq.way.allow(seq, min(seq.room + share, seq.most_tokens))
            seq.most_room = seq.room

    def join(self, seq: Sequence, siblings: Collection[Sequence], cells: int, n: int) -> None:
        """Gives a sequence that begins later its share of the free cells but for `cells`, if it wants all the room.

        siblings: those that began first: `StartEvent.max_tokens` has promised no more room than they had. n: how many
            sequences can begin now, and share the cells.
        """
        if seq.wants_rest:
            share = (self._cache.free_cells - cells) // n // len(seq.together)
            seq.most_room = max(each.most_room for each in siblings)
            seq.way.allow(seq, min(seq.most_room, seq.room + share))

    def give(self) -> None:
        """Gives free cells to sequences that had to give some, up to the room that each had at its start."""
        lacking = [seq for seq in self._open_ended() if seq.room < seq.most_room]
        for k, seq in enumerate(lacking):
            share = self._cache.free_cells // (len(lacking) - k) // len(seq.together)
            self._resize(seq, min(seq.most_room - seq.room, share))

    def drop(self, prompt: Prompt, n_tokens: int, gain: int) -> None:
        """Gives cells that a prompt has dropped to its sequences, as room. Cells that these don't need become free.

        gain: how much room each sequence gets.
        """
        assert prompt.span
        self._cache.drop(prompt.span, n_tokens)
        for seq in prompt.living:
            more = min(gain, seq.max_tokens - seq.room)
            self._resize(seq, more)
            seq.most_room += more

    def _open_ended(self) -> list[Sequence]:
        """The running sequences that have leased all the room there was."""
        return [
            seq for prompt in self._prompts for seq in prompt.sequences if seq.wants_rest and seq.state == "running"
        ]

    def _resize(self, seq: Sequence, n_tokens: int) -> None:
        for each in seq.together:
            assert each.span
            self._cache.resize(each.span, each.span.end + n_tokens)
        seq.way.allow(seq, seq.room + n_tokens)
