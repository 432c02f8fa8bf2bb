"""`SpeculativeSampling`: samples from draft tokens that were evaluated together with the last token.

An example: the draft tokens after "the old" are " man and the sea". The step evaluates " old", " man", " and", " the"
and " sea" at once, which takes little longer than evaluating " old". Then tokens are sampled one after the other, each
from the logits of its place. If these are " man", " and", " a", the logits after " the" and " sea" belong to another
text: they are dropped, and the cells are emptied. So the step gives three tokens, the same as without draft tokens.

`srb.engine.spec_decode` proposes draft tokens, and computes how many of them are worth a row. Leviathan, Kalman and
Matias, "Fast inference from Transformers via speculative decoding" (ICML 2023), accept draft tokens with a probability
that keeps the distribution. Here the sampler samples each token, as it does without draft tokens. So the text of a seed
can only change with the last bits of the logits, which depend on what else is in the batch.
"""

from collections import abc
from dataclasses import replace

from srb.engine.backend import Logits
from srb.engine.batch import in_use
from srb.engine.decoding.base import EngineParts
from srb.engine.decoding.sampling import Sampling
from srb.engine.sequence import Prompt, Sequence
from srb.engine.spec_decode.base import DraftBudget
from srb.engine.spec_decode.proposers import proposers_of


class SpeculativeSampling(Sampling):
    """Samples several tokens of a sequence in a step where the draft tokens are right."""

    def __init__(self, prompt: Prompt, parts: EngineParts) -> None:
        super().__init__(prompt, parts)
        self._proposers = proposers_of(prompt, parts.backend)
        self._n_before: dict[Sequence, int] = {}  # the number of tokens before the step
        self._drafted: list[Sequence] = []  # those that had draft tokens in the last batch

    def before_step(self) -> None:
        """Propose draft tokens for each sequence."""
        for seq in self.rows:
            seq.draft_tokens = self._draft(seq)
            self._n_before[seq] = len(seq.tokens)

    def _draft(self, seq: Sequence) -> abc.Sequence[int]:
        """Return the draft tokens that are worth a row, and fit: the last token of a text is never evaluated."""
        backend, scheduler = self._parts.backend, self._parts.scheduler
        if seq.n_own_computed + 1 < len(seq.tokens):
            return ()  # the next tokens are known, and computed again
        room = min(seq.max_tokens - 1 - seq.n_own, scheduler.cells_left(seq) - 1)
        n_rows = scheduler.n_rows
        proposers = [each for each in self._proposers.get(seq, ()) if n_rows <= each.max_rows and room > 0]
        if not proposers:
            return ()
        max_tokens = min(room, backend.n_outputs // n_rows)  # the other rows may have as many
        budget = DraftBudget(n_rows, seq.position, backend.costs.among(in_use(scheduler.prompts)), max_tokens)
        best: abc.Sequence[int] = ()
        for proposer in proposers:
            if tokens := proposer.propose(budget):
                n, seconds = budget.best(proposer.acceptance_rate, len(tokens))
                budget = replace(budget, min_saved=seconds)
                best = tokens[:n] or best
        return best

    def process_logits(self, seq: Sequence, logits: Logits, negative_logits: abc.Sequence[Logits]) -> None:
        """Count the draft tokens and the accepted ones, and sample."""
        if seq.state == "running":
            is_first = len(seq.tokens) == self._n_before[seq]
            self._count(seq, *((len(seq.draft_tokens), 0) if is_first else (0, 1)))
        super().process_logits(seq, logits, negative_logits)

    def _count(self, seq: Sequence, n_drafted: int, n_accepted: int) -> None:
        for counts in (seq, self._parts.totals):
            counts.n_drafted += n_drafted
            counts.n_accepted += n_accepted
        if n_drafted:
            self._drafted.append(seq)

    def after_step(self) -> None:
        """Empty the cells of draft tokens that weren't accepted."""
        for seq in self._drafted:
            self._parts.cells.repair(seq.group)
        self._drafted = []
        super().after_step()
