"""`DraftModelProposer`: what a small model says that has the same vocabulary (`--model-draft`).

The small model evaluates a row for each token that it guesses, and reads all texts. That takes a part of the time that
the large model takes. So unlike the other guesses, it is asked only where its tokens are worth that time, too.
"""

import math
from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Many

from srb.engine.backend import Backend
from srb.engine.kv_cache.radix import Tokens, pack
from srb.engine.model import Drafter
from srb.engine.sequence import Prompt, Sequence
from srb.engine.spec_decode.base import AcceptanceRate, Proposer
from srb.errors import BackendError

_WHILE, _TRIES = 128, 8
"""Where it isn't worth its time, it still guesses a token in the first 8 steps of 128, to see whether it is now."""

_WEIGHT = 1 / 8
"""About the last 8 drafts count for how many tokens it usually says."""

_PAUSE = 0.5
"""To read a text takes at most so much of a step between two steps, because everybody waits meanwhile."""

_MOST_READING = 1 / 16
"""A prompt isn't read if this takes more than so much of the time in which the rest of the text is written."""


class DraftModelProposer(Proposer):
    """Guesses what the small model thinks likeliest. It goes on with the texts of siblings in the same batches.

    owner: see `Drafter.draft`. siblings: the drafts of all sequences of its prompt.
    """

    trust = 0.7

    def __init__(
        self, seq: Sequence, most: int, drafter: Drafter, owner: Hashable, siblings: "list[DraftModelProposer]"
    ) -> None:
        super().__init__(seq, most)
        self.most_rows = drafter.n_texts
        self._drafter, self._owner, self._siblings = drafter, owner, siblings
        self._sure = float(most)  # how many tokens the small model usually says until it isn't sure any more
        self._drafted: Many[int] = ()
        self._drafted_behind: list[int] | None = None  # its tokens then

    def _guess(self, n_right: int, worth: AcceptanceRate) -> Many[int]:
        if self._drafted_behind != self._seq.tokens:
            self._draft(worth)
        return self._drafted if self._drafted_behind == self._seq.tokens else ()

    @property
    def _text(self) -> Tokens:
        return self._seq.prompt.packed + pack(self._seq.tokens)

    def _draft(self, worth: AcceptanceRate) -> None:
        """Lets the small model go on with its text, and with those of the siblings for which that is worth it."""
        running = [each for each in self._siblings if each._seq.state == "running" and each.most_rows]
        making = self._drafter.making(len(running)) * worth.seconds(len(running)) / len(running)
        if not self._wanted(worth, making):
            return
        wanted = {each: n for each in running if (n := each._wanted(worth, making))}
        try:
            drafted = self._drafted_for(wanted, worth.least_likely(making))
        except BackendError:  # which the drafter has told: it has no room for these texts, say
            self._give_up(wanted)
            return
        for k, each in enumerate(wanted):
            each._drafted, each._drafted_behind = drafted[k] if drafted else (), each._seq.tokens.copy()
            if drafted:
                n = len(each._drafted) if len(each._drafted) < wanted[each] else each._most
                each._sure += _WEIGHT * (n - each._sure)

    def _wanted(self, worth: AcceptanceRate, making: float) -> int:
        """How many tokens are worth drafting; one where none is, but where it is time to try."""
        # To read the prompt pays over the whole text, as `_MOST_READING` says. What came since then must pay now.
        text = self._text
        known = max(self._drafter.known(self._owner, text), len(self._seq.prompt.packed))
        reading = max(0, len(text) - known - 1) * self._drafter.reading * worth.seconds(1)
        if worth.of(self.trust, math.ceil(self._sure), making, reading)[0]:
            return worth.of(self.trust, self._most, making, reading)[0]
        is_time = len(self._seq.tokens) % _WHILE < _TRIES
        return int(is_time and worth.of(1.0, self._most, making)[0] > 0)

    def _drafted_for(self, wanted: "dict[DraftModelProposer, int]", least_likely: float) -> Many[Many[int]]:
        """The tokens that are drafted for each; empty while the small model hasn't read all texts."""
        drafter = self._drafter
        piece = max(1, int(_PAUSE / drafter.reading))
        texts = [each._text for each in wanted]
        n = max(wanted.values())
        for each, text in zip(wanted, texts, strict=True):
            known = drafter.known(self._owner, text)
            left = each._seq.max_tokens - len(each._seq.tokens)
            takes_long = (len(text) - known) * drafter.reading > _MOST_READING * left
            is_read = len(text) - known <= piece // len(wanted)
            if len(text) + n > drafter.n_cells or (takes_long and not is_read):
                self._give_up([each])
                return ()
            if not is_read:
                drafter.draft(self._owner, [text[: known + piece]], 0, 0.0)
                return ()
        return drafter.draft(self._owner, texts, n, least_likely)

    def _give_up(self, drafts: "Iterable[DraftModelProposer]") -> None:
        for each in drafts:
            each.most_rows = 0


def give(prompt: Prompt, backend: Backend) -> dict[Sequence, Proposer]:
    """The guesses for the sequences of a prompt, if there is a small model that can read it."""
    if not backend.drafter or prompt.media_placeholders:
        return {}
    owner = prompt.key if prompt.active.request.cache_prompt else object()  # as with the model's own cells
    siblings: list[DraftModelProposer] = []
    siblings += [
        DraftModelProposer(seq, backend.draft_max, backend.drafter, owner, siblings) for seq in prompt.sequences
    ]
    return {each._seq: each for each in siblings}
