"""`DraftModelProposer`: what a small model with the same vocabulary samples (`--model-draft`).

The small model evaluates a row for each draft token, and all texts before it. That takes a part of the time that the
large model takes. So unlike other proposers, it is used only where its draft tokens are worth that time, too.
"""

import math
from collections import abc

from srb.engine.backend import Backend
from srb.engine.kv_cache.radix import Tokens, pack
from srb.engine.model import Drafter
from srb.engine.sequence import Prompt, Sequence
from srb.engine.spec_decode.base import DraftBudget, Proposer
from srb.errors import BackendError

_PERIOD, _TRIES = 128, 8
"""Where it isn't worth its time, it still drafts a token in the first 8 steps of 128, to see whether it is now."""

_WEIGHT = 1 / 8
"""The weight of one draft in the usual length: about the last 8 drafts count."""

_MAX_READ_STEP = 0.5
"""The small model reads for at most this part of a step between two steps, because everybody waits meanwhile."""

_MAX_READ = 1 / 16
"""It doesn't read a prompt that takes longer than this part of the time in which the rest of the text is written."""


class DraftModelProposer(Proposer):
    """Proposes the small model's most probable tokens. It extends the texts of siblings in the same batches.

    Args:
        max_tokens: The most tokens to propose.
        drafter: The small model.
        owner: As in `Drafter.draft`.
        siblings: The proposers of all sequences of its prompt.
    """

    acceptance_rate = 0.7

    def __init__(
        self,
        seq: Sequence,
        max_tokens: int,
        drafter: Drafter,
        owner: abc.Hashable,
        siblings: "list[DraftModelProposer]",
    ) -> None:
        super().__init__(seq, max_tokens)
        self.max_rows = drafter.n_texts
        self._drafter, self._owner, self._siblings = drafter, owner, siblings
        self._usual_length = float(max_tokens)  # the number of tokens until the small model is uncertain
        self._draft: abc.Sequence[int] = ()
        self._draft_follows: list[int] | None = None  # the sequence's tokens then

    def _propose(self, n_accepted: int, budget: DraftBudget) -> abc.Sequence[int]:
        if self._draft_follows != self._seq.tokens:
            self._run(budget)
        return self._draft if self._draft_follows == self._seq.tokens else ()

    @property
    def _text(self) -> Tokens:
        return self._seq.prompt.packed + pack(self._seq.tokens)

    def _run(self, budget: DraftBudget) -> None:
        """Let the small model extend this text, and those of the siblings for which that is worth it."""
        running = [each for each in self._siblings if each._seq.state == "running" and each.max_rows]
        draft_seconds = self._drafter.making(len(running)) * budget.seconds(len(running)) / len(running)
        if not self._length(budget, draft_seconds):
            return
        lengths = {each: n for each in running if (n := each._length(budget, draft_seconds))}
        try:
            drafts = self._drafts(lengths, budget.min_probability(draft_seconds))
        except BackendError:  # the drafter has reported it: it has no room for these texts, say
            self._give_up(lengths)
            return
        for k, each in enumerate(lengths):
            each._draft, each._draft_follows = drafts[k] if drafts else (), each._seq.tokens.copy()
            if drafts:
                n = len(each._draft) if len(each._draft) < lengths[each] else each._max_tokens
                each._usual_length += _WEIGHT * (n - each._usual_length)

    def _length(self, budget: DraftBudget, draft_seconds: float) -> int:
        """Return how many tokens are worth drafting; 1 where none is, but where it is time to try."""
        # Reading the prompt pays over the whole text, as `_MAX_READ` says. What came since then must pay now.
        text = self._text
        known = max(self._drafter.known(self._owner, text), len(self._seq.prompt.packed))
        read_seconds = max(0, len(text) - known - 1) * self._drafter.reading * budget.seconds(1)
        if budget.best(self.acceptance_rate, math.ceil(self._usual_length), draft_seconds, read_seconds)[0]:
            return budget.best(self.acceptance_rate, self._max_tokens, draft_seconds, read_seconds)[0]
        is_time = len(self._seq.tokens) % _PERIOD < _TRIES
        return int(is_time and budget.best(1.0, self._max_tokens, draft_seconds)[0] > 0)

    def _drafts(
        self, lengths: "dict[DraftModelProposer, int]", min_probability: float
    ) -> abc.Sequence[abc.Sequence[int]]:
        """Return the draft tokens for each; nothing while the small model hasn't read all texts."""
        drafter = self._drafter
        chunk = max(1, int(_MAX_READ_STEP / drafter.reading))
        texts = [each._text for each in lengths]
        n = max(lengths.values())
        for each, text in zip(lengths, texts, strict=True):
            known = drafter.known(self._owner, text)
            left = each._seq.max_tokens - len(each._seq.tokens)
            takes_long = (len(text) - known) * drafter.reading > _MAX_READ * left
            is_read = len(text) - known <= chunk // len(lengths)
            if len(text) + n > drafter.n_cells or (takes_long and not is_read):
                self._give_up([each])
                return ()
            if not is_read:
                drafter.draft(self._owner, [text[: known + chunk]], 0, 0.0)
                return ()
        return drafter.draft(self._owner, texts, n, min_probability)

    def _give_up(self, proposers: "abc.Iterable[DraftModelProposer]") -> None:
        for each in proposers:
            each.max_rows = 0


def build(prompt: Prompt, backend: Backend) -> dict[Sequence, Proposer]:
    """Return a proposer for each sequence of a prompt, if there is a small model that can read it."""
    if not backend.drafter or prompt.media_placeholders:
        return {}
    owner = prompt.key if prompt.active.request.cache_prompt else object()  # as with the model's own cells
    siblings: list[DraftModelProposer] = []
    siblings += [
        DraftModelProposer(seq, backend.draft_max, backend.drafter, owner, siblings) for seq in prompt.sequences
    ]
    return {each._seq: each for each in siblings}
