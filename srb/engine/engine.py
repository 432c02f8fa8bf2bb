"""The engine: requests in, events out, one `step()` at a time.

A step evaluates the next chunk of what prompts are not evaluated yet, together with one row for every running
sequence. A prompt whose last token was in it is forked into its sequences, which all draw their first token
from that one row of logits. A sequence that finishes leaves with the next step: what it evaluated is retained, and
what it leased is given back.
"""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from srb.engine.backend import Backend, ChatTemplate, Embedder, Logits, Tokenizer
from srb.engine.events import AbortReason, Event, FinishReason
from srb.engine.kv_cache import KVCache
from srb.engine.outbox import Outbox
from srb.engine.plan import Plan, next_batch
from srb.engine.request import CompletionRequest
from srb.engine.retained import Hit, Retained
from srb.engine.scheduler import Scheduler
from srb.engine.sequence import ActiveRequest, Prompt, Sequence
from srb.engine.stats import EngineStats, Measure, Totals
from srb.errors import BackendError, InvalidRequestError, SrbError

DEFAULT_MAX_TOKENS = 128


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str
    index: int | None
    reason: AbortReason


class Engine:
    """Runs completion requests on a backend.

    `tokenize`, `add_request` and `abort` may be called from any thread; everything else belongs to the thread
    that calls `step`.

    default_max_tokens: what an alternative gets whose `max_tokens` is None; -1 is as many as there is room for.
    prefill_chunk: how many prompt tokens join a step of running sequences; 0: as many as these are.
    cache_bytes: how much may be kept of finished requests; 0: nothing.
    observe: gets each measurement, in seconds.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        default_max_tokens: int = DEFAULT_MAX_TOKENS,
        prefill_chunk: int = 0,
        cache_bytes: int = 0,
        observe: Callable[[Measure, float], object] = lambda _measure, _seconds: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._tokenizer = backend.tokenizer
        self._observe = observe
        self._clock = clock
        self._cache = KVCache(backend.n_cells, backend.n_seqs)
        self._retained = Retained(cache_bytes if backend.shares_prefixes else 0, can_cut=backend.can_cut_saved)
        self._scheduler = Scheduler(
            self._cache,
            self._retained,
            backend.n_parallel,
            default_max_tokens,
            shares_prefixes=backend.shares_prefixes,
        )
        self._next_batch = partial(
            next_batch, n_batch=backend.n_batch, n_outputs=backend.n_outputs, prefill_chunk=prefill_chunk
        )
        self._outbox = Outbox(backend, clock)
        self._passed: Prompt | None = None  # in the last batch
        self._evaluated_at = 0.0  # on the clock; of the last decode
        self._finished: list[Sequence] = []  # to be released
        self._lock = threading.Lock()  # of the next three
        self._failure: SrbError | None = None
        self._mail: list[ActiveRequest | _Abort] = []
        self._doomed: set[str] = set()  # the requests whose abort is in the mail
        self._totals = Totals()

    # From any thread

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's vocabulary."""
        return self._tokenizer

    @property
    def embedder(self) -> Embedder | None:
        """What makes embeddings, where these are wanted."""
        return self._backend.embedder

    def tokenize(self, text: str, *, is_prompt: bool = True) -> tuple[int, ...]:
        """The tokens of a text; special tokens in it are parsed. A prompt gets BOS where the model wants it.

        Raises `InvalidRequestError` for an empty text, one that isn't valid Unicode, and one too long for the context.
        """
        if not text:
            raise InvalidRequestError("prompt must not be empty", param="prompt")
        try:
            n_bytes = len(text.encode())
        except UnicodeEncodeError as error:
            raise InvalidRequestError(
                f"prompt is not valid Unicode: half a surrogate pair at character {error.start}",
                param="prompt",
            ) from None
        least = n_bytes // self._tokenizer.longest_piece
        if least > self._cache.n_cells:  # said without tokenizing, which takes seconds for megabytes
            raise self._scheduler.too_long(f"at least {least}")
        return self._tokenizer.tokenize(text, is_prompt=is_prompt)

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's chat template, if it has one."""
        return self._backend.chat_template

    def add_request(self, request: CompletionRequest) -> None:
        """Takes a request; its events come from `step`. Raises `InvalidRequestError` if it can never run."""
        for tokens in request.prompts:
            self._check_tokens("prompt", tokens)
        for params in request.branches:
            self._check_tokens("logit_bias", [token for token, _ in params.logit_bias])
        self._scheduler.check(request)
        compiled = self._backend.compile(request.branches)
        active = ActiveRequest(request, compiled, self._clock())
        with self._lock:
            if not self._failure:
                self._mail.append(active)
                return
        compiled.close()
        raise self._failure

    def _check_tokens(self, param: str, tokens: Collection[int]) -> None:
        n_vocab = self._tokenizer.n_vocab
        if tokens and not (min(tokens) >= 0 and max(tokens) < n_vocab):
            bad = next(token for token in tokens if not 0 <= token < n_vocab)
            raise InvalidRequestError(
                f"{param} has the token id {bad!s:.60}; the model's ids go from 0 to {n_vocab - 1}", param=param
            )

    def abort(self, request_id: str, index: int | None = None, reason: AbortReason = "cancelled") -> None:
        """Ends a request, or the alternative `index` of it, at the next step. Does nothing if it has ended."""
        with self._lock:
            self._mail.append(_Abort(request_id, index, reason))
            if index is None:
                self._doomed.add(request_id)

    # From the thread that calls step()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._mail or self._finished or self._scheduler.running or self._scheduler.waiting)

    def stats(self) -> EngineStats:
        """What the engine holds now, and what it has done."""
        return EngineStats.of(
            self._totals,
            sequences=self._scheduler.leased,
            max_sequences=self._backend.n_parallel,
            cells=self._cache.leased_cells,
            cells_shared=self._scheduler.shared_cells,
            max_cells=self._cache.n_cells,
            retained_bytes=self._retained.size,
            max_retained_bytes=self._retained.max_bytes,
        )

    def step(self) -> list[Event]:
        """Does the next piece of work and returns what happened, in order; an empty list if there was nothing to do.

        What is known without evaluating anything (who was admitted, who was aborted, the first tokens of a prompt that
        was retained) is returned before the next evaluation, which may take long. A fault of the backend ends the
        requests that it struck, with events; other exceptions are bugs.
        """
        self._release()
        self._read_mail()
        self._admit()
        if not self._outbox and len(plan := self._next_batch(self._scheduler.prompts, passed=self._passed)):
            self._passed = plan.passed
            self._run(plan)
        return self._outbox.take()

    def fail(self, error: SrbError) -> list[Event]:
        """Ends every request with this error and returns the events; `add_request` raises it from now on.

        For an engine that is broken: the backend isn't touched, and there must be no further step.
        """
        with self._lock:
            self._failure = error
            mail = [message for message in self._mail if isinstance(message, ActiveRequest)]
        for active in (*self._scheduler.running, *self._scheduler.waiting, *mail):
            self._outbox.fail(active, error)
        return self._outbox.take()

    # The life of a request

    def _read_mail(self) -> None:
        with self._lock:
            mail, self._mail, self._doomed = self._mail, [], set()
        for message in mail:
            if isinstance(message, ActiveRequest):
                self._scheduler.add(message)
            elif active := self._scheduler.find(message.request_id):
                self._abort(active, message.index, message.reason)

    def _abort(self, active: ActiveRequest, index: int | None, reason: AbortReason) -> None:
        """Ends one sequence or all; one that is ended alone while the request waits stops right after its start."""
        doomed = [seq for seq in active.living if index is None or seq.index == index]
        if active.admitted is None and index is not None:
            active.early_aborts |= {seq.index: reason for seq in doomed}
            doomed = active.living if len(active.early_aborts) == active.request.count else []
        if doomed:
            self._totals.aborts[reason] = self._totals.aborts.get(reason, 0) + 1
        for seq in doomed:
            self._finish(seq, "abort", reason)

    def _admit(self) -> None:
        """Starts what there is room for, with what is known of it."""
        was_empty = self._cache.leased_cells == 0
        prompts = self._scheduler.admit(self._clock())
        if was_empty and prompts:
            self._backend.prepare(
                [(len(each.tokens), len(each.living), max(seq.max_tokens for seq in each.living)) for each in prompts]
            )
        for prompt in prompts:
            self._totals.prompt_tokens += len(prompt.tokens)
            if prompt.hit:
                self._restore(prompt, prompt.hit)
                prompt.hit = None
        self._share_prefixes()
        for active in dict.fromkeys(prompt.active for prompt in prompts):
            if active.admitted is None:
                self._start(active)
        self._begin()

    def _start(self, active: ActiveRequest) -> None:
        active.admitted = self._clock()
        self._outbox.start(active)
        for index, reason in active.early_aborts.items():
            self._abort(active, index, reason)
        for prompt in active.prompts:
            if not active.request.scores_prompt:
                self._outbox.precede(prompt)

    def _restore(self, prompt: Prompt, hit: Hit) -> None:
        """Puts what was retained of a prompt back into cells."""
        assert prompt.seq_id is not None
        for state, start, end in hit.pieces:
            if start < end and not self._backend.restore(state, prompt.seq_id, start, end):
                break  # it is evaluated again
            self._add_cached(prompt, end)
        if prompt.evaluated == len(prompt.tokens):
            prompt.logits = hit.logits

    def _share_prefixes(self) -> None:
        """Forks prompts off those that they share a beginning with, where these have come that far."""
        for prompt in self._scheduler.sharing:
            assert prompt.source
            source, n_tokens = prompt.source
            if source.evaluated >= n_tokens:
                self._fork(source, prompt, n_tokens)
                self._add_cached(prompt, n_tokens)
                prompt.source = None
                if n_tokens == len(prompt.tokens):
                    assert isinstance(source, Prompt)
                    prompt.logits = source.logits

    def _add_cached(self, prompt: Prompt, end: int) -> None:
        self._totals.prompt_tokens_cached += end - prompt.evaluated
        prompt.evaluated = prompt.cached = end

    def _fork(self, source: Prompt | Sequence, target: Prompt | Sequence, n_tokens: int) -> None:
        assert source.seq_id is not None
        assert target.seq_id is not None
        self._backend.fork(source.seq_id, target.seq_id, n_tokens)
        self._totals.forks += 1

    def _run(self, plan: Plan) -> None:
        """Evaluates a batch and draws a token for each of its sequences."""
        self._totals.steps += 1
        self._totals.rows += len(plan.rows)
        began = self._clock()
        try:
            if not self._decode(plan):
                return  # everybody in the batch is being aborted: the next step reads it in the mail
        except BackendError as error:
            self._totals.last_error = error.message
            for active in plan.requests:
                self._outbox.error(active, None, error)
                for seq in active.living:
                    self._finish(seq, "error", None)
            return
        self._evaluated_at = self._clock()
        seconds = self._evaluated_at - began
        self._totals.predicted_seconds += seconds * len(plan.rows) / len(plan)
        self._totals.prompt_seconds += seconds * (1 - len(plan.rows) / len(plan))
        for prompt, n_tokens, row in plan.chunks:
            if prompt.active.request.scores_prompt:
                self._outbox.score(prompt, n_tokens, row)
            prompt.evaluated += n_tokens
            self._totals.prompt_tokens_evaluated += n_tokens
            if prompt.evaluated == len(prompt.tokens):
                prompt.logits = self._backend.logits(row).copy()
        self._outbox.progress(prompt.active for prompt, _, _ in plan.chunks)
        self._share_prefixes()
        for seq, row in plan.rows:
            self._draw(seq, self._backend.logits(row))
        self._begin()
        self._observe("decode", seconds)
        self._observe("overhead", self._clock() - self._evaluated_at)

    def _decode(self, plan: Plan) -> bool:
        """Evaluates a batch; if that fails, a second time, without what the first has left in the cells."""
        interrupted = None if plan.rows else self._is_unwanted
        try:
            return self._backend.decode(plan.batch, interrupted)
        except BackendError as error:
            self._totals.last_error = error.message
            for holder in plan.holders:
                assert holder.seq_id is not None
                if not self._backend.truncate(holder.seq_id, holder.evaluated):
                    raise
            return self._backend.decode(plan.batch, interrupted)

    def _is_unwanted(self) -> bool:
        """Whether every running request is being aborted, so that a long evaluation needn't go on."""
        with self._lock:
            return all(active.id in self._doomed for active in self._scheduler.running)

    def _begin(self) -> None:
        """Forks evaluated prompts into the sequences that there is room for, and draws the first tokens of these."""
        for active in self._scheduler.running.copy():
            for prompt in active.prompts:
                if prompt.logits is None:
                    continue
                beginning = [seq for seq in prompt.living if seq.seq_id is not None and not seq.tokens]
                if beginning and active.evaluated is None and all(each.logits is not None for each in active.prompts):
                    active.evaluated = self._clock()
                for seq in beginning:
                    self._fork(prompt, seq, len(prompt.tokens))
                    self._draw(seq, prompt.logits)

    def _draw(self, seq: Sequence, logits: Logits) -> None:
        """Draws the next token of a sequence, and sees what comes of it."""
        prompt, active, request = seq.prompt, seq.prompt.active, seq.prompt.active.request
        if seq.max_tokens == 0:
            self._finish(seq, "length", None)
            return
        try:
            if seq.sampler is None:
                seq.sampler = self._backend.sampler(seq.params, active.compiled, prompt.tokens)
            is_first = seq.length == 0
            token = seq.sampler.sample(logits, prompt.first_tokens if is_first and request.distinct else ())
            reported = self._outbox.report(seq, token, logits)
        except BackendError as error:
            self._outbox.error(active, seq.index, error)
            self._finish(seq, "error", None)
            return
        if is_first:
            prompt.first_tokens.add(token)
            if not active.has_tokens:
                active.has_tokens = True
                self._observe("first_token", self._clock() - active.arrived)
        else:
            self._observe("next_token", self._evaluated_at - seq.drawn_at)
        seq.drawn_at = self._evaluated_at
        seq.tokens.append(token)
        self._totals.tokens_generated += 1
        self._outbox.drawn(seq, token, reported)
        if self._tokenizer.is_end(token):
            self._finish(seq, "stop", None)
        elif seq.text.matched:
            self._finish(seq, "stop", seq.text.matched)
        elif seq.length == seq.max_tokens:
            self._finish(seq, "length", None)

    def _finish(self, seq: Sequence, finish_reason: FinishReason, stop_reason: str | None) -> None:
        """Ends a sequence, and its request with the last one."""
        active = seq.prompt.active
        self._outbox.stop(seq, finish_reason, stop_reason)
        seq.finish_reason = finish_reason
        self._finished.append(seq)
        if not active.living:
            active.compiled.close()
            self._scheduler.remove(active)
            self._outbox.done(active)

    def _release(self) -> None:
        """Gives back what finished sequences have leased, and what their prompts have after the last of them.

        That is done after their events were taken, since keeping what they have evaluated takes a while.
        """
        finished, self._finished = self._finished, []
        for seq in finished:
            prompt = seq.prompt
            if seq.sampler:
                seq.sampler.close()
                seq.sampler = None
            if seq.seq_id is not None:
                if prompt.active.request.cache_prompt and seq.finish_reason != "error":
                    self._retain(seq)
                self._backend.remove(seq.seq_id)
                self._scheduler.release(seq)
            if prompt.seq_id is not None and not prompt.living:
                if bequest := self._scheduler.bequeath(prompt):
                    heir, n_tokens = bequest
                    if n_tokens:
                        self._fork(prompt, heir, n_tokens)
                        self._add_cached(heir, n_tokens)
                self._backend.remove(prompt.seq_id)
                self._scheduler.release(prompt)

    def _retain(self, seq: Sequence) -> None:
        """Keeps what a sequence and its prompt have evaluated for those that begin alike."""
        prompt, save = seq.prompt, self._backend.save
        if self._retained.max_bytes and prompt.logits is not None:
            if prompt.seq_id is not None:
                self._retained.add(prompt.tokens, partial(save, prompt.seq_id), prompt.logits)
            if len(seq.tokens) > 1:
                assert seq.seq_id is not None
                self._retained.add(seq.evaluated_tokens, partial(save, seq.seq_id))
