"""`Retention`: all that an engine keeps for later requests, put together."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from srb.engine.backend import Backend, Logits
from srb.engine.kv_cache.prefix_cache import PrefixCache
from srb.engine.kv_cache.radix import Tokens, pack
from srb.engine.kv_cache.rollback import Rollback
from srb.engine.kv_cache.slots import SlotQueries, Slots
from srb.engine.kv_cache.state_cache import StateCache
from srb.engine.kv_cache.state_store import StateStore, StoreStats
from srb.engine.listener import Listener
from srb.engine.prompt_logprobs import Scores
from srb.engine.scheduler import Scheduler
from srb.engine.sequence import ActiveRequest, Prompt, Sequence
from srb.engine.stats import Totals

# Keeps what was evaluated, for requests that come later: as much as there is time for. An answer is mostly kept only
# if this takes less time than to evaluate it again. A finished alternative and its prompt are saved after the events
# of its end were taken. While others run, this takes a quarter of the time at most, and the rest is saved in the
# next steps. An idle engine saves and gives back everything at once, so that the next request finds the cells empty.
# Of a cancelled alternative only the prompt is saved, for the next try. States leave the cells at once, although
# they could stay while nobody else comes: copying takes a few milliseconds; attention walks idle cells in every
# step; and an idle server's cache is then always empty, so that a repeated request finds the same layout. Models
# that forget need points to go on from. So their state is also saved at regular points of a long prompt, and where a
# prompt parts from another one (`RetentionPolicy.n_computed`). Example, with a recurrent model: three requests begin
# with the same instructions of 400 tokens. The second one evaluates all of its prompt, because the first one has gone
# past the 400. But it stops after the 400, and its state is saved there. The third one begins with this state.

_SHARE = 0.25
"""The share of the time in which finished sequences are kept while others run."""

_UNNOTICED = 0.02
"""How many seconds of keeping nobody notices who comes meanwhile."""

_FADES = 0.98
"""What keeping an answer takes is measured only when one is kept. So what it took counts for a little less with each
answer that isn't kept, and after some answers one is tried again: it may have been slow for another reason."""

_PATIENCE = 0.2
"""How many seconds a finished sequence may wait until there is time to keep it, if somebody waits for its cells."""


class RetentionPolicy(Listener):
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
        self, backend: Backend, retained: StateCache, slots: Slots, totals: Totals, clock: Callable[[], float]
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

    def on_computed(self, prompt: Prompt, n_tokens: int, last_row: int) -> None:
        """Keeps the state of a prompt that is being evaluated, if it has come to one of its checkpoints."""
        while prompt.checkpoints and prompt.checkpoints[-1] <= prompt.n_computed:
            if prompt.checkpoints.pop() == prompt.n_computed:
                assert prompt.seq_id is not None
                self._keep(prompt, prompt.packed[: prompt.n_computed], prompt.seq_id)

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
        is_due = is_waited_for and self._began - seq.sampled_at > _PATIENCE
        self._keeps_prompt = self._keeps_answer = False
        if not has_time:
            return is_due
        is_shut_down = seq.finish_reason == "abort" and seq.stop_reason == "shutdown"
        is_complete = seq.finish_reason in ("stop", "length") or (is_shut_down and self._retained.lasts)
        n_evaluated = self._totals.prompt_tokens_evaluated
        pays = not n_evaluated or self._cost * n_evaluated <= self._totals.prompt_seconds
        self._keeps_prompt = is_complete or (seq.finish_reason == "abort" and not is_shut_down)
        is_unnoticed = is_idle and not is_waited_for and self._cost * len(seq.tokens) <= _UNNOTICED
        self._keeps_answer = is_complete and (is_shut_down or ((pays or is_unnoticed) and not seq.positive))
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
        if seq.seq_id is not None and not seq.positive and not prompt.keys[-1]:  # slots find no text with adapters
            within = prompt.active.request.shared_within
            self._slots.remember(seq.slot, prompt.packed + pack(seq.computed_tokens), within)
        now = self._clock()
        if self._keeps_answer:
            self._cost = (now - self._began) / max(1, n_tokens)
        if self._keeps_prompt or self._keeps_answer:
            since = min(max(self._again_at, self._last_step), self._began)  # an idle engine takes all the time it needs
            self._again_at = since + (now - self._began) / _SHARE

    def save(self, holder: Prompt | Sequence) -> None:
        """Keeps the state of a running prompt or sequence, as far as it has been evaluated."""
        holder.saved = holder.n_computed
        if isinstance(holder, Sequence):
            assert holder.seq_id is not None
            self._keep_answer(holder, holder.seq_id)
        elif holder.is_computed:
            self._keep_prompt(holder)
        else:
            assert holder.seq_id is not None
            self._keep(holder, holder.packed[: holder.n_computed], holder.seq_id)

    def _keep_prompt(self, prompt: Prompt) -> None:
        seq_id = prompt.source_id if self._backend.window is None else prompt.seq_id
        if prompt.shares and prompt.logits is not None and seq_id is not None and not prompt.was_retained:
            prompt.was_retained = True
            self._keep(prompt, prompt.packed, seq_id, prompt.logits, prompt.scores)

    def _keep_answer(self, seq: Sequence, seq_id: int) -> None:
        if seq.prompt.shares and not seq.n_shifted and seq.computed_tokens and seq.strategy.caches_texts:
            self._keep(seq.prompt, seq.prompt.packed + pack(seq.computed_tokens), seq_id)

    def _keep(
        self,
        prompt: Prompt,
        tokens: Tokens,
        seq_id: int,
        logits: Logits | None = None,
        scores: Scores | None = None,
    ) -> None:
        self._retained.add(tokens, partial(self._backend.save, seq_id), logits, prompt.keys, scores)


# Saves the states of prompts and alternatives while they still run, so that a process that is killed loses little.
# This is only done if there is a store, where states outlive the process. It takes a bounded share of the time:
# after a state that took a millisecond, none is saved for the next 50.

_CHECKPOINT_SHARE = 0.02
"""The share of the time that saving may take."""

_EVERY = 32
"""An alternative is saved again when it has so many new tokens. About so many are lost if the process is killed."""

_EVERY_IF_RECURRENT = 512
"""The same with a recurrent model. Its state has the same size however few tokens are new, and is often large."""

_EVERY_OF_A_PROMPT = 1024
"""While a long prompt is evaluated, it is saved when it has so many new tokens. With models that forget it is saved at
its checkpoints instead; see `Prompt.checkpoints`."""


class Checkpointer(Listener):
    """Saves running prompts and alternatives: first the evaluated prompts, then whatever would lose most tokens.

    window: see `Backend.window`.
    """

    def __init__(
        self, scheduler: Scheduler, keeping: RetentionPolicy, window: int | None, clock: Callable[[], float]
    ) -> None:
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
            self._not_before = now + (now - began) / _CHECKPOINT_SHARE

    def _unsaved(self) -> Iterator[tuple[float, Prompt | Sequence]]:
        """The prompts and alternatives with enough new tokens, each with how many of these would be lost now."""
        every = _EVERY_IF_RECURRENT if self._window == 0 else _EVERY
        for prompt in self._scheduler.prompts:
            if not prompt.shares:
                continue
            lacking = prompt.n_computed - prompt.saved
            if prompt.logits is not None:
                if lacking and not prompt.was_retained:
                    yield float("inf"), prompt  # if the prompt is lost, each of its alternatives needs it again
                for seq in prompt.sequences:
                    if seq.seq_id is not None and seq.state == "running" and seq.n_computed - seq.saved >= every:
                        yield seq.n_computed - seq.saved, seq
            elif self._window is None and prompt.seq_id is not None and lacking >= _EVERY_OF_A_PROMPT:
                yield lacking, prompt


class Retention:
    """What is known of earlier texts: how prompts begin with it (`index`), and questions about slots.

    cache_bytes: how many bytes of states are kept in memory; 0: none. store: keeps them for longer than the process
    lives; None: nothing does.
    """

    def __init__(
        self,
        backend: Backend,
        memory: Rollback,
        cache_bytes: int,
        store: StateStore | None,
        totals: Totals,
        clock: Callable[[], float],
    ) -> None:
        self.retained = StateCache(backend, cache_bytes, store)
        self._store = store
        self._window = backend.window
        self._clock = clock
        slots = Slots(self.retained, backend.n_parallel)
        self.index = PrefixCache(backend, self.retained, memory)
        self.questions = SlotQueries(slots)
        self._keeping = RetentionPolicy(backend, self.retained, slots, totals, clock)

    def listeners(self, scheduler: Scheduler) -> list[Listener]:
        """Those that keep what they are told of. The running requests of the scheduler are saved in the store."""
        saving = [Checkpointer(scheduler, self._keeping, self._window, self._clock)] if self._store else []
        return [self.index, self._keeping, *saving]

    def check(self, active: ActiveRequest) -> None:
        """Compares what the store has of a request's prompts with its hashes; see `StateStore.check`. In any thread."""
        for prompt in active.prompts + active.negatives if active.request.cache_prompt else ():
            self.retained.check(prompt.packed, prompt.keys)

    def sizes(self) -> dict[str, Any]:
        """What is kept, as `EngineStats` has it."""
        stored = self._store.stats() if self._store else StoreStats()
        return {
            "store": stored,
            "retained_bytes": self.retained.size,
            "max_retained_bytes": self.retained.max_bytes,
        }

    def close(self) -> None:
        """Returns when the store has written all that it was given."""
        if self._store:
            self._store.close()
