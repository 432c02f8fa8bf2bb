"""Fills and empties the cells of the KV cache: prompts and sequences begin, go back and are given back here.

Ways with rows of their own say which of these are forked (`ways/beams.py`, `ways/exploring.py`). Nobody else gives
cells back.
"""

from collections.abc import Iterable
from dataclasses import replace

from srb.engine.backend import Backend
from srb.engine.ports import Listener
from srb.engine.prompts.scores import are_alike
from srb.engine.scheduler import Scheduler
from srb.engine.sequence import Holder, Prompt, Sequence
from srb.engine.telling.stats import Totals


class Cells:
    """Fills and empties the cells that the scheduler leases."""

    def __init__(
        self,
        backend: Backend,
        scheduler: Scheduler,
        listeners: Iterable[Listener],
        totals: Totals,
    ) -> None:
        self.awaiting: list[Prompt] = []
        """The prompts that wait until another one has evaluated the tokens that they share with it."""
        self._backend = backend
        self._scheduler = scheduler
        self._listeners = listeners
        self._totals = totals

    def fill(self, prompt: Prompt) -> None:
        """Gives an admitted prompt the cells of its `beginning`, or lets it wait until these are evaluated."""
        if prompt.beginning and prompt.beginning.source:
            self.awaiting.append(prompt)
            self.share()
        elif prompt.beginning:
            self._begin(prompt)

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
                self._begin(prompt)

    def fork(self, seq: Sequence) -> None:
        """Begins a sequence where its prompt ends."""
        prompt = seq.prompt
        assert prompt.seq_id is not None
        if seq.seq_id is None:
            # Siblings whose companions aren't ready will yet be forked off the prompt's seq_id. One of them gets it.
            for each in prompt.sequences:
                if each.seq_id is not None and each.state == "prefilling" and not each.has_begun:
                    seq.seq_id, each.seq_id = each.seq_id, None
                    break
        if seq.seq_id is None:
            for listener in self._listeners:
                listener.gives_away(prompt)
            seq.seq_id, prompt.seq_id = prompt.seq_id, None
        else:
            self.fork_seq(prompt.seq_id, seq.seq_id, len(prompt.tokens))
        seq.has_begun = True
        for listener in self._listeners:
            listener.forked(seq)

    def fork_seq(self, source: int, target: int, n_tokens: int) -> None:
        """Lets one seq_id share the first `n_tokens` cells of another one."""
        self._backend.fork(source, target, n_tokens)
        self._totals.forks += 1

    def repair(self, holder: Holder) -> bool:
        """Cuts a holder's cells to the tokens that count as evaluated.

        The cells behind these are left from a failed decode, or from tokens that were taken back.
        Returns False if the holder can't be continued any more.
        """
        is_whole = True
        for each in holder.together:
            assert each.seq_id is not None
            is_whole &= self._backend.truncate(each.seq_id, each.position)
        return is_whole

    def give_back(self, seq: Sequence) -> None:
        """Gives back what a finished sequence has leased. The last one of a prompt gives back the prompt's, too."""
        prompt = seq.prompt
        if seq.sampler:
            seq.sampler.close()
            seq.sampler = None
        for listener in self._listeners:
            listener.leaves(seq)
        if seq.seq_id is not None:
            self._backend.remove(seq.seq_id)
        self._scheduler.release(seq)
        if prompt.span and not prompt.living:
            self._bequeath(prompt)
            for seq_id in (prompt.seq_id, *prompt.row_ids):
                if seq_id is not None:
                    self._backend.remove(seq_id)
            self._scheduler.release(prompt)

    def _share(self, source: Prompt | Sequence, prompt: Prompt, n_tokens: int) -> None:
        assert source.source_id is not None
        assert prompt.seq_id is not None
        for listener in self._listeners:
            listener.shares(source, prompt)
        if n_tokens > prompt.outputs_from:  # it lacks log-probabilities, because who had them was cancelled
            return
        self.fork_seq(source.source_id, prompt.seq_id, n_tokens)
        self._add_cached(prompt, n_tokens)

    def _begin(self, prompt: Prompt) -> None:
        """Ends the waiting of a prompt. Behind the tokens that it shares comes the rest of its beginning."""
        beginning, prompt.beginning = prompt.beginning, None
        if prompt in self.awaiting:
            self.awaiting.remove(prompt)
        if beginning and beginning.rest and prompt.living:
            self._add_cached(prompt, beginning.rest.apply(prompt))

    def loses_end(self, prompt: Prompt) -> None:
        """Must be called before the cells of an evaluated prompt are changed."""
        for listener in self._listeners:
            listener.loses_end(prompt)

    def _add_cached(self, prompt: Prompt, end: int) -> None:
        self._totals.prompt_tokens_cached += end - prompt.evaluated
        prompt.evaluated = prompt.cached = end

    def _bequeath(self, prompt: Prompt) -> None:
        """Chooses an heir among the prompts that wait for this one, which has ended.

        The heir evaluates what they all share, and the others now wait for the heir.
        """
        own = prompt.beginning
        if own:  # this prompt was waiting itself
            self._begin(prompt)
        heirs = [each for each in self.awaiting if each.beginning and each.beginning.source is prompt]
        if not heirs:
            return
        shared = {each: each.beginning.shared for each in heirs if each.beginning}
        # A prompt that is scored is preferred: others may wait for the same log-probabilities. So is a prompt that ends
        # where the shared tokens end: others may end there, too, and want its logits.
        heir = max(heirs, key=lambda each: (shared[each], are_alike(prompt.scores, each.scores), -len(each.tokens)))
        for listener in self._listeners:
            listener.inherits(prompt, heir)
        if own:
            assert heir.beginning
            heir.beginning = replace(heir.beginning, source=own.source, shared=min(shared[heir], own.shared))
        else:
            if prompt.evaluated and self.repair(prompt):
                self._share(prompt, heir, min(shared[heir], prompt.evaluated))
            self._begin(heir)
        for each in heirs:
            if each is not heir:
                assert each.beginning
                each.beginning = replace(each.beginning, source=heir)
