"""Saves the states of prompts and alternatives while they still run, so that a process that is killed loses little.

This is only done if there is a store, where states outlive the process. It takes a bounded share of the time: after a
state that took a millisecond, none is saved for the next 50.
"""

from collections.abc import Callable, Iterator

from srb.engine.kept.keeping import Keeping
from srb.engine.ports import Listener
from srb.engine.scheduler import Scheduler
from srb.engine.sequence import Prompt, Sequence

_SHARE = 0.02
"""The share of the time that saving may take."""

_EVERY = 32
"""An alternative is saved again when it has so many new tokens. About so many are lost if the process is killed."""

_EVERY_IF_RECURRENT = 512
"""The same with a recurrent model. Its state has the same size however few tokens are new, and is often large."""

_EVERY_OF_A_PROMPT = 1024
"""While a long prompt is evaluated, it is saved when it has so many new tokens. With models that forget it is saved at
its checkpoints instead; see `Prompt.checkpoints`."""


class Checkpoints(Listener):
    """Saves running prompts and alternatives: first the evaluated prompts, then whatever would lose most tokens.

    window: see `Backend.window`.
    """

    def __init__(self, scheduler: Scheduler, keeping: Keeping, window: int | None, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._keeping = keeping
        self._window = window
        self._clock = clock
        self._not_before = 0.0

    def before_decode(self) -> None:
        """Saves the state of one prompt or alternative, if one has enough new tokens and there is time for it."""
        began = self._clock()
        if began < self._not_before:
            return
        found = max(self._unsaved(), key=lambda each: each[0], default=None)
        if found:
            self._keeping.save(found[1])
            now = self._clock()
            self._not_before = now + (now - began) / _SHARE

    def _unsaved(self) -> Iterator[tuple[float, Prompt | Sequence]]:
        """The prompts and alternatives with enough new tokens, each with how many of these would be lost now."""
        every = _EVERY_IF_RECURRENT if self._window == 0 else _EVERY
        for prompt in self._scheduler.prompts:
            if not prompt.shares:
                continue
            lacking = prompt.evaluated - prompt.saved
            if prompt.logits is not None:
                if lacking and not prompt.was_retained:
                    yield float("inf"), prompt  # if the prompt is lost, each of its alternatives needs it again
                for seq in prompt.sequences:
                    if seq.seq_id is not None and seq.state == "running" and seq.evaluated - seq.saved >= every:
                        yield seq.evaluated - seq.saved, seq
            elif self._window is None and prompt.seq_id is not None and lacking >= _EVERY_OF_A_PROMPT:
                yield lacking, prompt
