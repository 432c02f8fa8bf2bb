"""`Sampling`: each sequence of a prompt samples its tokens, one in each step.

`Scoring` does the same with given tokens, for their log-probabilities.
"""

from collections import abc
from dataclasses import replace

from srb.engine.backend import Logits
from srb.engine.constraints.base import SamplingInput
from srb.engine.decoding.base import DecodingStrategy, EngineParts
from srb.engine.sequence import Prompt, Sequence
from srb.errors import BackendError


class Sampling(DecodingStrategy[Sequence]):
    """Samples the next token of each sequence, as its constraints allow, and ends the sequence where its text ends."""

    is_divisible = True

    @property
    def rows(self) -> list[Sequence]:
        return [seq for seq in self._prompt.sequences if seq.state == "running"]

    def begin_sequence(self, seq: Sequence) -> None:
        """Fork a sequence off its prompt, and sample from stored logits: mostly those of the prompt's last token."""
        for each in seq.group:
            if not each.is_forked:
                self._parts.cells.fork(each)
            each.state = "running"
        self._sample_next(seq, *self._parts.rollback.logits(seq))

    def process_logits(self, seq: Sequence, logits: Logits, negative_logits: abc.Sequence[Logits]) -> None:
        """Sample a token, unless the sequence has the next one already, and evaluates it again."""
        if seq.state != "running":
            return
        for each in seq.group:
            each.n_own_computed += 1
        if seq.n_own_computed == len(seq.tokens):
            self._sample_next(seq, logits, *negative_logits)
        elif seq.n_own_computed == seq.n_final:  # it computes tokens again, and comes to those that are held
            self._parts.rollback.mark(seq, logits, negative_logits)

    def after_step(self) -> None:
        """Sample from stored logits where a rollback has left no token to evaluate."""
        for seq in self.rows:
            while seq.state == "running" and seq.n_own_computed == len(seq.tokens):
                self._sample_next(seq, *self._parts.rollback.logits(seq))

    def _sample_next(self, seq: Sequence, logits: Logits, *negative_logits: Logits) -> None:
        if seq.max_tokens == 0:
            self._parts.runner.finish(seq, "length", None)
            return
        n_back = 1
        while n_back == 1:  # that token isn't evaluated yet, so another one is sampled from the same logits
            try:
                token, n_back = self._sample(seq, SamplingInput(logits, negative_logits))
            except BackendError as error:
                self.fail_sequence(seq, error)
                return
        if n_back:
            self._parts.rollback.go_back(seq)
            return
        if len(seq.rollback_window) == 1:  # this token is the first that may be taken back
            self._parts.rollback.mark(seq, logits, negative_logits)
        self._go_on(seq, token)

    def failed_sequences(self, row: Sequence | None) -> list[Sequence]:
        return self._prompt.living if row is None else [row]

    def _sample(self, seq: Sequence, inputs: SamplingInput) -> tuple[int, int]:
        """Sample a token, and return it with the number of tokens that were taken back. Raises `BackendError`."""
        output = self._parts.output
        for constraint in seq.constraints:
            constraint.before_sampling(inputs)
        token = self._next_token(seq, inputs)
        details = self._active.report.details(seq, token, inputs.model_logits)
        piece = output.piece(seq, token, seq.length)
        is_last = self.is_end(seq.params, token) or len(seq.tokens) + 1 == seq.max_tokens
        n_back = rollback_window = 0
        for constraint in seq.constraints:
            n_back = max(n_back, constraint.after_sampling(inputs, token, piece, is_last=is_last))
            rollback_window = max(rollback_window, constraint.rollback_window)
        self._measure(seq)
        seq.tokens.append(token)
        seq.rollback_window.append((token, details, piece))
        if n_back:
            self._take_back(seq, n_back)
        while len(seq.rollback_window) > rollback_window:
            output.add_token(seq, *seq.rollback_window.pop(0))
        return token, n_back

    def _next_token(self, seq: Sequence, inputs: SamplingInput) -> int:
        if seq.sampler is None:
            seq.sampler = self.new_sampler(seq.params, (*seq.resumed_tokens, *seq.tokens))
        if seq.may_go_back:
            seq.sampler.hold(len(seq.rollback_window))
        given = inputs.logits, inputs.excluded, inputs.biases
        if len(seq.tokens) >= len(seq.replayed):
            return seq.sampler.sample(*given)
        token = seq.replayed[len(seq.tokens)]
        seq.sampler.sample_again(token, *given)
        return token

    def _measure(self, seq: Sequence) -> None:
        parts, active = self._parts, self._active
        parts.totals.tokens_generated += 1
        if not active.has_tokens:
            active.has_tokens = True
            parts.observe("first_token", parts.clock() - active.arrived)
        elif seq.tokens:
            parts.observe("next_token", parts.runner.now - seq.sampled_at)
        seq.sampled_at = parts.runner.now

    def _take_back(self, seq: Sequence, n_tokens: int) -> None:
        """Take back the last tokens of a sequence. Another token is then sampled in place of the first of them."""
        assert seq.sampler
        del seq.rollback_window[-n_tokens:], seq.tokens[-n_tokens:]
        for constraint in seq.constraints:
            constraint.rolled_back()
        seq.sampler.go_back(n_tokens)

    def _go_on(self, seq: Sequence, token: int) -> None:
        """End a sequence, or let it have its next row."""
        finish = self._parts.runner.finish
        if self.is_end(seq.params, token):
            finish(seq, "stop", self.stop_reason(token))
        elif seq.text.matched:
            finish(seq, "stop", seq.text.matched)
        elif len(seq.tokens) == seq.max_tokens:
            finish(seq, "length", None)
        else:
            self._parts.rollback.stayed(seq)


class NegativeStrategy(DecodingStrategy[Sequence]):
    """The strategy of a negative prompt. Its sequences get the tokens, and share the batches, of their positives."""

    def failed_sequences(self, row: Sequence | None) -> list[Sequence]:
        return [seq.positive for seq in self._prompt.living if seq.positive]


class Scoring(Sampling):
    """Gives each alternative the tokens of its candidate, and reports their log-probabilities.

    An alternative is forked off its prompt as for sampling. But all of its tokens are draft tokens, up to 128 in a
    batch, except the last, which is never evaluated. With blocks (`Backend.block_size`), each has a batch of its own.
    """

    def __init__(self, prompt: Prompt, parts: EngineParts) -> None:
        super().__init__(prompt, parts)
        for seq in prompt.sequences:
            seq.params = replace(seq.params, max_tokens=len(self._active.request.candidates[seq.index]))

    def before_step(self) -> None:
        for seq in self.rows if not self._prompt.block_size else ():
            n_given = len(seq.resumed_tokens) + seq.n_own_computed + 1  # fewer than `length` if some are computed again
            seq.draft_tokens = self._active.request.candidates[seq.index][n_given:-1]

    def _next_token(self, seq: Sequence, inputs: SamplingInput) -> int:
        return self._active.request.candidates[seq.index][seq.length]
