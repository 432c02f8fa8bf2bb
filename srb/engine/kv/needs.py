"""Computes how many cells, seq_ids and rows requests need, and so how many tokens each may generate."""

from collections.abc import Collection, Iterable
from itertools import pairwise

from srb.engine.kv.kv_cache import KVCache
from srb.engine.kv.memory import Memory
from srb.engine.kv.radix import WORTH_SHARING
from srb.engine.sequence import ActiveRequest, Prompt, Sequence

UNLIMITED = 2**31 - 1
"""The `max_tokens` of an alternative that only the model ends."""

LEAST_ROOM = 128
"""A sequence that wants as many tokens as there is room for begins only when there is room for so many."""


class Needs:
    """Computes what requests need of a cache, if at most `n_parallel` rows are in a step.

    n_cells: how many cells one request can have; see `Backend.n_cells`.
    memory: says how many seq_ids a sequence needs to go back.
    """

    def __init__(self, cache: KVCache, n_cells: int, n_parallel: int, default_max_tokens: int, memory: Memory) -> None:
        self._cache = cache
        self._n_cells = n_cells
        self._n_parallel = n_parallel
        self._default_max_tokens = default_max_tokens
        self._memory = memory

    def set_max_tokens(self, active: ActiveRequest) -> None:
        """Sets how many tokens each sequence may at least generate: all it wants, or fewer in a small context."""
        most, default, n_cells = active.request.most_tokens or UNLIMITED, self._default_max_tokens, self._cache.n_cells
        want_rest = []
        for seq in active.sequences:
            wanted = default if seq.params.max_tokens is None else seq.params.max_tokens
            if seq.way.size(seq, wanted, most, self._n_cells):
                want_rest.append(seq)
        if not want_rest:
            return
        prompts = active.prompts + active.companions
        shared = self.shared_in(prompts)
        taken = sum(len(prompt.tokens) - shared.get(prompt, 0) for prompt in prompts) + sum(
            own_cells(each) for each in together(active.sequences)
        )
        n_rows = sum(len(seq.together) for seq in want_rest)
        for seq in want_rest:
            room = n_cells - taken
            if room < 0:  # the sequences can't all begin at once, so each is sized as if it were alone
                room = n_cells - sum(len(each.prompt.tokens) for each in seq.together)
            seq.way.allow(seq, min(LEAST_ROOM, room // n_rows + 1, seq.most_tokens))

    def first_wave(self, active: ActiveRequest) -> list[Sequence]:
        """The sequences of a request that begin together: as many as an empty cache has room for."""
        wave: list[Sequence] = []
        prompts: set[Prompt] = set()
        cells = seq_ids = rows = 0
        shared = self.shared_in(active.prompts + active.companions)
        for seq in active.sequences:
            for each in seq.together:
                cells += own_cells(each)
                seq_ids += self.seq_ids(each)
                rows += has_row(each)
                if each.prompt not in prompts:
                    prompts.add(each.prompt)
                    cells += len(each.prompt.tokens) - shared.get(each.prompt, 0) + way_cells(each.prompt)
                    seq_ids += 1 + each.prompt.way.n_rows
                    rows += each.prompt.way.n_rows
            if cells > self._cache.n_cells or seq_ids > self._cache.n_seqs or rows > self._n_parallel:
                break
            wave.append(seq)
        return wave

    def shared_in(self, prompts: list[Prompt]) -> dict[Prompt, int]:
        """How many tokens the prompts of resumed alternatives share with the prompt before them in the list."""
        shared: dict[Prompt, int] = {}
        if not self._memory.forgets:  # if the model forgets, each may have to evaluate them itself
            for before, prompt in pairwise(prompts):
                is_resumed = prompt.asked is before.asked and len(prompt.tokens) > len(prompt.asked)
                if (
                    is_resumed
                    and prompt.key == before.key
                    and prompt.shares
                    and not prompt.way.slides
                    and len(prompt.asked) >= WORTH_SHARING
                ):
                    shared[prompt] = len(prompt.asked)
        return shared

    def fits_beside(self, prompts: Collection[Prompt], wave: Collection[Sequence]) -> bool:
        """Whether these sequences find room when all that ends by itself has ended.

        A sequence is endless if it may generate more tokens than there are cells. A prompt doesn't end while sequences
        of it wait for room. prompts: those that hold cells.
        """
        rows = together(wave)
        wanted = {seq.prompt for seq in rows}
        endless = [
            seq
            for prompt in prompts
            for seq in prompt.sequences
            if seq.state == "running" and seq.max_tokens > self._cache.n_cells
        ]
        waiting = {prompt for prompt in prompts if any(seq.state == "waiting" for seq in prompt.sequences)}
        held = ({seq.prompt for seq in endless} | waiting) - wanted
        if not (endless or held):
            return True
        spans = {span for prompt in held if prompt.span for span in prompt.span.line}
        cells = (
            sum(len(prompt.tokens) + way_cells(prompt) for prompt in wanted)
            + sum(map(own_cells, rows))
            + sum(span.end - span.start for span in spans)
            + sum(own_cells(seq) - spare(seq) for seq in endless)
        )
        seq_ids = len(wanted) + len(held) + sum(prompt.way.n_rows for prompt in wanted)
        seq_ids += sum(map(self.seq_ids, [*rows, *endless]))
        return cells <= self._cache.n_cells and seq_ids <= self._cache.n_seqs

    def seq_ids(self, seq: Sequence) -> int:
        """How many seq_ids a sequence needs: one, unless it gets its prompt's, and those for going back."""
        return (not is_last(seq)) + self._memory.n_ids(seq)


def new_cells(prompt: Prompt) -> int:
    """The cells that a prompt and the rows of its way need beside those that the prompt shares."""
    return len(prompt.tokens) - (prompt.beginning.shared if prompt.beginning else 0) + way_cells(prompt)


def way_cells(prompt: Prompt) -> int:
    """The cells that the rows of a prompt's way need at most, which is when they have no tokens in common."""
    return prompt.way.n_rows * _cells_for(prompt.sequences[0].room)


def own_cells(seq: Sequence) -> int:
    """The cells that a sequence needs beside its prompt's."""
    return _cells_for(seq.room) if has_row(seq) else 0


def has_row(seq: Sequence) -> bool:
    """Whether a sequence has rows of its own, and not its way in place of it."""
    return not seq.way.n_rows


def n_rows(sequences: Collection[Sequence], prompts: Collection[Prompt]) -> int:
    """How many rows of a step these sequences, and the ways of these prompts, take."""
    return sum(prompt.way.n_rows for prompt in prompts) + sum(map(has_row, sequences))


def rows_held(active: ActiveRequest) -> int:
    """How many rows of a step a request may take for what has leased its cells."""
    prompts = active.prompts + active.companions
    return n_rows(
        [seq for prompt in prompts for seq in prompt.sequences if seq.span], [each for each in prompts if each.span]
    )


def spare(seq: Sequence) -> int:
    """The cells that a sequence which wants all the room can give up for now."""
    return len(seq.together) * max(0, seq.room - seq.way.least_room(seq))


def is_last(seq: Sequence) -> bool:
    """Whether a sequence needs no seq_id: it is the last one to begin and gets its prompt's, or it has no rows."""
    return seq.prompt.sequences[-1] is seq or not has_row(seq)


def _cells_for(max_tokens: int) -> int:
    """The cells that so many generated tokens need. The last one needs none, because it is never evaluated."""
    return max(0, max_tokens - 1)


def work_of(prompt: Prompt) -> tuple[int, int, int]:
    """What `Backend.prepare` is told of a prompt."""
    return len(prompt.tokens), prompt.way.n_rows or len(prompt.living), max(seq.room for seq in prompt.living)


def together(sequences: Iterable[Sequence]) -> list[Sequence]:
    """Sequences, and behind them all their companions."""
    found = list(sequences)
    return found + [each for seq in found for each in seq.companions]
