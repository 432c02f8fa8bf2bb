"""Decodes one batch after the other, and gives each row the logits that follow it.

The planner says what is in the next batch. The backend decodes it. Then each row goes on as its decoding strategy says:
a sequence samples its next token, for example.

`ModelRunner.finish` is the only way out for a sequence, whatever the reason. It ends the request with its last
sequence. So every index has one `StopEvent`, and every request one `DoneEvent`. When something breaks:

- When a decode fails, what it left in the cells is removed, and the batch is tried again: without the sequences that
  llama.cpp names, or else in halves. So the sequence that makes it fail ends alone, and the others live on.
- A `BackendError` from a sampler ends this one alternative.
- Any other exception is a bug: another engine replaces this one and resumes its requests (`srb.serving.recovery`).

A prompt that is no longer wanted stops being computed in the middle of a decode, through llama.cpp's abort callback.
llama.cpp calls it for every node of the graph, in Python, so only batches that have nothing but prompts get it. It
stops a batch only if every request in the batch is being aborted: then there is nothing to repair.
"""

from collections.abc import Callable

from srb.engine.backend import Backend
from srb.engine.batch import BatchPlan, BatchPlanner
from srb.engine.decoding.base import AnyStrategy
from srb.engine.events import FinishReason, StopReason
from srb.engine.kv_cache.cells import Cells
from srb.engine.kv_cache.retention import Cached
from srb.engine.output.processor import OutputProcessor
from srb.engine.output.prompt_logprobs import PromptLogprobs
from srb.engine.scheduler import Scheduler
from srb.engine.sequence import Holder, Prompt, Sequence
from srb.engine.stats import Measure, Totals
from srb.errors import BackendError


class ModelRunner:
    """Decodes batches until every sequence has finished.

    A prompt whose last token was in a batch is forked into its sequences, which all sample their first token from that
    one row of logits.
    """

    def __init__(
        self,
        backend: Backend,
        scheduler: Scheduler,
        cells: Cells,
        output: OutputProcessor,
        prompt_logprobs: PromptLogprobs,
        totals: Totals,
        observe: Callable[[Measure, float], object],
        clock: Callable[[], float],
    ) -> None:
        self.finished: dict[Sequence, tuple[FinishReason, StopReason]] = {}
        """The sequences that have finished, but still have their cells, the first one first; and why they have."""
        self.at_work: AnyStrategy | None = None
        """The one that takes a row now. If it raises an exception, its request is the likely cause."""
        self.now = 0.0
        """When the last decode returned, or sequences last began, in seconds of the clock."""
        self._backend = backend
        self._scheduler = scheduler
        self._cells = cells
        self._output = output
        self._prompt_logprobs = prompt_logprobs
        self._totals = totals
        self._planner = BatchPlanner(backend, cells.retention)
        self._observe = observe
        self._clock = clock

    def run(self, is_unwanted: Callable[[], bool]) -> None:
        """Decodes the next batches, if there is anything to compute, and lets their rows go on.

        Args:
            is_unwanted: whether the result is no longer wanted. It is only asked while no sequence is running.
        """
        for active in self._scheduler.running.values():
            for constraint in active.constraints:
                constraint.before_step()
        for prompt in self._scheduler.current_prompts:
            prompt.strategy.before_step()
        while not self._scheduler.reserve():
            if self.finished:
                self.release(must=True)
            else:
                self._cells.preempt(self._scheduler.victims())
        for plan in self._planner.next(self._scheduler.current_prompts, self._cells.awaiting, self._backend.costs):
            self._run(plan, is_unwanted if plan.is_alone else None)

    def _run(self, plan: BatchPlan, interrupted: Callable[[], bool] | None, *, is_second: bool = False) -> None:
        self._totals.steps += 1
        self._totals.rows += len(plan.rows)
        began = self._clock()
        try:
            if not self._backend.decode(plan.batch, interrupted):
                return  # all requests in the batch are being aborted; the next step finds their aborts in the mailbox
        except BackendError as error:
            self._totals.last_error = error.message
            self._retry(plan, error, is_second=is_second)
            return
        self.now = now = self._clock()
        share = sum(len(numbers) for _, numbers in plan.rows) / len(plan)
        self._totals.predicted_seconds += (now - began) * share
        self._totals.prompt_seconds += (now - began) * (1 - share)
        for prompt, n_tokens, last_row in plan.chunks:
            prompt.n_computed += n_tokens
            self._totals.prompt_tokens_evaluated += n_tokens
            if prompt.is_computed:
                prompt.logits = self._backend.logits(last_row).copy()
            self._prompt_logprobs.on_computed(prompt, n_tokens, last_row)
            self._cells.retention.at_checkpoint(prompt)
        self._output.progress(prompt.active for prompt, _, _ in plan.chunks)
        strategies: dict[AnyStrategy, None] = {}
        for row, numbers in plan.rows:
            self.at_work = row.strategy
            logits, *others = map(self._backend.logits, numbers)
            if plan.is_of(row, numbers[0]):
                row.strategy.process_logits(row, logits, others)
            strategies[row.strategy] = None
        self.at_work = None
        for strategy in strategies:
            strategy.after_step()
        self._cells.share()
        self.begin_sequences()
        self._observe("decode", now - began)
        self._observe("overhead", self._clock() - now)

    def _retry(self, plan: BatchPlan, error: BackendError, *, is_second: bool) -> None:
        """Decodes again after a failure: without the sequences that caused it if they are known, or else in halves.

        So only the sequence that makes a decode fail ends. A fault that doesn't come again ends none.
        """
        lost = []
        for holder in plan.holders:
            each_of = (holder,) if isinstance(holder, Prompt) else holder.group
            if not self._cells.repair(each_of) or any(each.seq_id in error.seq_ids for each in each_of):
                lost.append(holder)
        rest = [holder for holder in plan.holders if holder not in lost]
        if len(rest) == 1 and not lost and is_second:
            lost, rest = rest, []
        for holder in lost:
            self._fail(holder, error)
        middle = 0 if lost or len(rest) == 1 else len(rest) // 2
        for part in (rest[:middle], rest[middle:]):
            part = [each for each in part if not each.is_over]  # when one ends, others may end with it
            if part:
                self._run(plan.of(part), None, is_second=len(rest) == 1)

    def _fail(self, holder: Holder, error: BackendError) -> None:
        """Ends the sequences that can't go on without a row, or without a prompt."""
        failed = [*holder.strategy.failed_sequences(None if isinstance(holder, Prompt) else holder)]
        if not failed:
            return  # they have ended already
        active = failed[0].prompt.active
        is_all_of_it = len({seq.index for seq in failed}) == active.request.count
        if is_all_of_it:
            self._output.error(active, None, error)
        for seq in failed:
            if not is_all_of_it:
                self._output.error(active, seq.index, error)
            self.finish(seq, "error", None)

    def begin_sequences(self) -> None:
        """Lets the sequences go on that have their cells, and whose prompts are computed by now."""
        prefilling, self._scheduler.prefilling = self._scheduler.prefilling, []
        began: dict[AnyStrategy, None] = {}
        for seq in prefilling:
            prompt, active = seq.prompt, seq.prompt.active
            if seq.state != "prefilling":
                continue  # it was aborted
            if not all(map(self._cells.can_begin, seq.group)):
                self._scheduler.prefilling.append(seq)
                continue
            if seq.swapped:
                self._cells.swap_in(seq)
                continue
            self._prompt_logprobs.report(prompt)
            if active.prefilled is None and all(each.logits is not None for each in active.prompts):
                active.prefilled = self._clock()
            self.now = self._clock()
            self.at_work = prompt.strategy
            prompt.strategy.begin_sequence(seq)
            began[prompt.strategy] = None
        self.at_work = None
        for strategy in began:
            strategy.after_step()

    def release(
        self, *, is_idle: bool = False, is_waited_for: Callable[[], bool] = lambda: True, must: bool = False
    ) -> None:
        """Gives back the cells of finished sequences, as far as there is time to cache their states.

        A sequence that waits for this time keeps all its cells meanwhile.

        Args:
            is_idle: no sequence is running.
            is_waited_for: whether others wait for the cells, or for the engine, by now.
            must: don't wait.
        """
        for seq, reasons in list(self.finished.items()):
            cached = self._cells.retention.decide(seq, *reasons, is_idle=is_idle, is_waited_for=is_waited_for())
            if cached is None and not must:
                return
            del self.finished[seq]
            self._cells.give_back(seq, cached or Cached())

    def finish(self, seq: Sequence, finish_reason: FinishReason, stop_reason: StopReason) -> None:
        """Ends a sequence. The last sequence of a request ends the request, too."""
        active = seq.prompt.active
        for each in seq.group:
            each.state = "finished"
            self.finished[each] = finish_reason, stop_reason
        if not any(each.index == seq.index for each in seq.prompt.living):  # exploring has several with one index
            self._output.stop(seq, finish_reason, stop_reason)
        if not active.living:
            active.compiled.close()
            self._scheduler.remove(active)
            self._output.done(active)
