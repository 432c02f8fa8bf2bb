"""What is kept of finished sequences: what there is time for, and what costs less than to evaluate it again."""

from collections.abc import Callable
from typing import NamedTuple

from srb.engine.sequence import Sequence
from srb.engine.stats import Totals

_SHARE = 0.25
"""Of the time, for keeping what finished sequences have evaluated, while others run."""

_PATIENCE = 0.2
"""So many seconds may a finished sequence hold its cells until there is time to keep it, if somebody waits for them."""


class Kept(NamedTuple):
    """What is kept of a finished sequence."""

    prompt: bool
    answer: bool


class Keeping:
    """Decides what is kept, from how long it took before.

    While others run, keeping has a share of the time. If somebody waits for what is held meanwhile, it is given back
    without being kept.

    A GPU may take longer to keep an answer than to evaluate it again, since its cells lie between those of others, and
    each is copied alone. Such answers are kept only while nobody wants anything else.

    totals: what evaluating has taken. lasts: what is kept outlives the engine.
    """

    def __init__(self, totals: Totals, clock: Callable[[], float], *, lasts: bool) -> None:
        self._totals = totals
        self._clock = clock
        self._lasts = lasts
        self._began = 0.0
        self._again_at = 0.0  # when there is time again, in seconds of the clock
        self._cost = 0.0  # seconds for a token, when an answer was kept last
        self._n_tokens = 0  # that may be kept now

    def begin(self, seq: Sequence, *, is_idle: bool, is_waited_for: bool) -> Kept | None:
        """What is to be kept of a finished sequence; None: it has to wait until there is time.

        is_idle: no other runs. is_waited_for: somebody waits for what the sequence holds, or for the engine.
        """
        self._began = self._clock()
        has_time = is_idle or self._began >= self._again_at
        is_due = is_waited_for and self._began - seq.drawn_at > _PATIENCE
        if not has_time:
            return Kept(prompt=False, answer=False) if is_due else None
        is_shut_down = seq.stop_reason == "shutdown"
        is_complete = seq.finish_reason in ("stop", "length") or (is_shut_down and self._lasts)
        keeps_prompt = is_complete or (seq.finish_reason == "abort" and not is_shut_down)
        n_evaluated = self._totals.prompt_tokens_evaluated
        pays = not n_evaluated or self._cost * n_evaluated <= self._totals.prompt_seconds
        is_worth_it = pays or is_shut_down or (is_idle and not is_due)
        self._n_tokens = len(seq.tokens) + (0 if seq.prompt.was_retained else len(seq.prompt.tokens))
        return Kept(keeps_prompt, is_complete and is_worth_it and (is_shut_down or not seq.leader))

    def end(self, kept: Kept) -> None:
        """It was kept."""
        now = self._clock()
        if kept.answer:
            self._cost = (now - self._began) / max(1, self._n_tokens)
        if any(kept):
            self._again_at = now + (now - self._began) * (1 / _SHARE - 1)
