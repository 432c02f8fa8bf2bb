"""The engine: requests in, events out, one `step()` at a time.

A step admits the requests that there are cells for and computes a batch: chunks of prompts that aren't computed yet,
and one row for every running sequence. If the rows need more cells than are free, the youngest sequences are preempted
first. A sequence that finishes leaves with the next step: its state is cached, and its cells are given back.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import fields

from srb.engine.backend import TRY_AGAIN_SECONDS, Backend
from srb.engine.decoding.base import EngineParts
from srb.engine.events import AbortReason, Event
from srb.engine.input_processor import build_request, check_request
from srb.engine.kv_cache.allocator import CellAllocator
from srb.engine.kv_cache.cells import Cells
from srb.engine.kv_cache.prefix_cache import PrefixCache
from srb.engine.kv_cache.retention import RetentionPolicy
from srb.engine.kv_cache.rollback import rollback_of
from srb.engine.kv_cache.state_cache import StateCache
from srb.engine.kv_cache.state_store import StateStore, StoreStats
from srb.engine.lora import Adapters
from srb.engine.mailbox import Abort, Answer, Mailbox, Priority, Question
from srb.engine.media import Media, PromptPart
from srb.engine.model import ModelInfo, Tokenize
from srb.engine.model_facts import ModelFacts
from srb.engine.model_runner import ModelRunner
from srb.engine.offline import with_tokens
from srb.engine.output.processor import OutputProcessor
from srb.engine.output.prompt_logprobs import PromptLogprobs
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import DEFAULT_MAX_TOKENS
from srb.engine.scheduler import Scheduler
from srb.engine.sequence import ActiveRequest
from srb.engine.stats import EngineStats, Measure, Totals
from srb.errors import SrbError, UnavailableError, in_use


class Engine:
    """Runs completion requests on a backend.

    `tokenize`, `add_request`, `abort` and `ask` may be called from any thread. Everything else belongs to the thread
    that calls `step`.

    Args:
        backend: the model.
        default_max_tokens: for alternatives whose `max_tokens` is None. -1: until the context is full.
        cache_bytes: the most bytes of states of finished requests that are cached in memory; 0: none.
        store: stores these states for longer than the process lives. An engine with a store must be closed by `close`.
        observe: called with each measurement, in seconds.
        clock: returns the time, in seconds.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        default_max_tokens: int = DEFAULT_MAX_TOKENS,
        cache_bytes: int = 0,
        store: StateStore | None = None,
        observe: Callable[[Measure, float], object] = lambda _measure, _seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = ModelFacts.of(backend)
        """What is known of the model. May be read from any thread."""
        self.adapters = Adapters(backend.adapters)
        """The adapters that were loaded with the model. May be read, and given other scales, from any thread."""
        self._backend = backend
        self._default_max_tokens = default_max_tokens
        self._clock = clock
        self._store = store
        self._mail = Mailbox()
        self._laid_out = 0.0  # when the layout was last chosen, in seconds of the clock
        self._totals = totals = Totals()
        self._allocator = allocator = CellAllocator(backend.layout)
        self._states = StateCache(backend, cache_bytes, store)
        rollback = rollback_of(backend, allocator)
        self._retention = RetentionPolicy(backend, self._states, totals, clock)
        prefix_cache = PrefixCache(backend, self._states, rollback, self._retention)
        self._scheduler = scheduler = Scheduler(
            allocator, prefix_cache, backend.n_cells, backend.n_parallel, default_max_tokens, rollback
        )
        self._cells = cells = Cells(
            backend, allocator, scheduler, rollback, self._states, prefix_cache, self._retention, totals, clock
        )
        self._output = output = OutputProcessor(backend, clock)
        self._runner = ModelRunner(
            backend, scheduler, cells, output, PromptLogprobs(backend, output), totals, observe, clock
        )
        self._parts = EngineParts(backend, scheduler, cells, rollback, output, self._runner, totals, observe, clock)

    # From any thread

    @property
    def tokenize(self) -> Tokenize:
        """Turns a text into token ids (`Tokenize`)."""
        return self.model.tokenize

    def tokenize_parts(self, parts: Sequence[PromptPart]) -> tuple[tuple[int, ...], tuple[Media, ...]]:
        """Makes a prompt of texts and files (`ModelFacts.tokenize_parts`)."""
        return self.model.tokenize_parts(parts)

    @property
    def model_info(self) -> ModelInfo:
        """What the model's file says about the model."""
        return self.model.info

    def check(self, request: CompletionRequest) -> None:
        """Refuses a request that can never run. Raises `InvalidRequestError`."""
        check_request(request, self.model.limits, self._backend, self.adapters, self._default_max_tokens)

    def add_request(self, request: CompletionRequest) -> None:
        """Takes a request, for `step`. Raises `InvalidRequestError` if it can never run, or if its id is in use."""
        if self._scheduler.find(request.id):
            raise in_use(request.id)
        request = with_tokens(request, self.tokenize)
        self.check(request)
        active = build_request(request, self.adapters, self._parts, self._default_max_tokens)
        for prompt in active.all_prompts if request.cache_prompt else ():
            self._states.check(prompt.packed, prompt.keys)  # in the caller's thread, so that no step waits for it
        try:
            self._mail.put(active)
        except SrbError:
            active.compiled.close()
            raise

    def abort(self, request_id: str, index: int | None = None, reason: AbortReason = "cancelled") -> None:
        """Ends a request, or only its alternative `index`, at the next step. Does nothing if that has ended already."""
        self._mail.put(Abort(request_id, index, reason))

    def prioritize(self, request_id: str, priority: int) -> None:
        """Gives a request another priority, from the next step on. Does nothing if it has ended already."""
        self._mail.put(Priority(request_id, priority))

    def ask(self, slot: int, question: Callable[[StateCache], Answer]) -> "Future[Answer]":
        """Calls `question` with the cached states, in a step, after what had ended in a slot was cached.

        Returns:
            The future has what `question` returns, or the `SrbError` that it raises.
        """
        answer: Future[Answer] = Future()
        self._mail.put(Question(slot, question, answer))
        return answer

    # From the thread that calls step()

    @property
    def has_work(self) -> bool:
        """Whether a step would have anything to do."""
        return bool(self._mail or self._runner.finished or self._scheduler.running or self._scheduler.waiting)

    @property
    def priority(self) -> int:
        """The most urgent priority of its requests, the only one that is scheduled."""
        return self._scheduler.priority

    def stats(self) -> EngineStats:
        """Returns what the engine has now, and what it has done."""
        return EngineStats.of(
            self._totals,
            self._store.stats() if self._store else StoreStats(),
            retained_bytes=self._states.size,
            max_retained_bytes=self._states.max_bytes,
            sequences=self._scheduler.n_rows,
            max_sequences=self._backend.n_parallel,
            cells=self._allocator.used_cells,
            cells_shared=self._scheduler.shared_cells,
            max_cells=self._allocator.n_cells,
            layout=self._allocator.layout.name,
            n_preempted=self._scheduler.n_preempted,
            media=self._backend.media,
        )

    def step(self) -> list[Event]:
        """Does the next piece of work, and returns what happened, in order.

        The list may be empty after a decode. Ask `has_work` whether there is anything to do. Events that need no decode
        (requests that were admitted or aborted, the first tokens after a cached prompt) are returned before the next
        decode, which may take long. A fault of the backend ends the requests that it affects, with events. Any other
        exception is a bug.
        """
        self._release()
        self._read_mail()
        self._admit()
        if not self._output:
            self._retention.save_running(self._scheduler.prompts)
            self._runner.run(self._is_unwanted)
        return self._output.take_events()

    def sleep(self) -> None:
        """Frees memory that the backend can fill again for the next request. Call it only when there is no work."""
        self._backend.sleep()

    def abandon(self, error: SrbError) -> str | None:
        """Frees the samplers of every request. From now on `add_request` and `ask` raise this error.

        This is for an engine whose `step` has raised an exception. There are no further events, the backend's cache
        isn't touched, and there must be no further step.

        Returns:
            The id of the request that it was working on; None if it was working on several.
        """
        unread = [message for message in self._mail.close(error) if isinstance(message, ActiveRequest)]
        for active in (*self._scheduler.running.values(), *self._scheduler.waiting.values(), *unread):
            active.compiled.close()
        running = [each for active in self._scheduler.running.values() for each in active.all_prompts]
        prompts = dict.fromkeys((*running, *(seq.prompt for seq in self._runner.finished)))
        for seq in (seq for prompt in prompts for seq in prompt.sequences):
            if seq.sampler:
                seq.sampler.close()
                seq.sampler = None
        return next((each.active.id for each in prompts if each.strategy is self._runner.at_work), None)

    def take_over(self, failed: "Engine", reason: str) -> None:
        """Takes over the counts of an abandoned engine, which failed for this reason, and its adapters' scales."""
        for each in fields(Totals):
            setattr(self._totals, each.name, getattr(failed._totals, each.name))
        self._totals.last_error = reason
        self.adapters.set_scales(tuple((k, each.scale) for k, each in enumerate(failed.adapters.listed)))

    def close(self) -> None:
        """Returns when the store has written all that it was given. There must be no further step."""
        if self._store:
            self._store.close()

    # The life of a request

    def _read_mail(self) -> None:
        for message in self._mail.read():
            if isinstance(message, ActiveRequest):
                self._scheduler.add(message)
            elif isinstance(message, Question):
                if any(seq.slot == message.slot for seq in self._runner.finished):
                    self._runner.release(is_idle=True, is_waited_for=lambda: False)  # all that has ended is cached now
                message.resolve(self._states)
            elif active := self._scheduler.find(message.request_id):
                if isinstance(message, Abort):
                    self._abort(active, message.index, message.reason)
                else:
                    self._scheduler.prioritize(active, message.priority)

    def _abort(self, active: ActiveRequest, index: int | None, reason: AbortReason) -> None:
        """Ends one sequence of a request, or all.

        While the request waits, a single sequence is only noted. It ends right after the request's start.
        """
        doomed = [seq for seq in active.living if index is None or seq.index == index]
        if active.admitted is None and index is not None:
            active.early_aborts |= {seq.index: reason for seq in doomed}
            doomed = active.living if len(active.early_aborts) == len(active.living) else []
        if doomed:
            self._totals.aborts[reason] = self._totals.aborts.get(reason, 0) + 1
        for seq in doomed:
            self._runner.finish(seq, "abort", reason)

    def _is_unwanted(self) -> bool:
        """Whether every running request is being aborted, so that a long decode needn't go on."""
        return self._mail.aborts_all(self._scheduler.running)

    def _admit(self) -> None:
        """Admits the requests and sequences that there are cells for. Their prompts begin with what is cached."""
        if self._scheduler.is_waited_for and self._clock() > self._laid_out + TRY_AGAIN_SECONDS:
            self._scheduler.has_news = True  # there may be memory by now for another layout
        if self._scheduler.has_news or self._scheduler.is_outgrown():
            self._laid_out = self._clock()
            try:
                self._lay_out()
            except SrbError as error:
                self._refuse_all(error)
                return
        self._begin_admitted()
        while victims := self._scheduler.make_way(self._clock()):
            self._cells.preempt(victims)
            self._begin_admitted()
        if unfit := self._scheduler.unfit():
            layout = self._backend.layout
            self._refuse(
                unfit, f"the request doesn't fit into the memory now: the KV cache is {layout}; try again later"
            )
        self._cells.share()
        self._runner.begin_sequences()

    def _begin_admitted(self) -> None:
        for prompts in self._scheduler.admit(self._clock()):
            # Forks come first. A restored state may take over cells that have left the sliding window of their
            # sequence, and a fork from further back may still need these cells.
            for prompt in sorted(
                prompts, key=lambda each: each.beginning is not None and each.beginning.source is None
            ):
                if prompt.active.admitted is None:
                    self._totals.prompt_tokens += len(prompt.tokens)
                self._cells.fill(prompt)
            for active in dict.fromkeys(prompt.active for prompt in prompts):
                if active.admitted is None:
                    self._start(active)

    def _lay_out(self) -> None:
        """Lets the backend choose how the cells are laid out for what runs and waits. Raises `SrbError`."""
        loads = list(self._scheduler.loads())
        if not loads:
            return
        layout = self._backend.choose(loads, self._scheduler.n_held)
        if layout != self._allocator.layout:
            self._runner.release(must=True)
            self._cells.lay_out(layout)
        while not self._allocator.used_cells:
            self._backend.prepare(layout)
            if self._backend.layout == layout:
                return
            layout = self._backend.choose(loads, 0)  # there is no memory for that one
            self._cells.lay_out(layout)

    def _refuse_all(self, error: SrbError) -> None:
        """Ends all requests because the backend can't be prepared. Their cells are empty, so none are removed."""
        self._totals.last_error = error.message
        for active in (*self._scheduler.running.values(), *self._scheduler.waiting.values()):
            self._refuse(active, f"the model can't be used now: {error.message}")

    def _refuse(self, active: ActiveRequest, problem: str) -> None:
        """Ends a request that can't be computed now."""
        self._output.error(active, None, UnavailableError(problem))
        for seq in active.living:
            self._runner.finish(seq, "error", None)
        self._runner.release(must=True)

    def _start(self, active: ActiveRequest) -> None:
        active.admitted = self._clock()
        self._output.start(active)
        for index, reason in active.early_aborts.items():
            self._abort(active, index, reason)
        for prompt in active.prompts:
            self._output.start_texts(prompt)

    def _release(self) -> None:
        """Gives back the cells of finished sequences.

        This comes after their events were taken, because caching their states takes a while.
        """
        self._retention.begin_step()
        if not self._runner.finished:
            return
        # An idle engine gives everything back before the next request, which then finds the same empty cells.
        is_idle = not self._scheduler.is_running
        self._runner.release(
            is_idle=is_idle,
            is_waited_for=lambda: self._scheduler.is_waited_for or (is_idle and self._mail.has_requests),
        )
