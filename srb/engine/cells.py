"""Fills and empties the cells of the KV cache: sequences are begun, forked, saved and given back here, nowhere else."""

from dataclasses import replace
from functools import partial

from srb.engine.backend import Backend, Logits
from srb.engine.moved import Moved
from srb.engine.pieces import Hit
from srb.engine.prefix import PrefixIndex
from srb.engine.radix import Tokens, pack
from srb.engine.retained import Retained
from srb.engine.scheduler import Scheduler
from srb.engine.scores import Scores
from srb.engine.search import Beam
from srb.engine.sequence import Holder, Mark, Prompt, Sequence
from srb.engine.shift import to_drop
from srb.engine.slots import Slots
from srb.engine.stats import Totals


class Cells:
    """Fills and empties the cells that the scheduler leases."""

    def __init__(
        self,
        backend: Backend,
        scheduler: Scheduler,
        index: PrefixIndex,
        retained: Retained,
        slots: Slots,
        totals: Totals,
    ) -> None:
        self.awaiting: list[Prompt] = []
        """The prompts that wait until another one has evaluated the tokens that they share with it."""
        self._backend = backend
        self._scheduler = scheduler
        self._index = index
        self._retained = retained
        self._slots = slots
        self._totals = totals

    def fill(self, prompt: Prompt) -> None:
        """Gives an admitted prompt the cells of its `beginning`, or lets it wait until these are evaluated."""
        if prompt.beginning and prompt.beginning.source:
            self.awaiting.append(prompt)
            self.share()
        elif prompt.beginning:
            self._has_begun(prompt)

    def share(self) -> None:
        """Forks each waiting prompt off the one that it shares a beginning with, if that one has come so far."""
        for prompt in self.awaiting.copy():
            assert prompt.beginning
            source, n_tokens = prompt.beginning.source, prompt.beginning.shared
            assert source
            if source.evaluated >= n_tokens:
                self._share(source, prompt, n_tokens)
                if prompt.is_evaluated:
                    assert isinstance(source, Prompt)
                    prompt.logits = source.logits
                self._has_begun(prompt)

    def fork(self, seq: Sequence) -> None:
        """Begins a sequence where its prompt ends."""
        prompt = seq.prompt
        assert prompt.seq_id is not None
        if seq.seq_id is None:
            # Siblings whose guides aren't ready will yet be forked off the prompt's seq_id: one of these gets it later.
            for each in prompt.sequences:
                if each.seq_id is not None and each.state == "prefilling" and not each.has_begun:
                    seq.seq_id, each.seq_id = each.seq_id, None
                    break
        if seq.seq_id is None:
            if self._backend.window is not None:  # once the sequence goes on, the state at the prompt's end is lost
                self._retain_prompt(prompt)
            self._scheduler.give_away(prompt, seq)
        else:
            self._backend.fork(prompt.seq_id, seq.seq_id, len(prompt.tokens))
            self._totals.forks += 1
        seq.has_begun = True
        if not prompt.active.request.explore:  # a walker holds another text in every step
            self._index.add(seq)

    def hold(self, seq: Sequence, source: Sequence, n_tokens: int) -> None:
        """Lets a sequence hold only the first `n_tokens` of the source, which may be the sequence itself."""
        assert seq.seq_id is not None
        assert source.seq_id is not None
        if seq is source:
            self._backend.truncate(seq.seq_id, n_tokens)
            return
        self._backend.remove(seq.seq_id)
        self._backend.fork(source.seq_id, seq.seq_id, n_tokens)
        self._totals.forks += 1

    def fork_beams(self, prompt: Prompt, parents: list[Beam]) -> None:
        """Gives each new beam of a prompt the cells of its parent.

        The first beam that goes on from a parent keeps the parent's cells. The other ones are forked off these.
        parents: all beams before this step. Those that no beam goes on from are removed.
        """
        assert prompt.search
        continued = {beam.parent for beam in prompt.search.living}
        for parent in parents:
            if parent not in continued and parent.seq_id in prompt.beam_ids:
                self._backend.remove(parent.seq_id)
        held = {parent.seq_id for parent in continued if parent}
        idle = [seq_id for seq_id in prompt.beam_ids if seq_id not in held]
        own = held.intersection(prompt.beam_ids)  # without the prompt's own seq_id, which no beam may take over
        for beam in prompt.search.living:
            assert beam.parent
            assert beam.parent.seq_id is not None
            source, beam.parent = beam.parent.seq_id, None
            if source in own:
                own.remove(source)
                beam.seq_id = source
            else:
                beam.seq_id = idle.pop()
                self._backend.fork(source, beam.seq_id, beam.evaluated)
                self._totals.forks += 1

    def save_checkpoint(self, prompt: Prompt) -> None:
        """Retains the state of a prompt that is being evaluated, if it has come to one of its checkpoints."""
        while prompt.checkpoints and prompt.checkpoints[-1] <= prompt.evaluated:
            if prompt.checkpoints.pop() == prompt.evaluated:
                assert prompt.seq_id is not None
                self._retain(prompt, prompt.packed[: prompt.evaluated], prompt.seq_id)

    def save(self, holder: Prompt | Sequence) -> None:
        """Retains the state of a running prompt or sequence, as far as it has been evaluated."""
        holder.saved = holder.evaluated
        if isinstance(holder, Sequence):
            assert holder.seq_id is not None
            self._retain_answer(holder, holder.seq_id)
        elif holder.is_evaluated:
            self._retain_prompt(holder)
        else:
            assert holder.seq_id is not None
            self._retain(holder, holder.packed[: holder.evaluated], holder.seq_id)

    def repair(self, holder: Holder) -> bool:
        """Cuts a holder's cells to the tokens that count as evaluated.

        The cells behind these are left from a failed decode, or from tokens that were taken back.
        Returns False if the holder can't be continued any more.
        """
        is_whole = True
        for each in holder.both if isinstance(holder, Sequence) else (holder,):
            assert each.seq_id is not None
            is_whole &= self._backend.truncate(each.seq_id, each.position)
        return is_whole

    def shift(self, prompt: Prompt) -> None:
        """Makes room for sequences whose cells are full: some of the tokens that they have seen leave the cells.

        Tokens that siblings share leave the cells of all siblings at once, so that shared cells are moved only once.
        """
        lacking = {seq: to_drop(seq) for seq in prompt.sequences if seq.lacks_room}
        if not lacking:
            return
        assert prompt.shift
        n_keep, from_prompt = prompt.shift.n_keep, max(n for n, _ in lacking.values())
        if from_prompt:
            self._retain_prompt(prompt)
            # These include sequences that have finished and still hold their cells: they share the cells that move.
            holders = (prompt.seq_id, *(each.seq_id for each in prompt.sequences if each.has_begun))
            seq_ids = [seq_id for seq_id in holders if seq_id is not None]
            self._backend.discard(seq_ids, n_keep, n_keep + from_prompt, prompt.position)
            prompt.shift.n_dropped += from_prompt
        start = prompt.position
        for seq, (_, own) in lacking.items():
            if own:
                assert seq.seq_id is not None
                self._backend.discard([seq.seq_id], start, start + own, start)
                seq.n_dropped += own
        self._scheduler.drop(prompt, from_prompt)

    def set_mark(self, seq: Sequence, logits: Logits, negative: Logits | None) -> None:
        """Sets the mark of a sequence to where the sequence is now. Models that forget can only go back to a mark.

        logits: those of the token that follows here. negative: the guide's.
        """
        n_tokens = len(seq.evaluated_tokens)
        if seq.mark and seq.mark.n_tokens == n_tokens:
            return
        seq.mark = Mark(n_tokens, logits.copy(), None if negative is None else negative.copy())
        for each in seq.both:
            assert each.seq_id is not None
            assert each.mark_id is not None
            self._backend.remove(each.mark_id)
            self._backend.fork(each.seq_id, each.mark_id, each.evaluated)

    def go_back(self, seq: Sequence) -> None:
        """Removes the cells of tokens that a sequence has taken back.

        A sequence with a mark is forked off the mark anew. Its tokens behind the mark are then evaluated again.
        """
        if seq.mark_id is None:
            is_cut = self.repair(seq)
            assert is_cut, "a model that forgets has marks"
            return
        assert seq.mark
        for each in seq.both:
            assert each.seq_id is not None
            assert each.mark_id is not None
            each.behind = len(seq.tokens) - 1 - seq.mark.n_tokens
            self._backend.remove(each.seq_id)
            self._backend.fork(each.mark_id, each.seq_id, each.evaluated)

    def give_back(self, seq: Sequence, *, keep_answer: bool, keep_prompt: bool) -> None:
        """Gives back what a finished sequence has leased. The last sequence of a prompt gives back the prompt's, too.

        keep_answer, keep_prompt: whether the evaluated text is retained, for later prompts that begin with it.
        """
        prompt = seq.prompt
        if seq.sampler:
            seq.sampler.close()
            seq.sampler = None
        if keep_prompt and (seq.seq_id is not None or prompt.n_beams):
            self._retain_prompt(prompt)
        if seq.seq_id is not None:
            if keep_answer:
                self._retain_answer(seq, seq.seq_id)
            if not seq.leader and not prompt.keys[-1]:  # slots find no text with adapters or the like
                within = prompt.active.request.shared_within
                self._slots.remember(seq.slot, prompt.packed + pack(seq.evaluated_tokens), within)
            self._backend.remove(seq.seq_id)
        if seq.mark_id is not None:
            self._backend.remove(seq.mark_id)
            seq.mark = None
        self._scheduler.release(seq)
        if prompt.span and not prompt.living:
            self._bequeath(prompt)
            for seq_id in (prompt.seq_id, *prompt.beam_ids):
                if seq_id is not None:
                    self._backend.remove(seq_id)
            self._scheduler.release(prompt)

    def _restore(self, prompt: Prompt, hit: Hit) -> None:
        """Puts retained states of a prompt back into cells, behind the tokens that it shares."""
        assert prompt.seq_id is not None
        known = prompt.evaluated
        for state, start, end in self._retained.states(hit, known):
            if not self._backend.restore(state, prompt.seq_id, start, end):
                break
            known = end
        logits = self._retained.logits(hit) if known == len(prompt.tokens) else None
        known = min(known, len(prompt.tokens) - (logits is None))
        if not self._backend.truncate(prompt.seq_id, known):
            self._backend.remove(prompt.seq_id)
            known = 0
        self._add_cached(prompt, known)
        prompt.saved = known
        prompt.logits = logits if prompt.is_evaluated else None

    def _share(self, source: Prompt | Sequence, prompt: Prompt, n_tokens: int) -> None:
        assert source.place is not None
        assert prompt.seq_id is not None
        if prompt.scores and isinstance(source, Prompt) and source.scores:
            prompt.scores.take(source.scores)
        if n_tokens > prompt.scored_from:  # it lacks log-probabilities, because who had them was cancelled
            return
        self._backend.fork(source.place, prompt.seq_id, n_tokens)
        self._totals.forks += 1
        self._add_cached(prompt, n_tokens)

    def _has_begun(self, prompt: Prompt) -> None:
        """Ends the waiting of a prompt, and restores what was retained behind the tokens that it shares.

        A state can be restored only if one of its pieces begins exactly where the shared tokens end.
        """
        beginning, prompt.beginning = prompt.beginning, None
        if prompt in self.awaiting:
            self.awaiting.remove(prompt)
        pieces = beginning.hit.pieces if beginning and beginning.hit else []
        if prompt.living and any(start == prompt.evaluated for _, start, _ in pieces):
            assert beginning
            assert beginning.hit
            self._restore(prompt, beginning.hit)
        for each in beginning.moved if beginning and prompt.living else ():
            self._move(prompt, each)

    def _move(self, prompt: Prompt, moved: Moved) -> None:
        """Restores a chunk from another place of a text behind a prompt's evaluated tokens, if it belongs there.

        Where positions can't be moved now, it is evaluated. To wait for that would take longer.
        """
        assert prompt.seq_id is not None
        fits = moved.start - moved.by == prompt.evaluated and self._backend.shifts_now
        state = self._retained.state(moved.piece) if fits else None
        if state is not None and self._backend.restore(state, prompt.seq_id, moved.start, moved.end, moved.by):
            self._add_cached(prompt, moved.end - moved.by)
            # llama.cpp moves the chunk with the next decode. Before that the state can't be saved.
            prompt.saved = prompt.evaluated

    def _add_cached(self, prompt: Prompt, end: int) -> None:
        self._totals.prompt_tokens_cached += end - prompt.evaluated
        prompt.evaluated = prompt.cached = end

    def _bequeath(self, prompt: Prompt) -> None:
        """Chooses an heir among the prompts that wait for this one, which has ended.

        The heir evaluates what they all share, and the others now wait for the heir.
        """
        own = prompt.beginning
        if own:  # this prompt was waiting itself
            self._has_begun(prompt)
        heirs = [each for each in self.awaiting if each.beginning and each.beginning.source is prompt]
        if not heirs:
            return
        shared = {each: each.beginning.shared for each in heirs if each.beginning}
        # A prompt that is scored is preferred: others may wait for the same log-probabilities. So is a prompt that ends
        # where the shared tokens end: others may end there, too, and want its logits.
        heir = max(heirs, key=lambda each: (shared[each], each.is_scored_like(prompt), -len(each.tokens)))
        if prompt.scores and not heir.scores:
            heir.scores = prompt.scores.untold(heir.packed)
        if own:
            assert heir.beginning
            heir.beginning = replace(heir.beginning, source=own.source, shared=min(shared[heir], own.shared))
        else:
            if prompt.evaluated and self.repair(prompt):
                self._share(prompt, heir, min(shared[heir], prompt.evaluated))
            self._has_begun(heir)
        for each in heirs:
            if each is not heir:
                assert each.beginning
                each.beginning = replace(each.beginning, source=heir)

    def _retain_prompt(self, prompt: Prompt) -> None:
        seq_id = prompt.place if self._backend.window is None else prompt.seq_id
        if prompt.shares and prompt.logits is not None and seq_id is not None and not prompt.was_retained:
            prompt.was_retained = True
            self._retain(prompt, prompt.packed, seq_id, prompt.logits, prompt.scores)

    def _retain_answer(self, seq: Sequence, seq_id: int) -> None:
        if seq.prompt.shares and not seq.n_dropped and seq.evaluated_tokens and not seq.prompt.active.request.explore:
            self._retain(seq.prompt, seq.prompt.packed + pack(seq.evaluated_tokens), seq_id)

    def _retain(
        self,
        prompt: Prompt,
        tokens: Tokens,
        seq_id: int,
        logits: Logits | None = None,
        scores: Scores | None = None,
    ) -> None:
        self._retained.add(tokens, partial(self._backend.save, seq_id), logits, prompt.keys, scores)
