"""`Sampling`: each sequence of a prompt draws its tokens, one in each step."""

from collections.abc import Sequence as Many

from srb.engine.backend import Logits
from srb.engine.constraints.base import SamplingInput
from srb.engine.decoding.strategy import PromptStrategy
from srb.engine.sequence import Sequence
from srb.errors import BackendError

# `NegativeStrategy`: the way of a prompt whose sequences are companions, which have the tokens that their leaders draw.


class NegativeStrategy(PromptStrategy):
    """Has no rows: those of its sequences come together with those of their leaders."""

    def lost(self, row: Sequence | None) -> list[Sequence]:
        """The leaders, which can't go on without their companions."""
        return [seq.positive for seq in self._prompt.living if seq.positive]


class Sampling(PromptStrategy):
    """Draws the next token of a sequence from its logits, as its rules let it, and ends it where its text ends."""

    is_divisible = True

    @property
    def rows(self) -> list[Sequence]:
        """See `DecodingStrategy.rows`."""
        return [seq for seq in self._prompt.sequences if seq.state == "running"]

    def begin(self, seq: Sequence) -> None:
        """See `DecodingStrategy.begin`. The next token is drawn from logits that were kept: those of the prompt,
        mostly."""
        for each in seq.group:
            if not each.has_begun:
                self._tools.cells.fork(each)
        for each in seq.group:
            each.state, each.n_pending_recompute = "running", 0
        first, *beside = self._tools.memory.logits(seq)
        self.take(seq, first, beside)

    def take(self, seq: Sequence, logits: Logits, beside: Many[Logits]) -> None:
        """See `DecodingStrategy.take`. Draws a token, unless the row was one that the sequence had drawn before."""
        if seq.state != "running":
            return
        if seq.max_tokens == 0:
            self._tools.decoding.finish(seq, "length", None)
            return
        if seq.n_pending_recompute:  # it evaluates tokens again that it has drawn before, so there is nothing to draw
            for each in seq.group:
                each.n_pending_recompute -= 1
            if len(seq.computed_tokens) == seq.n_final:
                self._tools.memory.keep(seq, logits, beside)
            return
        try:
            token, n_back = self._draw(seq, SamplingInput(logits, beside))
        except BackendError as error:
            self.fail(seq, error)
            return
        if len(seq.rollback_window) + n_back == 1:  # this token is the first that may be taken back
            self._tools.memory.keep(seq, logits, beside)
        self._go_on(seq, token, n_back)

    def _draw(self, seq: Sequence, draw: SamplingInput) -> tuple[int, int]:
        """Draws a token, and returns how many of the last tokens are to be taken back, too. Raises `BackendError`."""
        output, backend = self._tools.output, self._tools.backend
        if seq.sampler is None:
            seq.sampler = self.new_sampler(seq.params, (*seq.resumed_tokens, *seq.tokens))
        for constraint in seq.constraints:
            constraint.before(draw)
        if seq.may_go_back:
            seq.sampler.hold(len(seq.rollback_window))
        token = seq.sampler.sample(draw.logits, draw.excluded, draw.biases)
        reported = self._active.report.of(seq, token, draw.model)
        piece = output.piece(seq, token, seq.length)
        is_last = backend.tokenizer.is_end(token) or len(seq.tokens) + 1 == seq.max_tokens
        n_back = n_held = 0
        for constraint in seq.constraints:
            n_back = max(n_back, constraint.after(draw, token, piece, is_last=is_last))
            n_held = max(n_held, constraint.n_held)
        self._measure(seq)
        seq.tokens.append(token)
        seq.rollback_window.append((token, reported, piece))
        if n_back:
            del seq.rollback_window[-n_back:]
        while len(seq.rollback_window) > n_held:
            output.goes_on(seq, *seq.rollback_window.pop(0))
        return token, n_back

    def _measure(self, seq: Sequence) -> None:
        tools, active = self._tools, self._active
        tools.totals.tokens_generated += 1
        if not active.has_tokens:
            active.has_tokens = True
            tools.observe("first_token", tools.clock() - active.arrived)
        elif seq.tokens:
            tools.observe("next_token", tools.decoding.now - seq.sampled_at)
        seq.sampled_at = tools.decoding.now

    def _go_on(self, seq: Sequence, token: int, n_back: int) -> None:
        """Lets a sequence go back, end, or have its next row."""
        finish = self._tools.decoding.finish
        if n_back:
            self._go_back(seq, n_back)
        elif self._tools.backend.tokenizer.is_end(token):
            finish(seq, "stop", None)
        elif seq.text.matched:
            finish(seq, "stop", seq.text.matched)
        elif len(seq.tokens) == seq.max_tokens:
            finish(seq, "length", None)
        else:
            self._tools.memory.move_on(seq)

    def _go_back(self, seq: Sequence, n_tokens: int) -> None:
        """Takes the last tokens of a sequence back. Another one is drawn in place of the first of them.

        Logits are kept only where held-back text begins: a copy for each token of it would mostly be made in vain. So
        behind another token, the next step draws, and this token is evaluated again before.
        """
        assert seq.sampler
        del seq.tokens[-n_tokens:]
        for constraint in seq.constraints:
            constraint.taken_back()
        seq.sampler.go_back(n_tokens)
        self._tools.memory.go_back(seq)
        for each in seq.group:
            each.saved = min(each.saved, each.n_computed)
        if not seq.tokens or seq.n_pending_recompute < 0:  # nothing is evaluated again: the logits were kept
            seq.state = "prefilling"
            self._tools.scheduler.prefilling.append(seq)
