"""Fills and empties the cells of the KV cache: prompts and sequences begin, are swapped and are given back here.

Swapping out moves cells to memory, and swapping in puts them back. Preemption and a change of the layout use it. There
are two kinds of states (`Swapped`):

- Of a sequence its own cells are saved, and those of its prompt apart, when the last sequence goes that needs them. So
  a prompt is saved once for all of its sequences, and each is forked off it again.
- In streams, and where a model forgets and the prompt's end is in no cells any more, a state can't be put after the
  prompt's cells. There each sequence saves all of its cells, and the first that comes back brings those of its prompt
  along.

If there is no memory for a state, or llama.cpp finds no cells for it, the sequence is computed again from its tokens.
Where that is impossible, the engine fails.

A seq_id has one owner. A prompt has one from its admission on, and so has each of its sequences but the last: that one
takes over the prompt's when its siblings have begun. A sequence that goes leaves its seq_id to the prompt if no other
has the prompt's cells (`_empty`). What waits or is swapped out has none, but for the rows of strategies.

Decoding strategies with rows of their own say which of these are forked. Nothing else gives cells back.
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace

from srb.engine.backend import Backend, State
from srb.engine.kv_cache.allocator import CellAllocator, Layout
from srb.engine.kv_cache.prefix_cache import PrefixCache
from srb.engine.kv_cache.retention import Cached, RetentionPolicy
from srb.engine.kv_cache.rollback import Rollback
from srb.engine.kv_cache.state_cache import StateCache
from srb.engine.scheduler import Scheduler, has_row, with_negatives
from srb.engine.sequence import Holder, Prompt, Sequence, SequenceState, Swapped
from srb.engine.stats import Totals


class Cells:
    """Fills and empties the cells that the scheduler allocates.

    Args:
        states: gives memory for what is swapped out.
        prefix_cache: knows the sequences that can be forked.
        retention: caches what is given back.
        clock: returns the time, in seconds.
    """

    def __init__(
        self,
        backend: Backend,
        allocator: CellAllocator,
        scheduler: Scheduler,
        rollback: Rollback,
        states: StateCache,
        prefix_cache: PrefixCache,
        retention: RetentionPolicy,
        totals: Totals,
        clock: Callable[[], float],
    ) -> None:
        self.awaiting: list[Prompt] = []
        """The prompts that wait until another one has computed the tokens that they share with it."""
        self.prefix_cache = prefix_cache
        self.retention = retention
        self._backend = backend
        self._allocator = allocator
        self._scheduler = scheduler
        self._rollback = rollback
        self._states = states
        self._totals = totals
        self._clock = clock

    # Prompts begin

    def fill(self, prompt: Prompt) -> None:
        """Gives an admitted prompt the cells of its `beginning`, or lets it wait until these are computed."""
        if prompt.swapped:
            self._swap_in_prompt(prompt, prompt.swapped)
        elif prompt.beginning and prompt.beginning.source:
            self.awaiting.append(prompt)
            self.share()
        elif prompt.beginning:
            self._stop_awaiting(prompt)

    def share(self) -> None:
        """Forks each waiting prompt off the one that it shares a beginning with, if that one has come so far."""
        for prompt in self.awaiting.copy():
            assert prompt.beginning
            source, n_tokens = prompt.beginning.source, prompt.beginning.shared
            assert source
            if source.n_computed >= n_tokens:
                self._share(source, prompt, n_tokens)
                if prompt.is_computed:
                    assert isinstance(source, Prompt)
                    prompt.logits = source.logits
                self._stop_awaiting(prompt)

    def _share(self, source: Prompt | Sequence, prompt: Prompt, n_tokens: int) -> None:
        assert source.source_id is not None
        assert prompt.seq_id is not None
        if prompt.scores and isinstance(source, Prompt) and source.scores:
            prompt.scores.take(source.scores)
        self.fork_seq(source.source_id, prompt.seq_id, n_tokens)
        self._add_cached(prompt, n_tokens)

    def _stop_awaiting(self, prompt: Prompt) -> None:
        """Ends the waiting of a prompt. The cached part of its beginning comes after the tokens that it shares."""
        beginning, prompt.beginning = prompt.beginning, None
        if prompt in self.awaiting:
            self.awaiting.remove(prompt)
        if beginning and beginning.hit and prompt.living:
            self._add_cached(prompt, self.prefix_cache.restore(prompt, beginning.hit))

    def _add_cached(self, prompt: Prompt, end: int) -> None:
        self._totals.prompt_tokens_cached += end - prompt.n_computed
        prompt.n_computed = prompt.cached = end

    def _turn_away(self, source: Prompt, layout: Layout) -> None:
        """Lets the prompts that wait for one that goes wait for cells again; they will find what it has computed."""
        away = [each for each in self.awaiting if each.beginning and each.beginning.source is source]
        if away and source.n_computed and self.repair([source]):
            self.retention.cache_part(source)
        for prompt in away:
            self.swap_out([seq.leader for seq in prompt.living], layout)

    # Sequences begin and end

    def can_begin(self, seq: Sequence) -> bool:
        """Whether its prompt is complete, and the siblings have begun that are forked off the seq_id that it takes."""
        siblings = () if seq.seq_id is not None else seq.prompt.sequences
        waits = any(each.state == "prefilling" and each.seq_id is not None and not each.is_forked for each in siblings)
        return seq.prompt.is_ready and not waits

    def fork(self, seq: Sequence) -> None:
        """Begins a sequence where its prompt ends."""
        prompt, source = seq.prompt, seq.prompt.source_id
        assert source is not None
        if seq.seq_id is None:
            self._hand_over(seq)
        elif n_tokens := prompt.n_cells:
            self.fork_seq(source, seq.seq_id, n_tokens)
        self._add_forked(seq)

    def _hand_over(self, seq: Sequence) -> None:
        """Gives the seq_id of a prompt to the last sequence that continues it."""
        prompt = seq.prompt
        if self._rollback.forgets:  # as soon as the sequence goes on, the prompt's end is lost
            self.prefix_cache.remove(prompt)
            self.retention.cache_prompt(prompt)
        seq.seq_id, prompt.seq_id = prompt.seq_id, None

    def _add_forked(self, seq: Sequence) -> None:
        seq.is_forked = True
        self.prefix_cache.add(seq)

    def fork_seq(self, source: int, target: int, n_tokens: int) -> None:
        """Lets one seq_id share the first `n_tokens` cells of another one."""
        self._backend.fork(source, target, n_tokens)
        self._totals.forks += 1

    def repair(self, holders: Iterable[Holder]) -> bool:
        """Cuts cells to the tokens that count as computed. Returns False if one can't be continued any more.

        The cells after these are left from a failed decode, or from tokens that were taken back.
        """
        is_whole = True
        for each in holders:
            assert each.seq_id is not None
            is_whole &= self._backend.truncate(each.seq_id, each.position)
        return is_whole

    def give_back(self, seq: Sequence, cached: Cached) -> None:
        """Caches this of a finished sequence, and gives back its cells. The last one gives back its prompt's, too."""
        prompt = seq.prompt
        if seq.sampler:
            seq.sampler.close()
            seq.sampler = None
        self._drop(seq.swapped)
        seq.swapped = None
        self.retention.cache_finished(seq, cached)
        if seq.seq_id is not None:
            self._empty(seq)
        self._scheduler.release(seq)
        if prompt.living:
            return
        self._drop(prompt.swapped)
        prompt.swapped = None
        if prompt.span or prompt.row_ids:
            self._stop_awaiting(prompt)
            self._turn_away(prompt, self._allocator.layout)
            for seq_id in (prompt.seq_id, *prompt.row_ids) if prompt.span else ():
                if seq_id is not None:
                    self._backend.remove(seq_id)
            self._scheduler.release(prompt)

    def _empty(self, seq: Sequence) -> None:
        """Empties a sequence. Its prompt gets the seq_id if no other has the prompt's cells, and can keep these."""
        prompt = seq.prompt
        assert seq.seq_id is not None
        seq.is_forked = False  # so `source_id` is that of another sequence
        is_only_copy = prompt.span and prompt.seq_id is None and prompt.living and prompt.source_id is None
        if is_only_copy and self._backend.truncate(seq.seq_id, prompt.position):
            seq.seq_id, prompt.seq_id = None, seq.seq_id
        else:
            self._backend.remove(seq.seq_id)

    # Changing the layout

    def lay_out(self, layout: Layout) -> None:
        """Swaps everything out, and counts the cells of another layout. The next admission swaps all in again."""
        began = self._clock()
        running = self._scheduler.running.values()
        self.swap_out((seq for active in running for seq in active.living), layout)
        prompts = [prompt for active in running for prompt in active.all_prompts]
        if not layout.is_unified:
            for prompt in prompts:
                self._make_whole(prompt)
            self._drop_unpaired(seq for active in running for seq in active.living)
        ids = (seq_id for prompt in prompts for seq_id in (prompt.seq_id, *prompt.row_ids))
        self._allocator.reset(layout, {seq_id for seq_id in ids if seq_id is not None})
        self._totals.layout_changes += 1
        self._totals.swap_seconds += self._clock() - began

    def _make_whole(self, prompt: Prompt) -> None:
        """Puts the cells of a prompt into the states that lack them, so that these fit into streams.

        All cells are swapped out, so there are enough to put the parts together.
        """
        wholes = (prompt.swapped, *(seq.swapped for seq in prompt.living if seq.swapped_cells == "all"))
        whole = next((each for each in wholes if each and each.end >= prompt.n_cells), None)
        seq_id = self._allocator.allocate_seq()
        for seq in prompt.living:
            if seq.swapped_cells != "own":
                continue
            part = seq.swapped
            assert part
            assert part.state is not None
            state = None
            if whole and whole.state is not None and self._backend.restore(whole.state, seq_id, 0, part.start):
                if self._backend.restore(part.state, seq_id, part.start, part.end):
                    state = self._save(seq_id, 0, part.end, must=True)
                self._backend.remove(seq_id)
            if state is None and not self._can_recompute(seq, part.resumes):
                raise RuntimeError("a state can't be swapped into streams")
            self._drop(part)
            seq.swapped = replace(part, state=state, start=0)
        self._allocator.free_seq(seq_id)
        if prompt.swapped and prompt.is_ready and all(seq.swapped_cells == "all" for seq in prompt.living):
            self._drop(prompt.swapped)  # the first sequence that comes back has its cells, so it needs no stream
            prompt.swapped = None

    # Swapping out

    def preempt(self, group: Iterable[Sequence]) -> None:
        """Swaps a group of sequences out, because others need their cells."""
        began = self._clock()
        self.swap_out(group, self._allocator.layout)
        self._totals.preemptions += 1
        self._totals.swap_seconds += self._clock() - began

    def swap_out(self, group: Iterable[Sequence], layout: Layout) -> None:
        """Moves the cells of sequences, and those of prompts that no other sequence needs, to memory.

        Args:
            layout: the one that they will be swapped into.
        """
        rows = [seq for seq in with_negatives(group) if seq.prompt.span or seq.span]
        going = {seq for seq in rows if not seq.is_pending}
        leaving = [
            prompt
            for prompt in dict.fromkeys(seq.prompt for seq in rows)
            if all(seq.is_pending or seq in going for seq in prompt.living)
        ]
        for prompt in leaving:
            if prompt in self.awaiting:  # it has no cells yet
                self.awaiting.remove(prompt)
                prompt.beginning = None
        for prompt in leaving:
            self._turn_away(prompt, layout)
        # A state has the prompt's cells, too, if it can't be put after these: in streams, or if its end is gone.
        has_streams = not (layout.is_unified and self._allocator.layout.is_unified)
        whole = {seq.prompt for seq in rows if has_streams or (self._rollback.forgets and seq.prompt.seq_id is None)}
        is_change = layout != self._allocator.layout  # nothing stays swapped out for long then, whatever its size
        for prompt in leaving:
            self._save_prompt(prompt, is_whole=prompt in whole, must=is_change)
        for seq in rows:
            if not seq.is_pending:
                self._swap_out(seq, is_whole=seq.prompt in whole, must=is_change)
                self._scheduler.release(seq, is_swapped=True)
        self._drop_unpaired(rows)
        self._scheduler.prefilling = [seq for seq in self._scheduler.prefilling if not seq.is_pending]
        for prompt in leaving:
            for seq_id in (prompt.seq_id, *prompt.row_ids):
                if seq_id is not None:
                    self._backend.remove(seq_id)
            self._scheduler.release(prompt, is_swapped=True)

    def _swap_out(self, seq: Sequence, *, is_whole: bool, must: bool) -> None:
        """Moves the own cells of a sequence to memory; is_whole: all cells."""
        if seq.is_forked:
            assert seq.seq_id is not None
            self._rollback.swap_out(seq)
            start, end = 0 if is_whole else seq.prompt.position, self._backend.length(seq.seq_id)
            must = must or not self._can_recompute(seq, seq.state)
            state = self._save(seq.seq_id, start, end, must=must)
            seq.swapped, seq.state = Swapped(state, start, end, seq.state), "preempted"
            self._empty(seq)
        elif seq.state == "prefilling":
            seq.state = "preempted" if seq.swapped else "waiting"
        else:  # its strategy has rows in place of it
            seq.swapped, seq.state = Swapped(None, 0, 0, seq.state), "preempted"

    def _save_prompt(self, prompt: Prompt, *, is_whole: bool, must: bool) -> None:
        """Copies the cells of a prompt and its strategy's rows. is_whole: those of its sequences that have them do."""
        rows = {}
        for seq_id in prompt.row_ids:
            if (end := self._backend.length(seq_id)) > 0:
                state = self._save(seq_id, prompt.position, end, must=True)
                rows[seq_id] = Swapped(state, prompt.position, end)
        source_id = prompt.seq_id if is_whole else prompt.source_id
        if source_id is not None and not prompt.swapped:
            state = self._save(source_id, 0, prompt.position, must=must or _needs_state(prompt))
            prompt.swapped = Swapped(state, 0, prompt.position, rows=rows) if state is not None else None

    def _save(self, seq_id: int, start: int, end: int, *, must: bool) -> State | None:
        """The state of a sequence; None if there is nothing to save, or no memory. must: it can't be computed again."""
        if end <= start:
            return None
        state = self._backend.save(seq_id, start, end, sys.maxsize if must else self._states.room)
        if state is not None:
            self._states.set_aside(len(state))
            self._totals.swapped_bytes += len(state)
        return state

    def _drop_unpaired(self, sequences: Iterable[Sequence]) -> None:
        """Drops the states of a sequence and its negatives if one has none: all must go on from the same token."""
        for seq in sequences:
            if any(map(_lacks_state, seq.group)):
                self._drop_states(seq)

    def _drop_states(self, seq: Sequence) -> None:
        """Lets a sequence and its negatives be computed again when they go on."""
        for each in seq.group:
            if each.swapped:
                self._drop(each.swapped)
                each.swapped = replace(each.swapped, state=None)

    def _drop(self, swapped: Swapped | None) -> None:
        """Gives the memory of a state back."""
        if swapped:
            self._states.set_aside(-sum(len(each.state) for each in (swapped, *swapped.rows.values()) if each.state))

    # Swapping in

    def swap_in(self, seq: Sequence) -> None:
        """Lets a preempted sequence go on, unless its prompt must be computed again before."""
        began = self._clock()
        if not all(self._swap_in(each) for each in seq.group if has_row(each)):
            for each in seq.group:
                if each.is_forked:
                    self._empty(each)
            self._drop_states(seq)
            self.swap_out([seq], self._allocator.layout)
            return
        for each in seq.group:
            assert each.swapped
            each.state = each.swapped.resumes
            self._drop(each.swapped)
            each.swapped = None
        self._totals.swap_seconds += self._clock() - began

    def _swap_in(self, seq: Sequence) -> bool:
        """Swaps in one sequence. Returns False if it can't be, and can be computed again."""
        prompt, swapped, n_tokens = seq.prompt, seq.swapped, seq.prompt.position
        assert swapped
        state, end = swapped.state, swapped.end
        is_apart = not self._allocator.layout.is_unified or (self._rollback.forgets and seq.swapped_cells == "all")
        if prompt.source_id is not None and (state is None or not is_apart):
            self.fork(seq)
            assert seq.seq_id is not None
            if state is None and end > n_tokens:
                seq.n_own_computed = 0
            is_restored = end <= n_tokens or state is None or self._backend.restore(state, seq.seq_id, n_tokens, end)
        else:
            if seq.seq_id is None:
                self._hand_over(seq)
                assert seq.seq_id is not None
                self._backend.remove(seq.seq_id)
            is_restored = state is not None and not swapped.start and self._backend.restore(state, seq.seq_id, 0, end)
            if is_restored:
                self._add_forked(seq)
        if is_restored:
            self._rollback.swap_in(seq)
        elif not self._can_recompute(seq, swapped.resumes):
            raise RuntimeError("a state can't be swapped in")
        return is_restored

    def _can_recompute(self, seq: Sequence, resumes: SequenceState) -> bool:
        """Whether a sequence can go on without its state, by computing its tokens again. resumes: what it was doing.

        If the model forgets, there may be no other sequence with the end of its prompt.
        """
        return seq.leader.strategy.is_divisible and resumes == "running" and not self._rollback.forgets

    def _swap_in_prompt(self, prompt: Prompt, swapped: Swapped) -> None:
        assert prompt.seq_id is not None
        assert swapped.state is not None
        if self._backend.restore(swapped.state, prompt.seq_id, 0, swapped.end):
            for seq_id, row in swapped.rows.items():
                self.fork_seq(prompt.seq_id, seq_id, row.start)
                if row.state is not None and not self._backend.restore(row.state, seq_id, row.start, row.end):
                    raise RuntimeError("the rows of a search can't be swapped in")
        elif _needs_state(prompt):
            raise RuntimeError("a prompt can't be swapped in")
        else:
            prompt.n_computed, prompt.logits = 0, None
        self._drop(swapped)
        prompt.swapped = None


def _needs_state(prompt: Prompt) -> bool:
    """Whether a prompt can't be computed again, because its strategy has rows there, or has moved its cells."""
    return prompt.strategy.n_rows > 0 or prompt.strategy.shifts_context


def _lacks_state(seq: Sequence) -> bool:
    """Whether a sequence that is swapped out must be computed again."""
    swapped = seq.swapped
    return swapped is not None and swapped.state is None and swapped.end > seq.prompt.position
