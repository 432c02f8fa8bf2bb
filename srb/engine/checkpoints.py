"""States of what is still running, saved now and then, so that a process that is killed loses little.

It is done where states outlive the process, and it takes a bounded share of the time: after one that took a millisecond
there is none for the next 50.
"""

from collections.abc import Callable, Iterator

from srb.engine.cells import Cells
from srb.engine.scheduler import Scheduler
from srb.engine.sequence import Prompt, Sequence

_SHARE = 0.02
"""Of the time, for saving."""

_EVERY = 32
"""An alternative is saved after so many tokens; these can be lost."""

_EVERY_IF_RECURRENT = 512
"""A recurrent state has the same size whatever is new in it, and is often large."""

_EVERY_OF_A_PROMPT = 1024
"""A long prompt is saved after so many tokens while it is evaluated. Models that forget have points of their own."""


class Checkpoints:
    """Saves what runs: a prompt when it's evaluated, then the alternative that would lose most.

    window: as in `Backend.window`.
    """

    def __init__(self, scheduler: Scheduler, cells: Cells, window: int | None, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._cells = cells
        self._window = window
        self._clock = clock
        self._not_before = 0.0

    def save_next(self) -> None:
        """Saves the state of one that runs, if there is one and the share of the time allows it."""
        began = self._clock()
        if began < self._not_before:
            return
        found = max(self._unsaved(), key=lambda each: each[0], default=None)
        if found:
            self._cells.save(found[1])
            now = self._clock()
            self._not_before = now + (now - began) / _SHARE

    def _unsaved(self) -> Iterator[tuple[float, Prompt | Sequence]]:
        """Those that it's time for, with how many tokens of theirs would be lost."""
        every = _EVERY_IF_RECURRENT if self._window == 0 else _EVERY
        for prompt in self._scheduler.prompts:
            if not prompt.shares:
                continue
            lacking = prompt.evaluated - prompt.saved
            if prompt.logits is not None:
                if lacking and not prompt.was_retained:
                    yield float("inf"), prompt  # all of its alternatives would lose it
                for seq in prompt.sequences:
                    if seq.seq_id is not None and seq.state == "running" and seq.evaluated - seq.saved >= every:
                        yield seq.evaluated - seq.saved, seq
            elif self._window is None and prompt.seq_id is not None and lacking >= _EVERY_OF_A_PROMPT:
                yield lacking, prompt
