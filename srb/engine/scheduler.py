"""`Scheduler`: decides which requests run, leases cells and seq_ids, and chooses who is preempted."""

from collections.abc import Iterable, Iterator

from srb.engine.kv_cache.allocator import CellAllocator, Load
from srb.engine.kv_cache.prefix_cache import PrefixCache
from srb.engine.kv_cache.radix import WORTH_SHARING, common_prefix
from srb.engine.kv_cache.rollback import Rollback
from srb.engine.sequence import ActiveRequest, Prompt, Sequence

_PATIENCE = 5.0
"""How long later requests may overtake a waiting one, in seconds."""

_IN_SIGHT = 32
"""At most so many requests that have no room are looked at in a step, so that its cost doesn't grow with the queue."""

_MARGIN = 16
"""How many cells each sequence should have left when another one is admitted, so that it isn't preempted soon."""

UNLIMITED = 2**31 - 1
"""The `max_tokens` of an alternative that only the model ends."""


class Scheduler:
    """Requests wait in the order of their arrival, until there are cells for their prompts and a margin.

    Running sequences take cells as they need them. If there are too few, the youngest group of sequences is preempted:
    its cells are swapped out, and it goes on when there are cells again. A group is mostly one sequence; sequences that
    must be in the same steps, and those of a search, are one. The oldest one is never preempted, and each one alone
    fits into the cache, so all come to an end.

    A smaller request may overtake others until they have waited for `_PATIENCE`, and later, if something of them runs.

    The last sequence that continues a prompt gets the prompt's seq_id, so that there can be as many sequences as
    seq_ids.

    n_cells: the longest context of one request. n_parallel: how many rows a step may have.
    """

    def __init__(
        self,
        cache: CellAllocator,
        index: PrefixCache,
        n_cells: int,
        n_parallel: int,
        default_max_tokens: int,
        *,
        memory: Rollback,
    ) -> None:
        self.waiting: dict[str, ActiveRequest] = {}
        self.running: dict[str, ActiveRequest] = {}
        self.prompts: list[Prompt] = []  # the prompts that hold cells, or whose sequences do
        self.leased = 0  # how many rows have leased cells
        self.prefilling: list[Sequence] = []  # have leased their cells, and have not begun
        self.has_news = False  # whether a request came, or something became free, since the last admission
        self._n_requests = 0
        self._makes_way: ActiveRequest | None = None  # what is preempted before the next step
        self._cache = cache
        self._index = index
        self._n_cells = n_cells
        self._n_parallel = n_parallel
        self._default_max_tokens = default_max_tokens
        self._memory = memory

    @property
    def is_running(self) -> bool:
        """Whether any sequence has begun. If none has, there may still be siblings that wait for room."""
        return any(seq.state != "waiting" for active in self.running.values() for seq in active.living)

    @property
    def is_waited_for(self) -> bool:
        """Whether requests or sequences wait for cells."""
        return bool(self.waiting) or any(active.waiting for active in self.running.values())

    @property
    def n_preempted(self) -> int:
        """How many sequences are preempted now."""
        return sum(seq.state == "preempted" for active in self.running.values() for seq in active.waiting)

    @property
    def active(self) -> list[ActiveRequest]:
        """All requests, in the order of their arrival."""
        return sorted((*self.running.values(), *self.waiting.values()), key=lambda each: each.number)

    def find(self, request_id: str) -> ActiveRequest | None:
        """The waiting or running request with this id."""
        return self.running.get(request_id) or self.waiting.get(request_id)

    def add(self, active: ActiveRequest) -> None:
        """Queues a request."""
        most, default = active.request.most_tokens or UNLIMITED, self._default_max_tokens
        for seq in active.sequences:
            wanted = default if seq.params.max_tokens is None else seq.params.max_tokens
            seq.strategy.set_max_tokens(seq, wanted, most, self._n_cells)
        self._n_requests += 1
        active.number = self._n_requests
        self.waiting[active.id] = active
        self.has_news = True

    def remove(self, active: ActiveRequest) -> None:
        """Forgets a request, waiting or running."""
        (self.running if active.id in self.running else self.waiting).pop(active.id)
        self.has_news = True

    # Admission

    def admit(self, now: float) -> Iterator[list[Prompt]]:
        """Leases cells and seq_ids for what waits, oldest first; yields the prompts that have their cells now.

        The caller fills them before it asks for the next, so that later prompts can be forked off these.

        now: seconds of the clock that the requests' arrival was taken from.
        """
        if not self.has_news:
            return
        self.has_news = False
        without_room = 0
        for active in self.active:
            if not active.waiting:
                continue
            for prompts in self._admit(active, passes=without_room > 0):
                active.queued = now
                yield prompts
            if active.waiting:
                without_room += 1
                is_late = now - active.queued > _PATIENCE and not rows_held(active)
                if is_late:  # nothing of it runs, so no other may overtake it any more
                    self._make_way(active, now)
                if is_late or without_room == _IN_SIGHT:
                    return

    def _make_way(self, active: ActiveRequest, now: float) -> None:
        """Lets a request that may never end wait, as if it came now, if a late one waits for it."""
        for each in self.running.values():
            if self._is_endless(each) and each.number < active.number and rows_held(each):
                self._n_requests += 1
                each.number, each.queued = self._n_requests, now
                self._makes_way = each
                return

    def _is_endless(self, active: ActiveRequest) -> bool:
        return any(seq.max_tokens > self._n_cells for seq in active.living)

    def _admit(self, active: ActiveRequest, *, passes: bool) -> Iterator[list[Prompt]]:
        """Admits the waiting groups of a request, one after the other, while there is room.

        passes: whether it overtakes another request. Then there must be room for all tokens of its prompts, even if
            they share some: looking for shared beginnings takes a while, and isn't done for each request in the queue.
        """
        is_new = active.id in self.waiting
        prompts, admitted = list[Prompt](), list[Sequence]()
        for group in groups(active.waiting):
            while n_rows(group) > self._n_parallel:
                group.pop()
            if not (self._has_first_rows(n_rows(group), n_rows(admitted)) if is_new else self._has_rows(active, group)):
                break
            found = self._lease_group(group, admitted, passes=passes)
            while found is None and not self.leased and len(group) > 1:  # the cache is empty, and too small for all
                group = group[: len(group) // 2]
                found = self._lease_group(group, admitted, passes=passes)
            if found is None:
                break
            prompts += found
            admitted += group
            if not is_new:
                yield self._begin(found, group)
        if is_new and admitted:
            self.running[active.id] = self.waiting.pop(active.id)
            yield self._begin(prompts, admitted)

    def _begin(self, prompts: list[Prompt], sequences: list[Sequence]) -> list[Prompt]:
        rows = with_negatives(sequences)
        self._memory.lease(sorted(rows, key=_order))
        self.prefilling += [seq for seq in sorted(rows, key=_order) if not seq.positive]
        return prompts

    def _has_first_rows(self, n: int, n_admitted: int) -> bool:
        """Whether a new request may have n rows: all together, if some are free or it gets one by dividing them."""
        is_first = n_admitted > 0 or min(self.leased, len(self.running)) < self._n_parallel
        return is_first and n_admitted + n <= self._n_parallel

    def _has_rows(self, active: ActiveRequest, group: list[Sequence]) -> bool:
        """Whether a running request may have more rows: free ones, or up to its fair share."""
        n, share = n_rows(group), self._n_parallel // len(self.running)
        return self.leased + n <= self._n_parallel or rows_held(active) + n <= share

    def _lease_group(self, group: list[Sequence], admitted: list[Sequence], *, passes: bool) -> list[Prompt] | None:
        """Leases what a group needs, and returns its prompts. Returns None, and leases nothing, if there is no room.

        admitted: the sequences for which `Rollback` will lease seq_ids, too.
        """
        rows = with_negatives(group)
        prompts = [each for each in dict.fromkeys(seq.prompt for seq in rows) if not each.span]
        if any(_length(seq.prompt) + cells_to_begin(seq) > self._cache.longest for seq in rows):
            return None
        is_unified = self._cache.layout.is_unified
        if not (is_unified or all(each.block_size or not each.strategy.needs_unified for each in prompts)):
            return None
        ids = {prompt: _ids_to_lease(prompt, rows) for prompt in prompts}
        have_one = {seq.prompt for seq in rows if seq.prompt.seq_id is not None or 0 in ids.get(seq.prompt, ())}
        seq_ids = sum(map(len, ids.values())) + sum(map(self._memory.n_ids, rows + with_negatives(admitted)))
        seq_ids += sum(has_row(seq) and not (_gets_prompts(seq) and seq.prompt in have_one) for seq in rows)
        unknown = [prompt for prompt in prompts if not is_swapped(prompt, rows)]
        known = sum(self._length_of(prompt, rows) for prompt in prompts if prompt not in unknown)
        known += sum(map(strategy_cells, prompts)) + sum(map(self._own_cells, rows)) + self._margin(rows)
        tokens = sum(len(prompt.tokens) for prompt in unknown) if passes else 0
        if known + tokens > self._cache.free_cells or seq_ids > self._cache.free_seqs:
            return None
        if not self._find_beginnings(unknown, self._cache.free_cells - known):
            return None
        for prompt in prompts:
            self._lease_prompt(prompt, rows, ids[prompt])
        for seq in sorted(rows, key=_order):
            self._lease(seq)
        return prompts

    def _find_beginnings(self, prompts: list[Prompt], cells: int) -> bool:
        """Finds what prompts can begin with. Returns False if they need more than `cells` all the same."""
        for prompt in prompts:
            prompt.n_computed, prompt.logits = 0, None
            prompt.beginning = self._index.find(prompt)
            self._index.add(prompt)  # so that the next prompt of this request can share with it
        if sum(map(new_cells, prompts)) <= cells:
            return True
        for prompt in prompts:
            self._index.remove(prompt)
            prompt.beginning = None
        return False

    def _margin(self, rows: list[Sequence]) -> int:
        """The cells that sequences should have left when others are admitted; none if no other runs."""
        others = [seq for prompt in self.prompts for seq in prompt.living if seq.span and has_row(seq)]
        if not others:
            return 0
        held = sum(_margin(seq, seq.span.end - seq.span.start) for seq in others if seq.span)
        return held + sum(_margin(seq, cells_to_begin(seq)) for seq in rows if has_row(seq))

    def _lease_prompt(self, prompt: Prompt, rows: list[Sequence], places: Iterable[int]) -> None:
        source = prompt.beginning.source if prompt.beginning else None
        n_tokens = prompt.beginning.shared if prompt.beginning else 0
        end = self._length_of(prompt, rows) + strategy_cells(prompt)
        prompt.span = self._cache.lease(source.span if source else None, n_tokens, end)
        for place in places:
            seq_id = self._cache.lease_seq()
            if place:
                prompt.row_ids.append(seq_id)
            else:
                prompt.seq_id = seq_id
        self.leased += prompt.strategy.n_rows
        self.prompts.append(prompt)
        if prompt.seq_id is not None or not self._memory.forgets:  # else only its sequence has its end, and goes on
            self._index.add(prompt)

    def _lease(self, seq: Sequence) -> None:
        seq.state = "prefilling"
        if not has_row(seq):
            return
        start = _length(seq.prompt)
        if self._memory.forgets and _carries(seq):  # it is restored as it was, and shares no cells
            seq.span = self._cache.lease(None, 0, start + cells_to_begin(seq))
        else:
            seq.span = self._cache.lease(seq.prompt.span, start, start + cells_to_begin(seq))
        if not _gets_prompts(seq) or seq.prompt.seq_id is None:
            seq.seq_id = self._cache.lease_seq()
        self.leased += 1

    def _own_cells(self, seq: Sequence) -> int:
        """The cells that a sequence needs when it is admitted, with those of its prompt that it doesn't share."""
        is_apart = self._memory.forgets and _carries(seq)
        return cells_to_begin(seq) + is_apart * _length(seq.prompt)

    def _length_of(self, prompt: Prompt, rows: list[Sequence]) -> int:
        """How many cells of its own a prompt needs: none where each sequence has all of its tokens for itself."""
        is_apart = self._memory.forgets and not prompt.swapped and is_swapped(prompt, rows)
        return 0 if is_apart else _length(prompt)

    # Preemption

    def reserve(self) -> bool:
        """Leases the cells of the next step for all that runs. Returns False if somebody must be preempted before."""
        if self._makes_way or self._is_stuck:
            return False
        ends = {}
        for prompt in self.prompts:
            for seq in prompt.living:
                if seq.span and seq.state in ("running", "idle"):
                    n_drafted = len((seq.positive or seq).draft_tokens)  # a guide evaluates them, too
                    end = min(seq.position + 1 + n_drafted, _length(prompt) + max(0, seq.max_tokens - 1))
                    ends[seq.span] = max(end, seq.span.start)
        if sum(end - span.end for span, end in ends.items()) > self._cache.free_cells:
            return False
        for span, end in sorted(
            ends.items(), key=lambda item: item[1] - item[0].end
        ):  # first those that give cells back
            self._cache.resize(span, end)
        return True

    def victims(self) -> list[Sequence]:
        """The sequences that are preempted next: the youngest group that holds cells."""
        if self._makes_way:
            active, self._makes_way = self._makes_way, None
            return [seq for seq in active.living if not seq.is_pending]
        if self._is_stuck:
            return self.prompts[-1].living
        by_age = sorted(self.active, key=self._is_endless)  # what may never end gives way to all others
        found = list(groups(seq for active in by_age for seq in active.living if _holds_cells(seq)))
        if len(found) > 1:
            return found[-1]
        if found and len(found[0]) > 1:  # sequences that should be in the same steps don't fit into the cache together
            return found[0][-1:]
        for (seq,) in found:
            if seq.span and not seq.span.start and seq.prompt.seq_id is not None:
                return [seq]  # it was restored apart from its prompt, and is put together with it again
        raise RuntimeError("one sequence alone has no room in the cache")

    @property
    def _is_stuck(self) -> bool:
        """Whether all cells are held by prompts whose sequences wait for cells."""
        is_idle = all(seq.is_pending for prompt in self.prompts for seq in prompt.living)
        return is_idle and bool(self.prompts) and self.is_waited_for

    def is_outgrown(self) -> bool:
        """Whether a sequence will soon be longer than a stream of the present layout."""
        longest = self._cache.longest
        return any(
            min(seq.position + _MARGIN, len(seq.prompt.tokens) + seq.max_tokens) > longest
            for prompt in self.prompts
            for seq in prompt.living
            if seq.span and seq.state == "running"
        )

    # The end

    def drop(self, prompt: Prompt, n_tokens: int) -> None:
        """Takes cells that a prompt has dropped."""
        assert prompt.span
        self._cache.drop(prompt.span, n_tokens)
        self.has_news = True

    def release(self, holder: Prompt | Sequence, *, is_swapped: bool = False) -> None:
        """Takes back what a prompt or a sequence has leased. No other place does this.

        is_swapped: it goes on later. The rows of a way then keep their seq_ids.
        """
        self._index.remove(holder)
        if holder.span:
            self._cache.close(holder.span)
            holder.span = None
            self.leased -= 1 if isinstance(holder, Sequence) else holder.strategy.n_rows
            if isinstance(holder, Prompt):
                self.prompts.remove(holder)
        ids = [] if holder.seq_id is None else [holder.seq_id]
        if isinstance(holder, Sequence):
            holder.seq_id = None
            span = holder.prompt.span
            if span and holder.prompt.seq_id is None and self._memory.forgets and not span.children:
                self._cache.resize(span, span.start)  # the last sequence that had the prompt's cells is gone
            if is_swapped:
                self._memory.give_back(holder)
            else:
                self._memory.release(holder)
        elif is_swapped and holder.strategy.n_rows and any(seq.state != "waiting" for seq in holder.living):
            ids = []
        else:
            ids += holder.row_ids
            holder.seq_id, holder.row_ids = None, []
        for seq_id in ids:
            self._cache.release_seq(seq_id)
        self.has_news = True

    # For others

    def loads(self) -> Iterator[Load]:
        """The prompts that run or wait, in the order of their requests, up to as many rows as a step may have."""
        before: list[Prompt] = []
        left = self._n_parallel
        for active in self.active:
            for prompt in (*active.prompts, *active.negatives):
                living = prompt.living
                if not living or (left <= 0 and all(seq.state == "waiting" for seq in living)):
                    continue
                shared = max(
                    (common_prefix(each.packed, prompt.packed, 0) for each in before[:1] + before[-1:]), default=0
                )
                n = min(prompt.strategy.n_rows or len(living), max(1, left))
                yield Load(
                    n_tokens=len(prompt.tokens),
                    n_computed=prompt.n_computed,
                    n_shared=shared if shared >= WORTH_SHARING else 0,
                    n_rows=n,
                    n_generated=max(seq.n_own for seq in living),
                    max_tokens=max(map(_left, living)),
                    needs_unified=prompt.strategy.needs_unified,
                )
                left -= n
                before.append(prompt)

    @property
    def shared_cells(self) -> int:
        """How many of the leased cells belong to prompts that several sequences continue."""
        spans = [prompt.span for prompt in self.prompts]
        return sum(span.end - span.start for span in spans if span and len(span.children) > 1)


def groups(sequences: Iterable[Sequence]) -> Iterator[list[Sequence]]:
    """The sequences that are admitted and preempted together, in the order of their first ones."""
    found: dict[object, list[Sequence]] = {}
    for seq in sequences:
        found.setdefault(seq.strategy.preemption_group(seq), []).append(seq)
    return iter(found.values())


def with_negatives(sequences: Iterable[Sequence]) -> list[Sequence]:
    """Sequences, and behind them all their companions."""
    found = list(sequences)
    return found + [each for seq in found for each in seq.negatives]


def has_row(seq: Sequence) -> bool:
    """Whether a sequence has rows of its own, and not its way in place of it."""
    return not seq.strategy.n_rows


def is_last(seq: Sequence) -> bool:
    """Whether a sequence is the last of its prompt, which may get the prompt's seq_id."""
    return seq.prompt.sequences[-1] is seq or not has_row(seq)


def _gets_prompts(seq: Sequence) -> bool:
    """Whether a sequence gets the seq_id of its prompt, so that it is the last one that can be forked off that."""
    return is_last(seq) and not any(each.swapped and each is not seq for each in seq.prompt.living)


def n_rows(group: list[Sequence]) -> int:
    """How many rows of a step a group takes."""
    rows = with_negatives(group)
    return sum(prompt.strategy.n_rows for prompt in {seq.prompt for seq in rows}) + sum(map(has_row, rows))


def rows_held(active: ActiveRequest) -> int:
    """How many rows of a step a request may take for what has leased its cells."""
    prompts = [each for each in active.prompts + active.negatives if each.span]
    held = sum(has_row(seq) for prompt in prompts for seq in prompt.sequences if seq.span)
    return held + sum(prompt.strategy.n_rows for prompt in prompts)


def cells_to_begin(seq: Sequence) -> int:
    """The cells that a sequence needs beside its prompt's to begin, or to go on. Its last token never needs one."""
    return min(max(1, seq.n_own), max(0, seq.max_tokens - 1)) if has_row(seq) else 0


def new_cells(prompt: Prompt) -> int:
    """The cells that a prompt needs beside those that it shares."""
    return len(prompt.tokens) - (prompt.beginning.shared if prompt.beginning else 0)


def strategy_cells(prompt: Prompt) -> int:
    """The cells that the rows of a prompt's way need at most, which is when they have no tokens in common."""
    return prompt.strategy.n_rows * prompt.strategy.row_cells


def is_swapped(prompt: Prompt, rows: Iterable[Sequence]) -> bool:
    """Whether a prompt needn't be evaluated: its cells are swapped out, or a sequence has taken them along."""
    return prompt.swapped is not None or any(_carries(seq) for seq in rows if seq.prompt is prompt)


def _holds_cells(seq: Sequence) -> bool:
    """Whether cells become free when a sequence is preempted: its own, or those of a prompt that nobody else uses."""
    if seq.is_pending:
        return any(each.prompt.span and all(other.is_pending for other in each.prompt.living) for each in seq.group)
    return seq.span is not None or seq.prompt.span is not None


def _length(prompt: Prompt) -> int:
    """How many cells a prompt takes when it is evaluated."""
    return len(prompt.tokens) - prompt.n_shifted


def _margin(seq: Sequence, n_cells: int) -> int:
    return max(0, min(_MARGIN, seq.max_tokens - 1 - n_cells))


def _order(seq: Sequence) -> tuple[bool, bool]:
    """Sorts sequences that begin together: first those that have their prompt's cells, last who gets its seq_id."""
    return not _carries(seq), is_last(seq)


def _carries(seq: Sequence) -> bool:
    """Whether the state of a sequence has its prompt's cells, too."""
    return seq.swapped is not None and seq.swapped.state is not None and not seq.swapped.start


def _ids_to_lease(prompt: Prompt, rows: Iterable[Sequence]) -> list[int]:
    """The places of the seq_ids that a prompt needs now: 0 for its own one, and others for its way's rows."""
    own = [] if prompt.seq_id is not None or (not prompt.swapped and is_swapped(prompt, rows)) else [0]
    return own + list(range(1 + len(prompt.row_ids), 1 + prompt.strategy.n_rows))


def _left(seq: Sequence) -> int:
    """How many tokens a sequence may still generate behind its last one, which needs a cell, too."""
    return max(0, seq.max_tokens - len(seq.tokens))
