"""Decides which requests run, allocates cells and seq_ids, and chooses which sequences are preempted."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from srb.engine.kv_cache.allocator import CellAllocator, Load
from srb.engine.kv_cache.prefix_cache import PrefixCache
from srb.engine.kv_cache.radix import WORTH_SHARING, common_prefix
from srb.engine.kv_cache.rollback import Rollback
from srb.engine.sequence import ActiveRequest, Prompt, Sequence

_PATIENCE = 5.0
"""How long later requests may overtake a waiting one, in seconds."""

_LOOKAHEAD = 32
"""The most requests without cells that a step looks at, so that its cost doesn't grow with the queue."""

_MARGIN = 16
"""The cells that each sequence should have left when another one is admitted, so that it isn't preempted soon."""

UNLIMITED = 2**31 - 1
"""The `max_tokens` of an alternative that only the model ends."""


@dataclass(frozen=True, slots=True)
class _Need:
    """What a group needs to be admitted.

    Attributes:
        prompts: its prompts without cells.
        taken_along: those of them whose cells come back with a sequence that was swapped out with them.
        new: those of them that are computed, or share what others have computed. Others were swapped out themselves.
        take_over: its sequences that may take over the seq_id of their prompt, and so are given none here.
        n_cells: the cells, without those for the tokens of `new`.
        n_ids: the seq_ids.
    """

    prompts: list[Prompt]
    taken_along: set[Prompt]
    new: list[Prompt]
    take_over: set[Sequence]
    n_cells: int
    n_ids: int


class Scheduler:
    """Requests wait in the order of their arrival, until there are cells for their prompts and a margin.

    Only the requests of the most urgent priority are scheduled (`current`). Others keep their cells until these are
    needed, and go on when the more urgent ones have ended.

    Running sequences take cells as they need them. If there are too few, a group of sequences is preempted: its cells
    are swapped out, and it goes on when there are cells again. A group is mostly one sequence; sequences that must be
    in the same steps, and those of a search, are one. It is the youngest group of the request that has most groups, or
    of the youngest of these requests. So the oldest group of the oldest request is never preempted, and each one alone
    fits into the cache, so all come to an end.

    Requests share cells and seq_ids equally: one that waits for them takes them from a request that has two groups more
    (`make_way`). The one with the fewest groups is admitted first. A smaller request may overtake others until they
    have waited for `_PATIENCE`, and later, if something of them runs.

    The last sequence that continues a prompt gets the prompt's seq_id, so that there can be as many sequences as
    seq_ids.

    Args:
        allocator: has the cells.
        prefix_cache: finds what prompts can begin with.
        n_cells: the longest context of one request.
        n_parallel: how many rows a step may have.
        default_max_tokens: for alternatives whose `max_tokens` is None.
        rollback: says whether the model forgets, and takes seq_ids for marks.
    """

    def __init__(
        self,
        allocator: CellAllocator,
        prefix_cache: PrefixCache,
        n_cells: int,
        n_parallel: int,
        default_max_tokens: int,
        rollback: Rollback,
    ) -> None:
        self.waiting: dict[str, ActiveRequest] = {}
        self.running: dict[str, ActiveRequest] = {}
        self.prompts: list[Prompt] = []  # the prompts that have cells, or whose sequences do
        self.n_rows = 0  # how many rows have cells
        self.prefilling: list[Sequence] = []  # have their cells, and have not begun
        self.has_news = False  # whether a request came, or something became free, since the last admission
        self._n_requests = 0
        self._blocked: ActiveRequest | None = None  # the first that the last admission had no cells for
        self._allocator = allocator
        self._prefix_cache = prefix_cache
        self._n_cells = n_cells
        self._n_parallel = n_parallel
        self._default_max_tokens = default_max_tokens
        self._rollback = rollback

    @property
    def is_running(self) -> bool:
        """Whether any sequence has cells. If none has, there may still be some that wait for them."""
        return any(not seq.is_pending for active in self.running.values() for seq in active.living)

    @property
    def is_waited_for(self) -> bool:
        """Whether requests or sequences wait for cells."""
        return bool(self.waiting) or any(active.pending for active in self.running.values())

    @property
    def n_preempted(self) -> int:
        """How many sequences are preempted now."""
        return sum(seq.state == "preempted" for active in self.running.values() for seq in active.pending)

    @property
    def active(self) -> list[ActiveRequest]:
        """All requests, the most urgent first, then in the order of their arrival."""
        return sorted((*self.running.values(), *self.waiting.values()), key=lambda each: (each.priority, each.number))

    @property
    def priority(self) -> int:
        """The most urgent priority that there is."""
        return min((each.priority for each in chain(self.running.values(), self.waiting.values())), default=0)

    @property
    def current(self) -> list[ActiveRequest]:
        """The requests of the most urgent priority."""
        priority = self.priority
        return [each for each in self.active if each.priority == priority]

    @property
    def current_prompts(self) -> list[Prompt]:
        """The prompts with cells of the most urgent priority, and those that they wait for to share their cells."""
        priority = self.priority
        found = [prompt for prompt in self.prompts if prompt.active.priority == priority]
        if len(found) == len(self.prompts):
            return self.prompts
        for prompt in found:
            source = prompt.beginning.source if prompt.beginning else None
            source = source.prompt if isinstance(source, Sequence) else source
            if source and source not in found:
                found.append(source)
        return found

    @property
    def n_held(self) -> int:
        """How many cells are in use, if any are by a request of the most urgent priority."""
        return self._allocator.used_cells if any(prompt.span for prompt in self.current_prompts) else 0

    @property
    def shared_cells(self) -> int:
        """How many of the cells in use belong to prompts that several sequences continue."""
        spans = [prompt.span for prompt in self.prompts]
        return sum(span.end - span.start for span in spans if span and len(span.children) > 1)

    def find(self, request_id: str) -> ActiveRequest | None:
        """Returns the waiting or running request with this id."""
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

    def prioritize(self, active: ActiveRequest, priority: int) -> None:
        """Gives a request another priority."""
        active.priority = priority
        self.has_news = True

    def remove(self, active: ActiveRequest) -> None:
        """Forgets a request, waiting or running."""
        (self.running if active.id in self.running else self.waiting).pop(active.id)
        self.has_news = True

    def loads(self) -> Iterator[Load]:
        """Yields the prompts that run or wait, in the order of their requests, up to the rows that a step may have."""
        before: list[Prompt] = []
        n_left = self._n_parallel
        # Rows of strategies keep their seq_ids while they are swapped out, and streams have fewer.
        has_rows = any(prompt.row_ids for active in self.running.values() for prompt in active.prompts)
        for active in self.current:
            for prompt in active.all_prompts:
                living = prompt.living
                if not living or (n_left <= 0 and all(seq.state == "waiting" for seq in living)):
                    continue
                shared = max(
                    (common_prefix(each.packed, prompt.packed, 0) for each in before[:1] + before[-1:]), default=0
                )
                n = min(prompt.strategy.n_rows or len(living), max(1, n_left))
                yield Load(
                    n_tokens=len(prompt.tokens),
                    n_computed=prompt.n_computed,
                    n_shared=shared if shared >= WORTH_SHARING else 0,
                    n_rows=n,
                    n_generated=max(seq.n_own for seq in living),
                    max_tokens=max(max(0, seq.max_tokens - len(seq.tokens)) for seq in living),
                    needs_unified=has_rows or prompt.strategy.needs_unified,
                )
                n_left -= n
                before.append(prompt)

    # Admission

    def admit(self, now: float) -> Iterator[list[Prompt]]:
        """Allocates cells and seq_ids for what waits, fewest groups first; yields the prompts that have cells now.

        The caller fills them before it asks for the next, so that later prompts can be forked off these.

        Args:
            now: seconds of the clock that the requests' arrival was taken from.
        """
        if not self.has_news:
            return
        self.has_news = False
        self._blocked = None
        n_without_cells = 0
        for active in sorted(self.current, key=lambda each: (len(_begun(each)), each.number)):
            if not active.pending:
                continue
            for prompts in self._admit(active, overtakes=n_without_cells > 0):
                active.queued = now
                yield prompts
            if active.pending:
                self._blocked = self._blocked or active
                n_without_cells += 1
                # If nothing of it runs, no other may overtake it any more.
                is_late = now - active.queued > _PATIENCE and not _n_rows_of(active)
                if is_late or n_without_cells == _LOOKAHEAD:
                    return

    def unfit(self) -> ActiveRequest | None:
        """Returns the oldest request if nothing has cells, and yet it wasn't admitted: it will never fit."""
        return self.active[0] if self.is_waited_for and not (self.prompts or self.n_rows) else None

    def make_way(self, now: float) -> list[Sequence]:
        """Returns sequences to preempt so that the first request without cells is admitted; none if that is no use."""
        active, self._blocked = self._blocked, None
        if active is None:
            return []
        less_urgent = [each for each in self.active if each.priority > active.priority and _with_cells(each)]
        if less_urgent:
            return _with_cells(less_urgent[-1])[-1]
        return self._of_larger(active) or self._of_endless(active, now)

    def _of_larger(self, active: ActiveRequest) -> list[Sequence]:
        """Returns what a request needs of those that have two groups more, and more than it then; else nothing."""
        first = next(groups(active.pending))
        while _n_rows(first) > self._n_parallel:
            first.pop()
        need = self._need(first)
        if need is None or not self._has_rows(active, first):
            return []
        n_cells, n_ids = need.n_cells + sum(len(prompt.tokens) for prompt in need.new), need.n_ids
        left = {each: _begun(each) for each in self.current if each is not active}
        least, found = len(_begun(active)) + 2, list[Sequence]()
        while n_cells > self._allocator.free_cells or n_ids > self._allocator.free_seqs:
            largest = max(left, key=lambda each: (len(left[each]), each.number), default=None)
            if largest is None or len(left[largest]) < least:
                return []
            group = with_negatives(left[largest].pop())
            found += (seq for seq in group if not seq.positive)
            n_cells -= sum(seq.span.end - seq.span.start for seq in group if seq.span)
            n_ids -= sum(seq.seq_id is not None for seq in group) + sum(map(self._rollback.n_ids, group))
        return found

    def _of_endless(self, active: ActiveRequest, now: float) -> list[Sequence]:
        """Returns all of a request that may never end, if an older one is late. It then waits as if it came now."""
        if now - active.queued > _PATIENCE and not _n_rows_of(active):
            for each in self.running.values():
                if self._is_endless(each) and each.number < active.number and _n_rows_of(each):
                    self._n_requests += 1
                    each.number, each.queued = self._n_requests, now
                    return [seq for seq in each.living if not seq.is_pending]
        return []

    def _is_endless(self, active: ActiveRequest) -> bool:
        return any(seq.max_tokens > self._n_cells for seq in active.living)

    def _admit(self, active: ActiveRequest, *, overtakes: bool) -> Iterator[list[Prompt]]:
        """Admits the waiting groups of a request, one after the other, while there are cells.

        Args:
            overtakes: whether it overtakes another request. Then there must be cells for all tokens of its prompts,
                even if they share some: looking up prefixes takes a while, and isn't done for the whole queue.
        """
        is_new = active.id in self.waiting
        prompts, admitted = list[Prompt](), list[Sequence]()
        for group in groups(active.pending):
            while _n_rows(group) > self._n_parallel:  # joint alternatives may be too many; the rest waits
                group.pop()
            if not self._has_rows(active, group, admitted):
                break
            found = self._allocate_group(group, admitted, overtakes=overtakes)
            while found is None and not self.n_rows and _can_split(group):  # the cache is empty, and too small for all
                group = group[: len(group) // 2]
                found = self._allocate_group(group, admitted, overtakes=overtakes)
            if found is None:
                break
            prompts += found
            admitted += group
            if not is_new:
                self._add_prefilling(group)
                yield found
        if is_new and admitted:
            self.running[active.id] = self.waiting.pop(active.id)
            self._add_prefilling(admitted)
            yield prompts

    def _add_prefilling(self, sequences: list[Sequence]) -> None:
        members = sorted(with_negatives(sequences), key=_order)
        self._rollback.allocate(members)
        self.prefilling += [seq for seq in members if not seq.positive]

    def _has_rows(self, active: ActiveRequest, group: list[Sequence], admitted: Collection[Sequence] = ()) -> bool:
        """Whether a group may have rows, besides those that are `admitted` with it: free ones, or its fair share."""
        n = _n_rows(group)
        if active.id in self.waiting:  # a new request may have all rows of a step, and takes turns with others
            may_begin = bool(admitted) or min(self.n_rows, len(self.running)) < self._n_parallel
            return may_begin and _n_rows(admitted) + n <= self._n_parallel
        return self.n_rows + n <= self._n_parallel or _n_rows_of(active) + n <= self._n_parallel // len(self.running)

    def _allocate_group(
        self, group: list[Sequence], admitted: list[Sequence], *, overtakes: bool
    ) -> list[Prompt] | None:
        """Allocates what a group needs.

        Args:
            admitted: the sequences for which `Rollback` will allocate seq_ids, too.

        Returns:
            Its prompts; None, and nothing is allocated, if there are too few cells or seq_ids.
        """
        need = self._need(group, admitted)
        if need is None:
            return None
        n_tokens = sum(len(prompt.tokens) for prompt in need.new) if overtakes else 0
        if need.n_cells + n_tokens > self._allocator.free_cells or need.n_ids > self._allocator.free_seqs:
            return None
        if not self._find_beginnings(need.new, self._allocator.free_cells - need.n_cells):
            return None
        for prompt in need.prompts:
            self._allocate_prompt(prompt, is_taken_along=prompt in need.taken_along)
        for seq in sorted(with_negatives(group), key=_order):
            self._allocate(seq, takes_over=seq in need.take_over)
        return need.prompts

    def _need(self, group: list[Sequence], admitted: Iterable[Sequence] = ()) -> "_Need | None":
        """Returns what a group needs besides cells for its new prompts; None if the present layout can't hold it."""
        members = with_negatives(group)
        prompts = [each for each in dict.fromkeys(seq.prompt for seq in members) if not each.span]
        own = [self._own_cells(seq) for seq in members]
        if any(end > self._allocator.longest for _, end in own):
            return None
        is_unified = self._allocator.layout.is_unified
        if not (is_unified or all(each.block_size or not each.strategy.needs_unified for each in prompts)):
            return None
        # One that was preempted while it was computed again has no logits, so no sequence can bring it back.
        has_state = {seq.prompt for seq in members if seq.swapped_cells == "all"}
        taken_along = {each for each in prompts if each in has_state and each.is_ready and not each.swapped}
        new = [each for each in prompts if not each.swapped and each not in taken_along]
        n_cells = sum(
            self._cells_of_prompt(each, is_taken_along=each in taken_along) for each in prompts if each not in new
        )
        n_cells += sum(map(_strategy_cells, prompts)) + sum(end - start for start, end in own) + self._margin(members)
        get_id = {each for each in prompts if each.seq_id is None and each not in taken_along}
        last = [seq for seq in members if has_row(seq) and _is_last(seq)]
        take_over = {seq for seq in last if seq.prompt.seq_id is not None or seq.prompt in get_id}
        n_ids = len(get_id) + sum(map(has_row, members)) - len(take_over)
        n_ids += sum(each.strategy.n_rows - len(each.row_ids) for each in prompts if each not in taken_along)
        n_ids += sum(map(self._rollback.n_ids, members + with_negatives(admitted)))
        return _Need(prompts, taken_along, new, take_over, n_cells, n_ids)

    def _find_beginnings(self, prompts: list[Prompt], n_cells: int) -> bool:
        """Starts prompts anew, with what is found. Returns False if they need more than `n_cells` all the same."""
        for prompt in prompts:
            prompt.n_computed, prompt.logits = 0, None
            prompt.beginning = self._prefix_cache.find(prompt)
            self._prefix_cache.add(prompt)  # so that the next prompt of this request can share with it
        shared = sum(prompt.beginning.shared for prompt in prompts if prompt.beginning)
        if sum(len(prompt.tokens) for prompt in prompts) - shared <= n_cells:
            return True
        for prompt in prompts:
            self._prefix_cache.remove(prompt)
            prompt.beginning = None
        return False

    def _margin(self, members: list[Sequence]) -> int:
        """The cells that sequences should have left when others are admitted; none if no other runs."""
        others = [seq for prompt in self.prompts for seq in prompt.living if seq.span and has_row(seq)]
        if not others:
            return 0
        n_cells = sum(_margin(seq, seq.span.end - seq.span.start) for seq in others if seq.span)
        return n_cells + sum(_margin(seq, _cells_to_begin(seq)) for seq in members if has_row(seq))

    def _allocate_prompt(self, prompt: Prompt, *, is_taken_along: bool) -> None:
        source = prompt.beginning.source if prompt.beginning else None
        n_shared = prompt.beginning.shared if prompt.beginning else 0
        end = self._cells_of_prompt(prompt, is_taken_along=is_taken_along) + _strategy_cells(prompt)
        prompt.span = self._allocator.allocate(source.span if source else None, n_shared, end)
        if prompt.seq_id is None and not is_taken_along:
            prompt.seq_id = self._allocator.allocate_seq()
        while len(prompt.row_ids) < prompt.strategy.n_rows:
            prompt.row_ids.append(self._allocator.allocate_seq())
        self.n_rows += prompt.strategy.n_rows
        self.prompts.append(prompt)
        if prompt.seq_id is not None or not self._rollback.forgets:  # else only its sequence has its end, and goes on
            self._prefix_cache.add(prompt)

    def _allocate(self, seq: Sequence, *, takes_over: bool) -> None:
        seq.state = "prefilling"
        if not has_row(seq):
            return
        start, end = self._own_cells(seq)
        seq.span = self._allocator.allocate(seq.prompt.span, start, end)
        if not takes_over:
            seq.seq_id = self._allocator.allocate_seq()
        self.n_rows += 1

    def _own_cells(self, seq: Sequence) -> tuple[int, int]:
        """From where to where a sequence needs cells of its own when it is admitted.

        If the model forgets, what was swapped out with its prompt's cells is restored as it was, and shares none.
        """
        is_apart = self._rollback.forgets and seq.swapped_cells == "all"
        n_of_prompt = seq.prompt.n_cells
        return 0 if is_apart else n_of_prompt, n_of_prompt + _cells_to_begin(seq)

    def _cells_of_prompt(self, prompt: Prompt, *, is_taken_along: bool) -> int:
        """The cells that a prompt needs: none where each sequence has all of its tokens for itself."""
        return 0 if self._rollback.forgets and is_taken_along else prompt.n_cells

    # Preemption

    def reserve(self) -> bool:
        """Allocates the cells of the next step for all that runs. Returns False if others must be preempted before."""
        if self._is_stuck:
            return False
        ends = {}
        for prompt in self.prompts:
            for seq in prompt.living:
                if seq.span and seq.state in ("running", "idle"):
                    n_next = int(seq.state == "running")
                    if self.cells_left(seq) < n_next:
                        return False
                    n_drafted = len(seq.leader.draft_tokens)  # a negative sequence computes them, too
                    end = min(seq.position + n_next + n_drafted, prompt.n_cells + max(0, seq.max_tokens - 1))
                    ends[seq.span] = max(end, seq.span.start)
        if sum(end - span.end for span, end in ends.items()) > self._allocator.free_cells:
            return False
        for span, end in sorted(ends.items(), key=lambda item: item[1] - item[0].end):  # first those that shrink
            self._allocator.resize(span, end)
        return True

    def victims(self) -> list[Sequence]:
        """Returns the group of sequences that is preempted next."""
        if self._is_stuck:
            return self.prompts[-1].living
        found = {active: _with_cells(active) for active in self.active}
        for group in chain.from_iterable(found.values()):
            if any(seq.state == "running" and self.cells_left(seq) < 1 for seq in group):
                return group  # its stream is full
        # What may never end gives way to all others.
        victim = max(
            (active for active in found if found[active]),
            key=lambda each: (each.priority, self._is_endless(each), len(_begun(each)), each.number),
        )
        group = found[victim][-1]
        if sum(map(len, found.values())) > 1:
            return group
        if _can_split(group):  # sequences that should be in the same steps don't fit into the cache
            return group[-1:]
        seq = group[0]
        if seq.span and not seq.span.start and seq.prompt.seq_id is not None:
            return group  # it was restored apart from its prompt, and will share the prompt's cells again
        raise RuntimeError("there are too few cells for one sequence alone")

    @property
    def _is_stuck(self) -> bool:
        """Whether all cells are those of prompts whose sequences wait for cells. Preemption then frees a prompt's."""
        is_idle = all(seq.is_pending for prompt in self.prompts for seq in prompt.living)
        return is_idle and bool(self.prompts) and self.is_waited_for

    def cells_left(self, seq: Sequence) -> int:
        """Returns how many more cells a sequence, and each of its negatives, can have in the present layout."""
        return self._allocator.longest - max(each.position for each in seq.group)

    def is_outgrown(self) -> bool:
        """Whether a sequence will soon be longer than a stream of the present layout."""
        longest = self._allocator.longest
        return any(
            min(seq.position + _MARGIN, len(seq.prompt.tokens) + seq.max_tokens) > longest
            for prompt in self.prompts
            for seq in prompt.living
            if seq.span and seq.state == "running"
        )

    # The end

    def drop(self, prompt: Prompt, n_tokens: int) -> None:
        """Frees cells that a prompt has dropped."""
        assert prompt.span
        self._allocator.drop(prompt.span, n_tokens)
        self.has_news = True

    def release(self, holder: Prompt | Sequence, *, is_swapped: bool = False) -> None:
        """Frees the cells and seq_ids of a prompt or a sequence. Nothing else does this.

        Args:
            is_swapped: it goes on later. Rows of a decoding strategy then keep their seq_ids.
        """
        self._prefix_cache.remove(holder)
        if holder.span:
            self._allocator.free(holder.span)
            holder.span = None
            self.n_rows -= 1 if isinstance(holder, Sequence) else holder.strategy.n_rows
            if isinstance(holder, Prompt):
                self.prompts.remove(holder)
        ids = [] if holder.seq_id is None else [holder.seq_id]
        if isinstance(holder, Sequence):
            holder.seq_id = None
            span = holder.prompt.span
            if span and holder.prompt.seq_id is None and self._rollback.forgets and not span.children:
                self._allocator.resize(span, span.start)  # the last sequence that had the prompt's cells is gone
            self._rollback.release(holder, is_swapped=is_swapped)
        elif is_swapped and holder.strategy.n_rows and any(seq.state != "waiting" for seq in holder.living):
            ids = []
        else:
            ids += holder.row_ids
            holder.seq_id, holder.row_ids = None, []
        for seq_id in ids:
            self._allocator.free_seq(seq_id)
        self.has_news = True


def groups(sequences: Iterable[Sequence]) -> Iterator[list[Sequence]]:
    """Groups sequences that are admitted and preempted together, in the order of their first ones."""
    found: dict[object, list[Sequence]] = {}
    for seq in sequences:
        found.setdefault(seq.strategy.preemption_group(seq), []).append(seq)
    return iter(found.values())


def _begun(active: ActiveRequest) -> list[list[Sequence]]:
    """Returns the groups of a request that have begun and aren't preempted, the oldest first."""
    return list(groups(seq for seq in active.living if not seq.is_pending))


def _with_cells(active: ActiveRequest) -> list[list[Sequence]]:
    """Returns the groups of a request whose preemption frees cells, the oldest first."""
    return list(groups(seq for seq in active.living if _has_cells(seq)))


def _can_split(group: list[Sequence]) -> bool:
    """Whether a group may be split if the cache is too small for it, because its rows needn't be in lockstep."""
    return len(group) > 1 and group[0].strategy.is_divisible


def with_negatives(sequences: Iterable[Sequence]) -> list[Sequence]:
    """Returns sequences, and after them all their negative sequences."""
    found = list(sequences)
    return found + [each for seq in found for each in seq.negatives]


def has_row(seq: Sequence) -> bool:
    """Whether a sequence has a row of its own, and not its strategy in place of it."""
    return not seq.strategy.n_rows


def _is_last(seq: Sequence) -> bool:
    """Whether a sequence is the last of its prompt, which may take over the prompt's seq_id.

    Its siblings were admitted before, or are with it, so none is forked off that seq_id later (`Cells.can_begin`).
    """
    return seq.prompt.sequences[-1] is seq


def _n_rows(group: Iterable[Sequence]) -> int:
    """How many rows of a step a group takes."""
    members = with_negatives(group)
    return sum(prompt.strategy.n_rows for prompt in {seq.prompt for seq in members}) + sum(map(has_row, members))


def _n_rows_of(active: ActiveRequest) -> int:
    """How many rows of a step a request may take for what has its cells."""
    prompts = [each for each in active.all_prompts if each.span]
    n = sum(has_row(seq) for prompt in prompts for seq in prompt.sequences if seq.span)
    return n + sum(prompt.strategy.n_rows for prompt in prompts)


def _cells_to_begin(seq: Sequence) -> int:
    """The cells that a sequence needs besides its prompt's to begin, or to go on. Its last token never needs one."""
    n_own = seq.n_own - seq.strategy.shifts_context  # that makes room before the next token
    return min(max(1, n_own), max(0, seq.max_tokens - 1)) if has_row(seq) else 0


def _strategy_cells(prompt: Prompt) -> int:
    """The most cells that the rows of a prompt's strategy need, which is when they have no tokens in common."""
    return prompt.strategy.n_rows * prompt.strategy.row_cells


def _has_cells(seq: Sequence) -> bool:
    """Whether preempting a sequence frees cells: its own, or those of a prompt that no other sequence uses."""
    if seq.is_pending:
        return any(each.prompt.span and all(other.is_pending for other in each.prompt.living) for each in seq.group)
    return seq.span is not None or seq.prompt.span is not None


def _margin(seq: Sequence, n_cells: int) -> int:
    return max(0, min(_MARGIN, seq.max_tokens - 1 - n_cells))


def _order(seq: Sequence) -> tuple[bool, bool]:
    """Sorts sequences that begin at once: first those with their prompt's cells, last the one that gets its seq_id."""
    return seq.swapped_cells != "all", _is_last(seq)
