"""The retention policy: which states are cached, and when, so that caching never slows the requests that run.

- **Finished sequences** are cached after the events of their end were taken. While others run, this takes a quarter of
  the time at most, and the rest is done in the next steps. An idle engine caches all of them, or as many answers as it
  can until a request comes. Of a cancelled alternative only the prompt is cached, for the next try.
- **Prompts of models that forget** need points to go on from. Their state is cached at regular checkpoints, and where a
  prompt parts from another text. An example with a recurrent model: three requests begin with the same instructions of
  400 tokens. The second one computes all of its prompt, since the first has gone past the 400, but it stops after the
  400 and its state is cached there. The third one begins with this state.
- **Running sequences** are saved from time to time if there is a state store, so that a process that is killed loses
  little. This takes a bounded share of the time.

An idle engine gives all cells back before it begins the next request. If what has ended stayed in its cells meanwhile,
the next request would get other cells, and the last digits of llama.cpp's logits would differ. So the same request,
sent again at once, gives the same text. Answers that aren't cached when it comes are dropped: it would wait half a
second for the 32 of its predecessor, of which one is continued as a rule.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from weakref import WeakKeyDictionary

from srb.engine.backend import Backend, Logits
from srb.engine.events import FinishReason, StopReason
from srb.engine.kv_cache.radix import WORTH_SHARING, Tokens, pack
from srb.engine.kv_cache.state_cache import StateCache
from srb.engine.media import whole
from srb.engine.prompt_scores import Scores
from srb.engine.sequence import Prompt, Sequence
from srb.engine.stats import Totals

_SHARE = 0.25
"""The share of the time in which finished sequences are cached while others run."""

_UNNOTICED = 0.01
"""How long answers may be cached while a new request waits for an engine that is idle otherwise, in seconds."""

_COST_DECAY = 0.98
"""The cost of caching an answer is only measured when one is cached. It fades with each answer that isn't cached, so
that another one is tried after a while: the last one may have been slow for another reason."""

_PATIENCE = 0.2
"""How long a finished sequence may wait to be cached while others wait for its cells, in seconds."""

_CHECKPOINT_EVERY = 512
"""Tokens between two checkpoints of a long prompt, if the model forgets: this number, or twice or four times as many
and so on, so that a prompt has at most `_CHECKPOINTS`."""

_CHECKPOINTS = 8
"""The most checkpoints of one prompt at regular distances."""

_SAVE_SHARE = 0.02
"""The share of the time in which running sequences are saved: after a millisecond, none is saved for the next 50."""

_SAVE_EVERY = 32
"""An alternative is saved again after this many new tokens. About as many are lost if the process is killed."""

_SAVE_EVERY_IF_RECURRENT = 512
"""The same with a recurrent model. Its state has the same size however few tokens are new, and is often large."""

_SAVE_PROMPT_EVERY = 1024
"""A long prompt is saved after this many new tokens. With models that forget it is saved at checkpoints instead."""


@dataclass(frozen=True, slots=True)
class Cached:
    """What is cached of a finished sequence.

    Attributes:
        prompt: the state at the end of its prompt.
        answer: the state at its own end.
    """

    prompt: bool = False
    answer: bool = False


@dataclass(slots=True)
class _Saved:
    """What is saved of a prompt or sequence.

    Attributes:
        n_tokens: how many of its tokens a saved state has, while it runs.
        is_cached: whether caching the state of a complete prompt was tried; it is tried once.
        checkpoints: the prompt is saved after these numbers of tokens; the next one is the last item.
    """

    n_tokens: int = 0
    is_cached: bool = False
    checkpoints: list[int] = field(default_factory=list)


class RetentionPolicy:
    """Caches the states of prompts and answers: at checkpoints, from time to time, and when they finish.

    The time for this is shared by how long caching and computing took before. A finished sequence waits for its turn
    with its cells. If other requests need the cells and the wait gets too long, it is given back without being cached.

    A GPU may take longer to copy an answer than to compute it again: the cells of an answer lie between those of
    others, and each is copied alone. Such an answer is only cached while nothing else runs, and if it is short.

    Args:
        states: takes what is cached.
        totals: say how long computing took.
        clock: returns the time, in seconds.
    """

    def __init__(self, backend: Backend, states: StateCache, totals: Totals, clock: Callable[[], float]) -> None:
        self._backend = backend
        self._states = states
        self._totals = totals
        self._clock = clock
        self._saved: WeakKeyDictionary[Prompt | Sequence, _Saved] = WeakKeyDictionary()
        self._next_time = 0.0  # when there is time again for finished sequences, in seconds of the clock
        self._next_save = 0.0  # the same for running ones
        self._last_step = self._this_step = 0.0  # when the steps began
        self._cost = 0.0  # seconds per token when an answer was last cached

    # Checkpoints of models that forget

    def plan_checkpoints(self, prompt: Prompt, n_shared: int, n_known: int) -> None:
        """Chooses where a prompt's state is cached: at regular points, and where it parts from other texts.

        Args:
            prompt: one that hasn't been computed.
            n_shared: how many of its tokens it begins with.
            n_known: how many of its tokens another text has in common with it.
        """
        saved, window = self._of(prompt), self._backend.window
        saved.checkpoints = []
        if not prompt.shares or window is None or not self._states.is_enabled:
            return
        every, most = max(_CHECKPOINT_EVERY, window), len(prompt.tokens) - WORTH_SHARING
        while most // every > _CHECKPOINTS:
            every *= 2
        parting = n_known - 1 if prompt.scores else n_known  # a scored prompt needs the logits after what it shares
        points = {*(whole(prompt.tokens, n) for n in range(every, most + 1, every)), parting}
        least, end = n_shared + WORTH_SHARING, len(prompt.tokens)
        saved.checkpoints = sorted((n for n in points if least <= n < end), reverse=True)

    def next_checkpoint(self, prompt: Prompt) -> int | None:
        """Returns after how many tokens a prompt must pause for its state to be cached; None: it needn't."""
        checkpoints = self._of(prompt).checkpoints
        return checkpoints[-1] if checkpoints else None

    def at_checkpoint(self, prompt: Prompt) -> None:
        """Caches the state of a prompt that is being computed, if it has come to one of its checkpoints."""
        checkpoints = self._of(prompt).checkpoints
        while checkpoints and checkpoints[-1] <= prompt.n_computed:
            if checkpoints.pop() == prompt.n_computed:
                self.cache_part(prompt)

    # Running sequences, for the store

    def save_running(self, prompts: Iterable[Prompt]) -> None:
        """Saves the state of one prompt or alternative in the store, if there is time and one has enough new tokens.

        Complete prompts come first, then what would lose most tokens.
        """
        began = self._clock()
        if not self._states.is_persistent or began < self._next_save:
            return
        _, found = max(self._unsaved(prompts), key=lambda each: each[0], default=(0, None))
        if not found:
            return
        self._of(found).n_tokens = found.n_computed
        if isinstance(found, Sequence):
            self._cache_answer(found)
        elif found.is_computed:
            self.cache_prompt(found)
        else:
            self.cache_part(found)
        now = self._clock()
        self._next_save = now + (now - began) / _SAVE_SHARE

    def _unsaved(self, prompts: Iterable[Prompt]) -> Iterator[tuple[float, Prompt | Sequence]]:
        """Yields prompts and alternatives with enough new tokens, each with how many of these would be lost now."""
        window = self._backend.window
        every = _SAVE_EVERY_IF_RECURRENT if window == 0 else _SAVE_EVERY
        for prompt in prompts:
            if not prompt.shares:
                continue
            saved = self._of(prompt)
            n_new = prompt.n_computed - saved.n_tokens
            if prompt.logits is not None:
                if n_new and not saved.is_cached:
                    yield float("inf"), prompt  # if the prompt is lost, each of its alternatives needs it again
                for seq in prompt.sequences:
                    n_new = seq.n_computed - self._of(seq).n_tokens
                    if seq.seq_id is not None and seq.state == "running" and n_new >= every:
                        yield n_new, seq
            elif window is None and prompt.seq_id is not None and n_new >= _SAVE_PROMPT_EVERY:
                yield n_new, prompt

    # Finished sequences

    def begin_step(self) -> None:
        """Notes when a step begins: caching has its share of the time since the last one."""
        self._last_step, self._this_step = self._this_step, self._clock()

    def decide(
        self, seq: Sequence, finish_reason: FinishReason, stop_reason: StopReason, *, is_idle: bool, is_waited_for: bool
    ) -> Cached | None:
        """Decides what is cached of a finished sequence, and whether its cells may be given back now.

        Args:
            seq: the sequence that finished first.
            finish_reason, stop_reason: why it has.
            is_idle: no sequence is running.
            is_waited_for: others wait for the sequence's cells, or for the engine.

        Returns:
            What is cached: nothing if there is no time to wait until there is time for that. None: the sequence waits
            with its cells.
        """
        now = self._clock()
        if self._states.is_enabled and not is_idle and now < self._next_time:
            return Cached() if is_waited_for and now - seq.sampled_at > _PATIENCE else None
        is_shut_down = finish_reason == "abort" and stop_reason == "shutdown"
        is_complete = finish_reason in ("stop", "length") or (is_shut_down and self._states.is_persistent)
        n_computed = self._totals.prompt_tokens_evaluated
        pays = not n_computed or self._cost * n_computed <= self._totals.prompt_seconds
        is_unnoticed = is_idle and not is_waited_for and self._cost * len(seq.tokens) <= _UNNOTICED
        is_too_late = is_idle and is_waited_for and now - self._this_step > _UNNOTICED
        self._cost *= 1 if pays else _COST_DECAY
        return Cached(
            prompt=is_complete or (finish_reason == "abort" and not is_shut_down),
            answer=is_complete and (is_shut_down or ((pays or is_unnoticed) and not is_too_late and not seq.positive)),
        )

    def cache_finished(self, seq: Sequence, cached: Cached) -> None:
        """Caches this of a sequence whose cells are given back now."""
        began, prompt = self._clock(), seq.prompt
        n_tokens = len(seq.tokens) + (0 if self._of(prompt).is_cached else len(prompt.tokens))
        if cached.prompt and (seq.seq_id is not None or prompt.row_ids):
            self.cache_prompt(prompt)
        if cached.answer and seq.seq_id is not None:
            self._cache_answer(seq)
        # Slots find no text with adapters. A request may name a slot that isn't there.
        if seq.seq_id is not None and not seq.positive and not prompt.keys[-1] and seq.slot < self._backend.n_parallel:
            place = prompt.active.request.shared_within, seq.slot
            self._states.slots[place] = prompt.packed + pack(seq.computed_tokens)
        now = self._clock()
        if cached.answer:
            self._cost = (now - began) / max(1, n_tokens)
        if cached.prompt or cached.answer:
            since = min(max(self._next_time, self._last_step), began)  # an idle engine takes all it needs
            self._next_time = since + (now - began) / _SHARE

    def cache_prompt(self, prompt: Prompt) -> None:
        """Caches the state at the end of a computed prompt, once."""
        seq_id, saved = prompt.source_id, self._of(prompt)
        if seq_id is None or (self._backend.window is not None and seq_id != prompt.seq_id):
            return  # if the model forgets, only its own seq_id has its end
        if prompt.shares and prompt.logits is not None and not saved.is_cached:
            saved.is_cached = True
            self._cache(prompt, prompt.packed, seq_id, prompt.logits, prompt.scores)

    def _cache_answer(self, seq: Sequence) -> None:
        if seq.prompt.shares and not seq.n_shifted and seq.computed_tokens and seq.strategy.caches_texts:
            assert seq.seq_id is not None
            self._cache(seq.prompt, seq.prompt.packed + pack(seq.computed_tokens), seq.seq_id)

    def cache_part(self, prompt: Prompt) -> None:
        """Caches the state of a prompt as far as it is computed."""
        assert prompt.seq_id is not None
        self._cache(prompt, prompt.packed[: prompt.n_computed], prompt.seq_id)

    def _cache(
        self, prompt: Prompt, tokens: Tokens, seq_id: int, logits: Logits | None = None, scores: Scores | None = None
    ) -> None:
        self._states.add(tokens, partial(self._backend.save, seq_id), logits, prompt.keys, scores)

    def _of(self, holder: Prompt | Sequence) -> _Saved:
        saved = self._saved.get(holder)
        if saved is None:
            n_tokens = 0 if isinstance(holder, Prompt) else len(holder.prompt.tokens)
            self._saved[holder] = saved = _Saved(n_tokens)
        return saved
