"""Decides what is kept of finished sequences: as much as there is time for.

An answer is mostly kept only if this takes less time than to evaluate it again.
"""

from collections.abc import Callable
from typing import NamedTuple

from srb.engine.sequence import Sequence
from srb.engine.stats import Totals

_SHARE = 0.25
"""The share of the time in which finished sequences are kept while others run."""

_PATIENCE = 0.2
"""How many seconds a finished sequence may wait until there is time to keep it, if somebody waits for its cells."""


class Kept(NamedTuple):
    """What is kept of a finished sequence: its prompt, its answer, both or nothing."""

    prompt: bool
    answer: bool


class Keeping:
    """Decides what is kept, by how long keeping and evaluating took before.

    While others run, keeping has a share of the time. A finished sequence waits for this time with its cells. If
    somebody needs the cells and the wait gets too long, the sequence is given back without being kept.

    A GPU may take longer to keep an answer than to evaluate it again: the cells of an answer lie between those of
    others, and each cell is copied alone. Such answers are kept only while nobody wants anything else.

    totals: says how long evaluating took. lasts: whether the states that are kept outlive the engine.
    """

    def __init__(self, totals: Totals, clock: Callable[[], float], *, lasts: bool) -> None:
        self._totals = totals
        self._clock = clock
        self._lasts = lasts
        self._began = 0.0
        self._again_at = 0.0  # when there is time again, in seconds of the clock
        self._last_step = self._this_step = 0.0  # when the steps began
        self._cost = 0.0  # how many seconds each token took when an answer was last kept
        self._n_tokens = 0  # how many tokens are kept now, at most

    def next_step(self) -> None:
        """Must be called in each step: keeping has its share of the time since the last one."""
        self._last_step, self._this_step = self._this_step, self._clock()

    def begin(self, seq: Sequence, *, is_idle: bool, is_waited_for: bool) -> Kept | None:
        """What is to be kept of a finished sequence; None: it has to wait until there is time.

        is_idle: no sequence is running. is_waited_for: somebody waits for the sequence's cells, or for the engine.
        """
        self._began = self._clock()
        has_time = is_idle or self._began >= self._again_at
        is_due = is_waited_for and self._began - seq.drawn_at > _PATIENCE
        if not has_time:
            return Kept(prompt=False, answer=False) if is_due else None
        is_shut_down = seq.finish_reason == "abort" and seq.stop_reason == "shutdown"
        is_complete = seq.finish_reason in ("stop", "length") or (is_shut_down and self._lasts)
        keeps_prompt = is_complete or (seq.finish_reason == "abort" and not is_shut_down)
        n_evaluated = self._totals.prompt_tokens_evaluated
        pays = not n_evaluated or self._cost * n_evaluated <= self._totals.prompt_seconds
        is_worth_it = pays or is_shut_down or (is_idle and not is_due)
        self._n_tokens = len(seq.tokens) + (0 if seq.prompt.was_retained else len(seq.prompt.tokens))
        return Kept(keeps_prompt, is_complete and is_worth_it and (is_shut_down or not seq.leader))

    def end(self, kept: Kept) -> None:
        """Must be called when the sequence was kept, so that the time that this took is known."""
        now = self._clock()
        if kept.answer:
            self._cost = (now - self._began) / max(1, self._n_tokens)
        if any(kept):
            since = min(max(self._again_at, self._last_step), self._began)  # an idle engine takes all the time it needs
            self._again_at = since + (now - self._began) / _SHARE
