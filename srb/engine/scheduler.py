"""`Scheduler`: decides which requests run, and leases them their cells and seq_ids."""

from collections.abc import Collection, Iterator

from srb.engine.kept.prefix import PrefixIndex
from srb.engine.kv.kv_cache import KVCache
from srb.engine.kv.memory import Memory
from srb.engine.kv.needs import (
    Needs,
    has_row,
    is_last,
    n_rows,
    new_cells,
    own_cells,
    rows_held,
    together,
    way_cells,
)
from srb.engine.kv.room import Room
from srb.engine.sequence import ActiveRequest, Prompt, Sequence

_PATIENCE = 5.0
"""For so many seconds after a request has arrived, or its last part has begun, later requests may pass it."""

_IN_SIGHT = 32
"""At most so many requests that have no room are looked at in a step, so that its cost doesn't grow with the queue."""


class Scheduler:
    """Requests wait in the order of their arrival, each until there is room for all that it may need.

    A request that needs more than the whole cache has begins with as many sequences as an empty cache has room for. Its
    other sequences begin when these finish, and wait for that in the queue, as a request that comes when its last part
    begins. A smaller request may pass others, until they have waited for `_PATIENCE`. It may also pass them later if
    something of them runs, or if they wait for one that may run for ever.

    A request doesn't wait for rows that another one holds beyond its fair share: it begins, and the planner divides the
    rows of each step between the requests.

    The last sequence that continues a prompt gets the prompt's seq_id, so that there can be as many sequences as
    seq_ids.

    n_cells: see `Needs`.
    """

    def __init__(
        self,
        cache: KVCache,
        index: PrefixIndex,
        n_cells: int,
        n_parallel: int,
        default_max_tokens: int,
        *,
        memory: Memory,
    ) -> None:
        self.waiting: dict[str, ActiveRequest] = {}
        self.running: dict[str, ActiveRequest] = {}
        self.prompts: list[Prompt] = []  # the prompts that hold cells, or whose sequences do
        self.leased = 0  # how many rows have leased cells
        self.prefilling: list[Sequence] = []  # have leased their cells, and have not begun
        self._has_news = False  # whether a request came, or something became free, since the last admission
        self._cache = cache
        self._index = index
        self._n_parallel = n_parallel
        self._needs = Needs(cache, n_cells, n_parallel, default_max_tokens, memory)
        self._room = Room(cache, self.prompts)
        self._memory = memory

    @property
    def is_running(self) -> bool:
        """Whether any sequence has begun. If none has, there may still be siblings that wait for room."""
        return any(seq.state != "waiting" for active in self.running.values() for seq in active.living)

    @property
    def is_waited_for(self) -> bool:
        """Whether requests wait for room, or further sequences of a request that runs in part."""
        return bool(self.waiting) or any(active.waiting for active in self.running.values())

    def find(self, request_id: str) -> ActiveRequest | None:
        """The waiting or running request with this id."""
        return self.running.get(request_id) or self.waiting.get(request_id)

    def add(self, active: ActiveRequest) -> None:
        """Queues a request."""
        self._needs.set_max_tokens(active)
        active.first_wave = self._needs.first_wave(active)
        for prompt in active.prompts:
            if prompt.way.takes_what_fits:
                prompt.sequences = [seq for seq in prompt.sequences if seq in active.first_wave]
        self.waiting[active.id] = active
        self._has_news = True

    def remove(self, active: ActiveRequest) -> None:
        """Forgets a request, waiting or running."""
        (self.running if active.id in self.running else self.waiting).pop(active.id)
        self._has_news = True

    def admit(self, now: float) -> Iterator[list[Prompt]]:
        """Leases what the next requests and sequences need; yields, for each request, the prompts that begin now.

        The caller begins them before it asks for the next ones, so that these can be forked off them.

        now: seconds of the clock that the requests' arrival was taken from.
        """
        if not self._has_news:
            return
        self._has_news = False
        in_part = next((active for active in self.running.values() if active.waiting), None)
        queue = list(self.waiting.values())
        if in_part:
            queue.insert(sum(active.queued <= in_part.queued for active in queue), in_part)
        without_room = 0
        for active in queue:
            is_whole = len(active.first_wave) == len(active.sequences)
            if is_whole or in_part in (None, active):  # two in part could wait for each other's cells for ever
                begins = self._continue(active) if active is in_part else self._start(active, passes=without_room > 0)
                for prompts in begins:
                    in_part = in_part if is_whole else active
                    active.queued = now
                    yield prompts
                if self._holds_others(active, now):
                    return
            without_room += active.id in self.waiting
            if without_room == _IN_SIGHT:
                return
        if not self.waiting and not in_part:
            self._room.give()

    def _holds_others(self, active: ActiveRequest, now: float) -> bool:
        """Whether others may no longer pass a request, because nothing of it runs."""
        wave = active.first_wave if active.id in self.waiting else active.waiting[:1]
        is_late = now - active.queued > _PATIENCE and bool(wave) and not rows_held(active)
        return is_late and self._needs.fits_beside(self.prompts, wave)

    def _start(self, active: ActiveRequest, *, passes: bool) -> Iterator[list[Prompt]]:
        """Moves a request from waiting to running if there is room for its first wave, and yields its prompts.

        passes: whether it passes another request. Then there must be room for all tokens of its prompts, even if they
            share some: to look for shared beginnings takes a while, so it isn't done for each request in the queue.
        """
        wave = active.first_wave
        rows = together(wave)
        prompts = list(dict.fromkeys(each.prompt for each in rows))
        generated = sum(map(own_cells, rows))
        least = generated + sum(way_cells(prompt) + passes * len(prompt.tokens) for prompt in prompts)
        # It has a row if some are free, or else at least one once they are divided fairly.
        has_rows = min(self.leased, len(self.running)) < self._n_parallel
        if not (has_rows and self._has_room(least, rows, prompts)):
            return
        shared = self._needs.shared_in(prompts)
        for prompt in prompts:
            prompt.beginning = self._index.find(prompt, shared.get(prompt, 0))
            self._index.add(prompt)  # so that the next prompt of this request can share with it
        cells = generated + sum(map(new_cells, prompts))
        if not self._room.make(cells):
            for prompt in prompts:
                self._index.remove(prompt)
                prompt.beginning = None
            return
        self._room.divide(wave, cells)
        self.running[active.id] = self.waiting.pop(active.id)
        for prompt in prompts:
            self._lease_prompt(prompt)
        self.prefilling += sorted(wave, key=is_last)
        self._lease_all(rows)
        yield prompts

    def _continue(self, active: ActiveRequest) -> Iterator[list[Prompt]]:
        """Leases cells for the waiting sequences of a request that runs in part, one by one, while there is room."""
        waiting = active.waiting
        for k, seq in enumerate(waiting):
            rows = seq.together
            new = [each.prompt for each in rows if not each.prompt.span]
            generated = sum(map(own_cells, rows))
            n, share = n_rows(rows, new), self._n_parallel // len(self.running)
            has_rows = self.leased + n <= self._n_parallel or rows_held(active) + n <= share
            if not (has_rows and self._has_room(generated + sum(map(way_cells, new)), rows, new)):
                return
            for prompt in new:
                prompt.beginning = self._index.find(prompt)
            cells = generated + sum(map(new_cells, new))
            if not self._room.make(cells):
                for prompt in new:
                    prompt.beginning = None
                return
            free = min(self._n_parallel - self.leased, self._cache.free_seqs - len(new))
            self._room.join(seq, active.first_wave, cells, n=max(1, min(len(waiting) - k, free // len(rows))))
            for prompt in new:
                self._index.add(prompt)
                self._lease_prompt(prompt)
            self.prefilling.append(seq)
            self._lease_all(rows)
            yield new

    def _has_room(self, cells: int, sequences: Collection[Sequence], prompts: list[Prompt]) -> bool:
        """Whether so many cells can be had, and enough seq_ids for these sequences and new prompts."""
        n_rows = sum(prompt.way.n_rows for prompt in prompts)
        return (
            cells <= self._room.cells
            and len(prompts) + n_rows + sum(map(self._needs.seq_ids, sequences)) <= self._cache.free_seqs
        )

    def drop(self, prompt: Prompt, n_tokens: int, *, gain: int) -> None:
        """Takes cells that a prompt has dropped. gain: for how many tokens each of its sequences gets room by that."""
        self._room.drop(prompt, n_tokens, gain)
        self._has_news = True

    def _lease_prompt(self, prompt: Prompt) -> None:
        source = prompt.beginning.source if prompt.beginning else None
        n_tokens = prompt.beginning.shared if prompt.beginning else 0
        end = len(prompt.tokens) + way_cells(prompt)
        prompt.span = self._cache.lease(source.span if source else None, n_tokens, end)
        prompt.seq_id = self._cache.lease_seq()
        prompt.row_ids = [self._cache.lease_seq() for _ in range(prompt.way.n_rows)]
        self.leased += prompt.way.n_rows
        self.prompts.append(prompt)

    def _lease_all(self, sequences: Collection[Sequence]) -> None:
        in_order = sorted(sequences, key=is_last)
        for seq in in_order:
            self._lease(seq)
        self._memory.lease(in_order)

    def _lease(self, seq: Sequence) -> None:
        seq.state = "prefilling"
        if not has_row(seq):
            return
        start = len(seq.prompt.tokens)
        seq.span = self._cache.lease(seq.prompt.span, start, start + own_cells(seq))
        if not is_last(seq):
            seq.seq_id = self._cache.lease_seq()
        self.leased += 1

    def release(self, holder: Prompt | Sequence) -> None:
        """Takes back what a prompt or a sequence has leased. No other place does this."""
        self._index.remove(holder)
        if holder.span:
            self._cache.close(holder.span)
            holder.span = None
            self.leased -= 1 if isinstance(holder, Sequence) else holder.way.n_rows
        if holder.seq_id is not None:
            self._cache.release_seq(holder.seq_id)
            holder.seq_id = None
        if isinstance(holder, Sequence):
            self._memory.release(holder)
        else:
            for seq_id in holder.row_ids:
                self._cache.release_seq(seq_id)
            holder.row_ids = []
            self.prompts.remove(holder)
        self._has_news = True

    def release_all(self) -> None:
        """Takes back everything that is leased."""
        self.prefilling = []
        for prompt in self.prompts.copy():
            for seq in prompt.sequences:
                self.release(seq)
            self.release(prompt)

    @property
    def shared_cells(self) -> int:
        """How many of the leased cells belong to prompts that several sequences continue."""
        spans = [prompt.span for prompt in self.prompts]
        return sum(span.end - span.start for span in spans if span and len(span.children) > 1)
