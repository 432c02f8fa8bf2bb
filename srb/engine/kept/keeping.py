"""Keeps what was evaluated, for requests that come later: as much as there is time for.

An answer is mostly kept only if this takes less time than to evaluate it again.

A finished alternative and its prompt are saved after the events of its end were taken. While others run, this takes a
quarter of the time at most, and the rest is saved in the next steps. An idle engine saves and gives back everything at
once, so that the next request finds the cells empty. Of a cancelled alternative only the prompt is saved, for the next
try.

States leave the cells at once, although they could stay while nobody else comes: copying takes a few milliseconds;
attention walks idle cells in every step; and an idle server's cache is then always empty, so that a repeated request
finds the same layout.

Models that forget need points to go on from. So their state is also saved at regular points of a long prompt, and where
a prompt parts from another one (`Keeping.evaluated`). Example, with a recurrent model: three requests begin with the
same instructions of 400 tokens. The second one evaluates all of its prompt, because the first one has gone past the
400. But it stops after the 400, and its state is saved there. The third one begins with this state.
"""

from collections.abc import Callable
from functools import partial

from srb.engine.backend import Backend, Logits
from srb.engine.kept.retained import Retained
from srb.engine.kept.slots import Slots
from srb.engine.kv.radix import Tokens, pack
from srb.engine.ports import Listener
from srb.engine.prompts.scores import Scores
from srb.engine.sequence import Prompt, Sequence
from srb.engine.telling.stats import Totals

_SHARE = 0.25
"""The share of the time in which finished sequences are kept while others run."""

_UNNOTICED = 0.02
"""How many seconds of keeping nobody notices who comes meanwhile."""

_FADES = 0.98
"""What keeping an answer takes is measured only when one is kept. So what it took counts for a little less with each
answer that isn't kept, and after some answers one is tried again: it may have been slow for another reason."""

_PATIENCE = 0.2
"""How many seconds a finished sequence may wait until there is time to keep it, if somebody waits for its cells."""


class Keeping(Listener):
    """Keeps the states of prompts and answers: of running ones at their checkpoints, of finished ones when they leave.

    Time is shared by how long keeping and evaluating took before. While others run, keeping has a share of the time. A
    finished sequence waits for this time with its cells. If somebody needs the cells and the wait gets too long, the
    sequence is given back without being kept.

    A GPU may take longer to keep an answer than to evaluate it again: the cells of an answer lie between those of
    others, and each cell is copied alone. Such an answer is kept only while nobody wants anything else, and if it is
    short: who comes meanwhile must not wait.

    totals: says how long evaluating took.
    """

    def __init__(
        self, backend: Backend, retained: Retained, slots: Slots, totals: Totals, clock: Callable[[], float]
    ) -> None:
        self._backend = backend
        self._retained = retained
        self._slots = slots
        self._totals = totals
        self._clock = clock
        self._began = 0.0
        self._again_at = 0.0  # when there is time again, in seconds of the clock
        self._last_step = self._this_step = 0.0  # when the steps began
        self._cost = 0.0  # how many seconds each token took when an answer was last kept
        self._keeps_prompt = self._keeps_answer = False  # what is kept of the sequence that leaves now

    def begin_step(self) -> None:
        """Keeping has its share of the time since the last step."""
        self._last_step, self._this_step = self._this_step, self._clock()

    def evaluated(self, prompt: Prompt, n_tokens: int, last_row: int) -> None:
        """Keeps the state of a prompt that is being evaluated, if it has come to one of its checkpoints."""
        while prompt.checkpoints and prompt.checkpoints[-1] <= prompt.evaluated:
            if prompt.checkpoints.pop() == prompt.evaluated:
                assert prompt.seq_id is not None
                self._keep(prompt, prompt.packed[: prompt.evaluated], prompt.seq_id)

    def gives_away(self, prompt: Prompt) -> None:
        """Keeps the state at the end of a prompt, if the model forgets it as soon as the sequence goes on."""
        if self._backend.window is not None:
            self._keep_prompt(prompt)

    def loses_end(self, prompt: Prompt) -> None:
        """Keeps the state at the end of a prompt, which the backend is about to lose."""
        self._keep_prompt(prompt)

    def lets_go(self, seq: Sequence, *, is_idle: bool, is_waited_for: bool) -> bool:
        """Whether there is time to keep a finished sequence, or no time to wait for that; see `Listener.lets_go`."""
        self._began = self._clock()
        has_time = is_idle or not self._retained.keeps or self._began >= self._again_at
        is_due = is_waited_for and self._began - seq.drawn_at > _PATIENCE
        self._keeps_prompt = self._keeps_answer = False
        if not has_time:
            return is_due
        is_shut_down = seq.finish_reason == "abort" and seq.stop_reason == "shutdown"
        is_complete = seq.finish_reason in ("stop", "length") or (is_shut_down and self._retained.lasts)
        n_evaluated = self._totals.prompt_tokens_evaluated
        pays = not n_evaluated or self._cost * n_evaluated <= self._totals.prompt_seconds
        self._keeps_prompt = is_complete or (seq.finish_reason == "abort" and not is_shut_down)
        is_unnoticed = is_idle and not is_waited_for and self._cost * len(seq.tokens) <= _UNNOTICED
        self._keeps_answer = is_complete and (is_shut_down or ((pays or is_unnoticed) and not seq.leader))
        self._cost *= 1 if pays else _FADES
        return True

    def leaves(self, seq: Sequence) -> None:
        """Keeps what there is time for of a sequence whose cells are given back now."""
        prompt = seq.prompt
        n_tokens = len(seq.tokens) + (0 if prompt.was_retained else len(prompt.tokens))
        if self._keeps_prompt and (seq.seq_id is not None or prompt.row_ids):
            self._keep_prompt(prompt)
        if self._keeps_answer and seq.seq_id is not None:
            self._keep_answer(seq, seq.seq_id)
        if seq.seq_id is not None and not seq.leader and not prompt.keys[-1]:  # slots find no text with adapters
            within = prompt.active.request.shared_within
            self._slots.remember(seq.slot, prompt.packed + pack(seq.evaluated_tokens), within)
        now = self._clock()
        if self._keeps_answer:
            self._cost = (now - self._began) / max(1, n_tokens)
        if self._keeps_prompt or self._keeps_answer:
            since = min(max(self._again_at, self._last_step), self._began)  # an idle engine takes all the time it needs
            self._again_at = since + (now - self._began) / _SHARE

    def save(self, holder: Prompt | Sequence) -> None:
        """Keeps the state of a running prompt or sequence, as far as it has been evaluated."""
        holder.saved = holder.evaluated
        if isinstance(holder, Sequence):
            assert holder.seq_id is not None
            self._keep_answer(holder, holder.seq_id)
        elif holder.is_evaluated:
            self._keep_prompt(holder)
        else:
            assert holder.seq_id is not None
            self._keep(holder, holder.packed[: holder.evaluated], holder.seq_id)

    def _keep_prompt(self, prompt: Prompt) -> None:
        seq_id = prompt.source_id if self._backend.window is None else prompt.seq_id
        if prompt.shares and prompt.logits is not None and seq_id is not None and not prompt.was_retained:
            prompt.was_retained = True
            self._keep(prompt, prompt.packed, seq_id, prompt.logits, prompt.scores)

    def _keep_answer(self, seq: Sequence, seq_id: int) -> None:
        if seq.prompt.shares and not seq.n_dropped and seq.evaluated_tokens and seq.way.holds_texts:
            self._keep(seq.prompt, seq.prompt.packed + pack(seq.evaluated_tokens), seq_id)

    def _keep(
        self,
        prompt: Prompt,
        tokens: Tokens,
        seq_id: int,
        logits: Logits | None = None,
        scores: Scores | None = None,
    ) -> None:
        self._retained.add(tokens, partial(self._backend.save, seq_id), logits, prompt.keys, scores)
