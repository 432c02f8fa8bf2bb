"""`Bridge`: draws candidates for the text before a suffix, scores the suffix after each, and returns the n best.

The candidates are drawn from the prompt alone. When one has ended, the tokens of the suffix are evaluated after it,
and removed again. The n candidates after which the suffix is the most probable are returned. An example with two
candidates, and the suffix "c d":

    prompt ─┬─ "a b"   (seq 1)     "a b" + "c d": log p("c" | "a b") + log p("d" | "a b c")
            └─ "x y"   (seq 2)     "x y" + "c d": the same, after "x y"

The candidates have the rows (`choosing.py`). If there are no more of them than alternatives, alternative k is candidate
k, and its text is streamed as it is drawn. Otherwise all texts come at the end. `stop` comes when all candidates are
scored, because only then their ranks are known.

After an interruption all candidates are drawn again, but texts that were streamed go on with what they have.
"""

import math
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import replace

from srb.engine.asking.infill import n_rows_here
from srb.engine.asking.sampling_params import MAX_SEED
from srb.engine.backend import Logits
from srb.engine.ports import Rule
from srb.engine.sequence import Prompt, Sequence
from srb.engine.telling.events import FinishReason, StopEvent
from srb.engine.ways.choosing import Choosing
from srb.engine.ways.middle import Middle
from srb.engine.ways.suffix import Probe, Scorer
from srb.engine.ways.tools import Tools
from srb.errors import BackendError

GLANCE = 16
"""How many tokens of the suffix are scored where a candidate may end, for `stop_at_suffix`."""


class Bridge(Choosing):
    """Draws the candidates of a prompt, and gives its sequences the best of them."""

    param = "suffix"

    def __init__(self, prompt: Prompt, tools: Tools) -> None:
        super().__init__(prompt, tools)
        request = self._active.request
        self.n_rows = n_rows_here(request, tools.backend)
        self._n = request.n_rows
        self._suffix = request.scored_suffix
        self._stops = request.stop_at_suffix
        self._streams = self._n == len(request.branches) and not self._stops
        self._middles: list[Middle] = []
        self._scorer = Scorer(prompt, tools)
        self._n_drawn = 0

    @property
    def n_drawn(self) -> int:  # type: ignore[override]
        """See `Way.n_drawn`: those of all candidates."""
        return self._n_drawn

    @property
    def n_begun(self) -> int:  # type: ignore[override]
        """See `Way.n_begun`."""
        return sum(len(seq.begun) for seq in self._prompt.sequences) if self._streams else 0

    @property
    def rows(self) -> list[Middle | Probe]:
        """See `Way.rows`."""
        if not self._prompt.living:
            return []
        return [*(each for each in self._wanted() if each.state == "drawing"), *self._scorer.rows]

    def begin(self, seq: Sequence) -> None:
        """See `Way.begin`."""
        super().begin(seq)
        seq.rules.append(Closing(self._close))

    def take(self, row: Middle | Probe, logits: Logits, beside: Many[Logits]) -> None:
        """See `Way.take`."""
        if not self._prompt.living:
            return
        if isinstance(row, Probe):
            self._scorer.take(row, logits)
        elif row.state == "drawing":
            row.n_held += 1
            if row.n_held == len(row.tokens):  # otherwise it evaluates tokens that it had before an interruption
                self._draw(row, logits)

    def before_step(self) -> None:
        """Ends the way if the last alternative that the others have waited for was aborted."""
        if self._middles:
            self.after_step()

    def after_step(self) -> None:
        """Takes the scores that are complete. Returns the best candidates when all have ended."""
        if not self._prompt.living:
            return
        if not self._middles:
            self._begin()
        for probe in self._scorer.follow(self._wanted):
            self._scored(probe)
        if self._prompt.living and all(each.state == "ended" for each in self._wanted()):
            self._finish()

    def lost(self, row: Middle | Probe | None) -> list[Sequence]:  # type: ignore[override]
        """The alternative whose candidate it is. If that isn't known, all: without it, others would be returned."""
        middle = row.middle if isinstance(row, Probe) else row
        if middle is None or middle.owner is None:
            return self._prompt.living
        return [] if middle.owner.is_over else [middle.owner]

    def _begin(self) -> None:
        prompt, branches = self._prompt, self._active.request.branches
        assert prompt.seq_id is not None
        assert prompt.logits is not None
        ids, self._scorer.spare = prompt.row_ids[: self._n], next(iter(prompt.row_ids[self._n :]), None)
        n = len(branches)
        owners = {seq.index % n: seq for seq in prompt.living} if self._streams else {}
        for number in owners or range(self._n):
            params, owner = branches[number % n], owners.get(number)
            middle = Middle(
                self,
                replace(params, seed=(params.seed + number - number % n) % (MAX_SEED + 1)),
                ids[number],
                n_before=len(prompt.tokens),
                text=self.new_text(),
                owner=owner,
                at_once=not prompt.block_size,
            )
            self._tools.cells.fork_seq(prompt.seq_id, ids[number], len(prompt.tokens))
            self._middles.append(middle)
            for token in owner.begun if owner else ():
                middle.push(token, self._tools.outbox.piece(prompt.sequences[0], token, len(middle.tokens)))
            if not self._ends(middle) and not middle.tokens:
                self._draw(middle, prompt.logits)

    def _wanted(self) -> list[Middle]:
        """The candidates without those of alternatives that have ended."""
        return [each for each in self._middles if not (each.owner and each.owner.is_over)]

    def _draw(self, middle: Middle, logits: Logits) -> None:
        """Draws the next token of a candidate, and lets it end, or scores the suffix there, if it is time."""
        prompt, tools = self._prompt, self._tools
        try:
            if middle.sampler is None:
                middle.sampler = self.new_sampler(middle.params, tuple(middle.tokens))
            token = middle.sampler.sample(logits)
            reported = self._active.report.of(prompt.sequences[0], token, logits)
        except BackendError as error:
            self._fail(middle, error)
            return
        piece = tools.outbox.piece(prompt.sequences[0], token, len(middle.tokens))
        middle.push(token, piece)
        middle.reported.append(reported)
        self._n_drawn += 1
        tools.totals.tokens_generated += 1
        if middle.owner:
            middle.owner.tokens.append(token)
            tools.outbox.goes_on(middle.owner, token, reported, piece)
        if not self._ends(middle, logits) and self._stops and middle.may_end:
            middle.n_looked, middle.state = len(middle.tokens), "scoring"
            self._scorer.add(middle, len(middle.tokens), b"", self._suffix[:GLANCE])

    def _ends(self, middle: Middle, logits: Logits | None = None) -> bool:
        """Ends a candidate if its text ends where it is. logits: those that its last token was drawn from, if at hand.

        A text that was streamed may have had its end already when the request was interrupted.
        """
        n_tokens = len(middle.tokens)
        if n_tokens and self._tools.backend.tokenizer.is_end(middle.tokens[-1]):
            self._end(middle, "stop", n_tokens - 1, b"", logits)
        elif middle.text and middle.text.matched:
            middle.stop_reason = middle.text.matched
            self._end(middle, "stop", *middle.shown())
        elif n_tokens == self._prompt.sequences[0].max_tokens:
            self._end(middle, "length", *middle.shown())
        return middle.finish_reason is not None

    def _end(self, middle: Middle, reason: FinishReason, kept: int, rest: bytes, logits: Logits | None = None) -> None:
        """Ends a candidate. The suffix is scored after its first `kept` tokens and the bytes `rest`."""
        middle.close()
        middle.finish_reason, middle.state = reason, "scoring"
        self._scorer.add(middle, kept, rest, self._suffix, logits)

    def _scored(self, probe: Probe) -> None:
        """Takes the score of a candidate, which goes on, or has ended."""
        middle = probe.middle
        if self._stops and middle.cut_after_best(math.fsum(probe.logprobs[:GLANCE])):
            self._end(middle, "stop", len(middle.tokens), b"")
        elif middle.finish_reason is None:
            middle.state = "drawing"
        else:
            middle.state, middle.suffix_logprob = "ended", math.fsum(probe.logprobs)

    def _fail(self, middle: Middle, error: BackendError) -> None:
        """Ends a candidate that can't go on. It fails an alternative only if there is no other one left for that."""
        middle.close()
        middle.state, middle.finish_reason, middle.error = "ended", "error", error
        if middle.owner:
            self.fail(middle.owner, error)

    def _finish(self) -> None:
        """Gives the alternatives their texts, with the rank of each."""
        n = len(self._active.request.branches)
        whole = [each for each in self._wanted() if not each.error]
        best_first = sorted(whole, key=lambda each: -each.suffix_logprob)
        found = {each.owner.index % n: each for each in whole if each.owner} or dict(enumerate(best_first[:n]))
        for seq in self._prompt.living:
            if middle := found.get(seq.index % n):
                rank = best_first.index(middle) + 1
                self.give(seq, middle, suffix_logprob=middle.suffix_logprob, rank=rank)
            else:
                self.refuse(seq, next(each.error.message for each in self._middles if each.error))

    def _close(self) -> None:
        """Frees the samplers when the last alternative has ended."""
        if not self._prompt.living:
            for each in self._middles:
                each.close()


class Closing(Rule):
    """Calls `close` when an alternative has ended, for whatever reason."""

    def __init__(self, close: Callable[[], object]) -> None:
        self._close = close

    def ended(self, event: StopEvent) -> StopEvent:
        """See `Rule.ended`."""
        self._close()
        return event
