"""Evaluates one batch after the other, and draws the tokens that follow.

The planner says what is in the next batch. The backend decodes it. Then each running sequence draws its next token.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable

from srb.engine.active_request import ActiveRequest
from srb.engine.backend import Backend, Logits
from srb.engine.beams import Beams
from srb.engine.cells import Cells
from srb.engine.events import FinishReason
from srb.engine.outbox import Outbox
from srb.engine.plan import Plan, Planner
from srb.engine.scheduler import Scheduler
from srb.engine.search import Beam
from srb.engine.sequence import Holder, Prompt, Sequence
from srb.engine.stats import Measure, Totals
from srb.engine.walkers import Walkers
from srb.errors import BackendError

_FAR = 32
"""When a sequence's mark lies this many tokens or more before its held text, the sequence sets a new mark nearer to it.
"""


class Decoding:
    """Evaluates batches until every sequence has finished.

    A prompt whose last token was in a batch is forked into its sequences, which all draw their first token from that
    one row of logits.
    """

    def __init__(
        self,
        backend: Backend,
        scheduler: Scheduler,
        cells: Cells,
        outbox: Outbox,
        totals: Totals,
        prefill_chunk: int,
        observe: Callable[[Measure, float], object],
        clock: Callable[[], float],
    ) -> None:
        self.finished: deque[Sequence] = deque()
        """The sequences that have finished, but still hold what they have leased."""
        self._backend = backend
        self._scheduler = scheduler
        self._cells = cells
        self._outbox = outbox
        self._totals = totals
        self._beams = Beams(backend, cells, outbox, totals, self.finish)
        self._planner = Planner(backend.n_parallel, backend.n_batch, backend.n_outputs, prefill_chunk, backend.media)
        self._observe = observe
        self._clock = clock

    def run(self, is_unwanted: Callable[[], bool]) -> None:
        """Evaluates the next batches, if there is anything to evaluate, and draws a token for each running sequence.

        is_unwanted: says whether nobody wants the result any more. It is asked only while no sequence is running.
        """
        for active in self._scheduler.running.values():
            active.count_said()
        for prompt in self._scheduler.prompts:
            if prompt.shift:
                self._cells.shift(prompt)
        for plan in self._planner.next(self._scheduler.prompts, self._cells.awaiting, self._backend.costs):
            self._run(plan, is_unwanted if plan.is_alone else None)

    def _run(self, plan: Plan, interrupted: Callable[[], bool] | None, *, is_second: bool = False) -> None:
        self._totals.steps += 1
        self._totals.rows += len(plan.rows)
        began = self._clock()
        try:
            if not self._backend.decode(plan.batch, interrupted):
                return  # all requests in the batch are being aborted; the next step finds their aborts in the mailbox
        except BackendError as error:
            self._totals.last_error = error.message
            self._run_apart(plan, error, is_second=is_second)
            return
        now = self._clock()
        share = (len(plan.rows) + len(plan.negatives)) / len(plan)
        self._totals.predicted_seconds += (now - began) * share
        self._totals.prompt_seconds += (now - began) * (1 - share)
        for prompt, n_tokens, row in plan.chunks:
            self._outbox.score(prompt, n_tokens, row)
            prompt.evaluated += n_tokens
            self._totals.prompt_tokens_evaluated += n_tokens
            if prompt.is_evaluated:
                prompt.logits = self._backend.logits(row).copy()
            self._cells.save_checkpoint(prompt)
        self._outbox.progress(prompt.active for prompt, _, _ in plan.chunks)
        for holder, row in plan.rows:
            if isinstance(holder, Beam):
                self._beams.take(holder, self._backend.logits(row))
            elif holder.state == "running":  # when one walker ends, all walkers of its request end with it
                negative = self._backend.logits(plan.negatives[holder]) if holder.guide else None
                self._draw(holder, self._backend.logits(row), negative, now)
        self._beams.go_on()
        self._explore(seq.prompt.active for seq, _ in plan.rows if isinstance(seq, Sequence))
        self._cells.share()
        self.begin_sequences()
        self._observe("decode", now - began)
        self._observe("overhead", self._clock() - now)

    def _run_apart(self, plan: Plan, error: BackendError, *, is_second: bool) -> None:
        """Decodes again after a failure: without the sequences that caused it if they are known, or else in halves.

        So only the sequence that makes a decode fail ends. A fault that doesn't come again ends nobody.
        """
        lost = [holder for holder in plan.holders if not self._cells.repair(holder) or _is_named(holder, error)]
        rest = [holder for holder in plan.holders if holder not in lost]
        if len(rest) == 1 and not lost and is_second:
            lost, rest = rest, []
        for holder in lost:
            self._fail(holder, error)
        middle = 0 if lost or len(rest) == 1 else len(rest) // 2
        for part in (rest[:middle], rest[middle:]):
            # When one walker of a request fails, the others have finished, too. So has a prompt whose guides failed.
            part = [each for each in part if not _has_ended(each)]
            if part:
                self._run(plan.of(part), None, is_second=len(rest) == 1)

    def _fail(self, holder: Holder, error: BackendError) -> None:
        """Ends a failed sequence, or all sequences of a failed prompt or beam.

        A search can't go on without one of its beams: it would find other texts.
        """
        if isinstance(holder, Sequence):
            failed, active = [holder], holder.prompt.active
        else:
            prompt = self._beams.prompt_of(holder) if isinstance(holder, Beam) else holder
            if prompt is None:  # another beam has failed before and ended the search
                return
            failed, active = [seq.leader or seq for seq in prompt.living], prompt.active
        if active.request.explore:  # a text that one walker can't evaluate, no other walker can evaluate either
            failed = active.living
            if not failed:
                return
        is_all_of_it = len(failed) == active.request.count or active.request.explore is not None
        if is_all_of_it:
            self._outbox.error(active, None, error)
        for seq in failed:
            if not is_all_of_it:
                self._outbox.error(active, seq.index, error)
            self.finish(seq, "error", None)

    def begin_sequences(self) -> None:
        """Forks evaluated prompts into the sequences that have leased their cells, and draws their first tokens.

        For a prompt with a search, the search begins instead.
        """
        prefilling, self._scheduler.prefilling = self._scheduler.prefilling, []
        exploring = []
        for seq in prefilling:
            prompt, active = seq.prompt, seq.prompt.active
            if seq.state != "prefilling":
                continue  # it was aborted
            if any(each.prompt.logits is None for each in seq.both):
                self._scheduler.prefilling.append(seq)
                continue
            self._outbox.tell(prompt)
            if active.prefilled is None and all(each.logits is not None for each in active.prompts):
                active.prefilled = self._clock()
            if prompt.n_beams:
                seq.state = "running"
                self._beams.add(prompt)
                continue
            for each in seq.both:
                if not each.has_begun:
                    self._cells.fork(each)
            if active.request.explore:
                seq.state = "idle"
                exploring.append(active)
                continue
            for each in seq.both:
                each.state, each.behind = "running", 0
            logits, negative = prompt.logits, seq.guide.prompt.logits if seq.guide else None
            if seq.mark:  # the sequence has gone back to its mark
                logits, negative = seq.mark.logits, seq.mark.negative
            assert logits is not None
            self._draw(seq, logits, negative, self._clock())
        self._beams.begin()
        self._explore(exploring)

    def _explore(self, requests: Iterable[ActiveRequest]) -> None:
        """Tells the nodes that exploring requests have found, and gives their walkers the next texts to evaluate."""
        for active in dict.fromkeys(each for each in requests if each.request.explore and each.living):
            if active.walkers is None:
                active.walkers = Walkers(active, self._backend, self._cells)
            walkers = active.walkers
            self._outbox.found(walkers.found())
            if walkers.is_done:
                for seq in active.living:
                    self.finish(seq, walkers.finish_reason, None)
            else:
                walkers.go_on()

    def _draw(self, seq: Sequence, logits: Logits, negative: Logits | None, now: float) -> None:
        """Draws the next token of a sequence. The sequence then goes on, goes back or finishes.

        negative: the logits of its guide. now: the time at which the decode returned, in seconds of the clock.
        """
        prompt, active, request = seq.prompt, seq.prompt.active, seq.prompt.active.request
        if active.walkers:
            active.walkers.take(seq, logits)
            return
        if seq.max_tokens == 0:
            self.finish(seq, "length", None)
            return
        if seq.behind:  # it evaluates tokens again that it has drawn before, so there is nothing to draw
            for each in seq.both:
                each.behind -= 1
            if len(seq.evaluated_tokens) == seq.n_sure:
                self._cells.set_mark(seq, logits, negative)
            return
        is_first = seq.length == 0
        try:
            if seq.sampler is None:
                begun = (*seq.begun, *seq.tokens)
                seq.sampler = self._backend.sampler(seq.params, active.compiled, prompt.words, begun, prompt.healed)
            excluded = prompt.first_tokens if is_first and request.distinct else ()
            biases = seq.biases()
            guided = logits if negative is None else self._backend.guided(logits, negative, seq.params.guidance_scale)
            token = seq.sampler.sample(guided, excluded, biases)
            if seq.watch and biases.get(token) == -math.inf:
                seq.watch.give_up()
            reported = self._outbox.report(seq, token, logits)
            is_opening = seq.watch is not None and seq.watch.is_opening
            p = math.exp(self._backend.logprobs(logits, token, 0)[0]) if is_opening else 0.0
        except BackendError as error:
            self._outbox.error(active, seq.index, error)
            self.finish(seq, "error", None)
            return
        if is_first:
            prompt.first_tokens.add(token)
        if not active.has_tokens:
            active.has_tokens = True
            self._observe("first_token", self._clock() - active.arrived)
        elif seq.tokens:
            self._observe("next_token", now - seq.drawn_at)
        seq.drawn_at = now
        seq.tokens.append(token)
        self._totals.tokens_generated += 1
        n_tokens = self._outbox.drawn(seq, token, reported, p)
        if seq.watch and seq.mark_id is not None and len(seq.watch.held) + n_tokens == 1:
            self._cells.set_mark(seq, logits, negative)  # this token is the first that may be taken back
        if n_tokens:
            self._go_back(seq, n_tokens)
        elif self._backend.tokenizer.is_end(token):
            self.finish(seq, "stop", None)
        elif seq.text.matched:
            self.finish(seq, "stop", seq.text.matched)
        elif len(seq.tokens) == seq.max_tokens:
            self.finish(seq, "length", None)
        elif seq.mark and seq.n_sure < len(seq.tokens) and seq.n_sure - seq.mark.n_tokens >= _FAR:
            self._cells.go_back(seq)  # the next steps evaluate the sure tokens again, and set the mark behind the last

    def _go_back(self, seq: Sequence, n_tokens: int) -> None:
        """Takes the last tokens of a sequence back. The next step draws another one in place of the first of them.

        That draw needs the logits of the token before, so this token is evaluated again. To keep the logits instead
        would take a copy for each token that may be taken back, and most of these are never taken back.
        """
        assert seq.sampler
        if seq.length == n_tokens:
            seq.prompt.first_tokens.discard(seq.tokens[0])
        del seq.tokens[-n_tokens:]
        seq.sampler.close()
        seq.sampler = None  # the next draw makes a new sampler, which has seen only the tokens that stay
        self._cells.go_back(seq)
        for each in seq.both:
            each.saved = min(each.saved, each.evaluated)
        if not seq.tokens or seq.behind < 0:  # nothing is evaluated again: the logits of its prompt or mark are kept
            seq.state = "prefilling"
            self._scheduler.prefilling.append(seq)

    def finish(self, seq: Sequence, finish_reason: FinishReason, stop_reason: str | None) -> None:
        """Ends a sequence. The last sequence of a request ends the request, too."""
        active = seq.prompt.active
        if not active.request.explore or len(active.living) == 1:
            self._outbox.stop(seq, finish_reason, stop_reason)
        for each in seq.both:
            each.state, each.finish_reason, each.stop_reason = "finished", finish_reason, stop_reason
            self.finished.append(each)
        if not active.living:
            active.compiled.close()
            self._scheduler.remove(active)
            self._outbox.done(active)


def _has_ended(holder: Holder) -> bool:
    if isinstance(holder, Sequence):
        return holder.state == "finished"
    return isinstance(holder, Prompt) and not holder.living


def _is_named(holder: Holder, error: BackendError) -> bool:
    """Whether the error names the seq_id of this holder, or of its guide."""
    places = holder.both if isinstance(holder, Sequence) else (holder,)
    return any(each.seq_id in error.seq_ids for each in places)
