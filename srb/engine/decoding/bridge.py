"""`Bridge`: samples candidates for the text before a suffix, scores the suffix after each, and returns the n best.

The candidates are sampled from the prompt alone. When one has ended, the tokens of the suffix are evaluated after it,
and removed again. The n candidates after which the suffix is the most probable are returned. An example with two
candidates, and the suffix "c d":

    prompt ─┬─ "a b"   (seq 1)     "a b" + "c d": log p("c" | "a b") + log p("d" | "a b c")
            └─ "x y"   (seq 2)     "x y" + "c d": the same, after "x y"

The candidates have the rows. If there are no more of them than alternatives, alternative k is candidate k, and its text
is streamed. Otherwise all texts come at the end. `stop` comes when all candidates are scored, because only then their
ranks are known.

After an interruption all candidates are sampled again, but texts that were streamed keep their tokens.
"""

import math
import re
from codecs import getincrementaldecoder
from collections import abc
from dataclasses import replace
from typing import Literal

from srb.engine.backend import Logits, Sampler
from srb.engine.decoding.base import AnyStrategy, EngineParts
from srb.engine.decoding.search_base import CandidateStrategy, OwnRow, TextRow
from srb.engine.events import FinishReason, StopEvent
from srb.engine.limits import n_rows_here
from srb.engine.output.detokenizer import IncrementalDetokenizer
from srb.engine.request import MAX_REST
from srb.engine.sampling_params import MAX_SEED, SamplingParams
from srb.engine.sequence import Prompt, Sequence
from srb.errors import BackendError

_SENTENCE_END = re.compile(r"[.!?\u2026\u3002\uff01\uff1f][\"'\u201d\u2019\u00bb)\]*_]*\s*$|\n\s*$")
"""A text that ends here may be complete. "Mr." matches by mistake; the suffix is improbable there."""

_MIN_TOKENS = 8
"""The least number of tokens between two places where the suffix is scored."""

_PATIENCE = 2
"""With `stop_at_suffix`, a text ends when this many more sentences haven't made the suffix more probable."""

_TAIL = 16
"""The number of bytes that show whether a sentence ends there."""

_FIRST_TOKENS = 16
"""With `stop_at_suffix`, the number of tokens of the suffix that are scored where a candidate may end."""


class BridgeCandidate(TextRow):
    """A candidate for the text between the prompt and the suffix.

    Args:
        strategy: The bridge.
        prompt: The prompt that it continues.
        params: How it is sampled.
        seq_id: Where its cells are.
        text: Finds stop strings; None: there are none.
        owner: The sequence that streams this text; None: it isn't known yet whether the text will be returned.
    """

    def __init__(
        self,
        strategy: AnyStrategy,
        prompt: Prompt,
        params: SamplingParams,
        seq_id: int,
        text: IncrementalDetokenizer | None,
        owner: Sequence | None = None,
    ) -> None:
        super().__init__(strategy, prompt, [], seq_id=seq_id)
        self.params = params
        self.text = text
        self.owner = owner
        self.state: Literal["sampling", "scoring", "ended"] = "sampling"
        self.pieces: list[bytes] = []  # the bytes that each of its tokens adds to the text
        self.sampler: Sampler | None = None
        self.n_scored_at = 0  # the number of tokens that it had when the suffix was scored last
        self.scores: list[tuple[int, float]] = []  # at ends of sentences: its length, the suffix's log-probability
        self.suffix_logprob = -math.inf  # until it has ended and is scored
        self.error: BackendError | None = None

    def push(self, token: int, piece: bytes) -> None:
        """Append a token, and the bytes that it adds to the text."""
        self.tokens.append(token)
        self.pieces.append(piece)
        if self.text:
            self.text.push(piece)

    def close(self) -> None:
        """Free its sampler."""
        if self.sampler:
            self.sampler.close()
            self.sampler = None

    @property
    def ends_sentence(self) -> bool:
        """Whether a sentence ends with its last token, as far as can be seen there."""
        tail = b""
        for piece in reversed(self.pieces):
            tail = piece + tail
            if len(tail) >= _TAIL:
                break
        return _SENTENCE_END.search(tail.decode(errors="ignore")) is not None

    @property
    def may_end(self) -> bool:
        """Whether the suffix is to be scored after its last token."""
        return len(self.tokens) >= self.n_scored_at + _MIN_TOKENS and self.ends_sentence

    def cut_after_best(self, logprob: float) -> bool:
        """Cut it after the sentence that the suffix follows best, if that is known, and return whether it was cut.

        Args:
            logprob: The log-probability of the first tokens of the suffix after its last token.
        """
        if self.ends_sentence or self.finish_reason == "stop":
            self.scores.append((len(self.tokens), logprob))
        if not self.scores:
            return False
        best = max(range(len(self.scores)), key=lambda k: self.scores[k][1])
        n_tokens, _ = self.scores[best]
        is_known = self.finish_reason is not None or len(self.scores) - 1 - best >= _PATIENCE
        if not is_known or n_tokens == len(self.tokens):
            return False
        del self.tokens[n_tokens:], self.pieces[n_tokens:], self.details[n_tokens:]
        self.text, self.scores, self.stop_reason = None, [], "suffix"
        return True

    def shown(self) -> tuple[int, bytes]:
        """Return the part of its text that a client sees: the number of whole tokens, and the bytes after these.

        It ends before a stop string, or after one that is included, and before a character that isn't complete.
        """
        text = b"".join(self.pieces)
        if self.text is None or self.text.matched is None:
            decoder = getincrementaldecoder("utf-8")(errors="ignore")
            decoder.decode(text[-_TAIL:])
            end = len(text) - len(decoder.getstate()[0])
            if end == len(text):
                return len(self.tokens), b""
        else:
            stop, is_included = self.text.matched.encode(), self.text.matched in self.text.included
            end = text.find(stop)
            if end < 0:  # it has bytes that aren't UTF-8
                return len(self.tokens) - (not is_included), b""
            end += len(stop) if is_included else 0
        n_tokens = n_bytes = 0
        while n_bytes + len(self.pieces[n_tokens]) <= end:
            n_bytes += len(self.pieces[n_tokens])
            n_tokens += 1
        return n_tokens, text[n_bytes:end]


class SuffixRow(OwnRow):
    """A row that scores tokens of the suffix after the first tokens of a candidate.

    It evaluates them in the cells of the candidate or in a fork, from where they are removed again. The logits of the
    token before the suffix score its first token. So this token has to be evaluated, too, unless `first` is given.

    Args:
        n_tokens: The number of tokens of the candidate before the suffix.
        rest: Tokens between these and the suffix.
        first: The log-probability of the first token of the suffix, if it is known.
    """

    def __init__(
        self,
        candidate: BridgeCandidate,
        n_tokens: int,
        rest: abc.Sequence[int],
        suffix: abc.Sequence[int],
        first: float | None = None,
    ) -> None:
        tokens = [*candidate.tokens[:n_tokens], *rest[:MAX_REST], *suffix[:-1]]
        super().__init__(candidate.strategy, candidate.prompt, tokens)
        self.candidate = candidate
        self.logprobs = [] if first is None else [first]
        """Those of the suffix's tokens, as far as they are known."""
        self._n_of_candidate = n_tokens
        self._suffix = suffix
        self._n_before = n_tokens + len(rest[:MAX_REST])

    @property
    def n_tokens(self) -> int:
        """The number of tokens in its cells after the prompt."""
        return self.n_computed

    @property
    def is_done(self) -> bool:
        """Whether all of the suffix is scored."""
        return len(self.logprobs) == len(self._suffix)

    @property
    def n_shared(self) -> int:
        """The number of tokens in the candidate's cells that it can begin with."""
        return min(self._n_of_candidate, self._n_before - (not self.logprobs), self.candidate.n_computed)

    def advance(self) -> int | None:
        """Count a token as evaluated. Return the token of the suffix that its logits score, if any."""
        self.n_computed += 1
        place = self.n_computed - self._n_before
        return self._suffix[place] if 0 <= place < len(self._suffix) else None


class SuffixScorer:
    """Scores the suffix after the candidates of a prompt.

    The tokens of the suffix are evaluated in the cells of the candidate, and removed again. A model with a recurrent
    state or a sliding window can't take tokens out of its cells. There the suffix has a seq_id of its own, `spare_id`,
    in which it is evaluated after one candidate at a time, each forked into it.
    """

    def __init__(self, prompt: Prompt, parts: EngineParts) -> None:
        self.rows: list[SuffixRow] = []
        """The rows of the next batch."""
        self.spare_id: int | None = None
        self._waiting: list[SuffixRow] = []  # for `spare_id`, or for the next step
        self._prompt = prompt
        self._parts = parts

    def add(
        self,
        candidate: BridgeCandidate,
        n_tokens: int,
        rest: bytes,
        suffix: abc.Sequence[int],
        logits: Logits | None = None,
    ) -> None:
        """Score tokens of the suffix after the first `n_tokens` of a candidate and the bytes `rest`.

        Args:
            n_tokens: The number of its tokens before the suffix.
            rest: The bytes between these and the suffix.
            logits: Those after the last of these tokens, if they are at hand.
        """
        tokens: tuple[int, ...] = ()
        if text := rest.decode(errors="ignore"):
            tokens = self._parts.backend.tokenizer.tokenize(text, is_prompt=False, parse_special=False)
            tokens = tokens if len(tokens) <= MAX_REST else ()
        if not n_tokens + len(tokens):
            logits = self._prompt.logits
        first = None if logits is None else self._logprob(logits, suffix[0])
        self._waiting.append(SuffixRow(candidate, n_tokens, tokens, suffix, first))

    def process_logits(self, row: SuffixRow, logits: Logits) -> None:
        """Process the logits of a token that a row has evaluated."""
        token = row.advance()
        if token is not None:
            row.logprobs.append(self._logprob(logits, token))

    def scored(self, wanted: abc.Callable[[], abc.Collection[BridgeCandidate]]) -> abc.Iterator[SuffixRow]:
        """Yield the rows that have scored all, and begin the next ones. The caller may `add` others meanwhile."""
        while True:
            for row in [each for each in self.rows if each.is_done or each.candidate not in wanted()]:
                self.rows.remove(row)
                self._clean_up(row)
                if row.is_done:
                    yield row
            self._waiting = [each for each in self._waiting if each.candidate in wanted()]
            while self._waiting and (self.spare_id is None or not self.rows):
                row = self._waiting.pop(0)
                self._place(row)
                self.rows.append(row)
            if not any(each.is_done for each in self.rows):
                return

    def _logprob(self, logits: Logits, token: int) -> float:
        return self._parts.backend.logprobs(logits, token, 0)[0]

    def _place(self, row: SuffixRow) -> None:
        """Give a row cells with as many tokens before the suffix as possible."""
        candidate, prompt, backend = row.candidate, self._prompt, self._parts.backend
        assert candidate.seq_id is not None
        assert prompt.seq_id is not None
        row.n_computed = row.n_shared
        if self.spare_id is None:
            row.seq_id = candidate.seq_id
            backend.truncate(candidate.seq_id, row.position)
            return
        row.seq_id = self.spare_id
        source = candidate.seq_id
        if backend.continuable_from(source) > row.position:
            source, row.n_computed = prompt.seq_id, 0
        self._parts.cells.fork_seq(source, self.spare_id, row.position)

    def _clean_up(self, row: SuffixRow) -> None:
        """Remove what a row has evaluated."""
        candidate = row.candidate
        assert candidate.seq_id is not None
        if self.spare_id is not None:
            self._parts.backend.remove(self.spare_id)
        else:
            candidate.n_computed = min(candidate.n_computed, row.n_shared)
            self._parts.backend.truncate(candidate.seq_id, candidate.position)


class Bridge(CandidateStrategy[BridgeCandidate | SuffixRow]):
    """Samples the candidates of a prompt, and gives its sequences the best of them."""

    param = "suffix"

    def __init__(self, prompt: Prompt, parts: EngineParts) -> None:
        super().__init__(prompt, parts)
        request = self._active.request
        self.n_rows = n_rows_here(request, parts.backend)
        self._n = request.n_rows
        self._suffix = request.scored_suffix
        self._stops = request.stop_at_suffix
        self._streams = self._n == len(request.branches) and not self._stops
        self._candidates: list[BridgeCandidate] = []
        self._scorer = SuffixScorer(prompt, parts)
        self._n_sampled = 0

    @property
    def n_sampled(self) -> int:
        return self._n_sampled

    @property
    def n_resumed(self) -> int:
        """The number of tokens that were streamed before an interruption."""
        return super().n_resumed if self._streams else 0

    @property
    def rows(self) -> list[BridgeCandidate | SuffixRow]:
        if not self._prompt.living:
            return []
        return [*(each for each in self._wanted() if each.state == "sampling"), *self._scorer.rows]

    def process_logits(
        self, row: BridgeCandidate | SuffixRow, logits: Logits, negative_logits: abc.Sequence[Logits]
    ) -> None:
        if not self._prompt.living:
            return
        if isinstance(row, SuffixRow):
            self._scorer.process_logits(row, logits)
        elif row.state == "sampling":
            row.n_computed += 1
            if row.n_computed == len(row.tokens):  # otherwise it evaluates tokens that were streamed before
                self._sample(row, logits)

    def before_step(self) -> None:
        """Finish if the last alternative that the others were waiting for was aborted."""
        if self._candidates:
            self.after_step()

    def after_step(self) -> None:
        """Use the scores that are complete, and return the best candidates when all have ended."""
        if not self._prompt.living:
            return
        if not self._candidates:
            self._begin()
        for row in self._scorer.scored(self._wanted):
            self._set_score(row)
        if self._prompt.living and all(each.state == "ended" for each in self._wanted()):
            self._finish()

    def failed_sequences(self, row: BridgeCandidate | SuffixRow | None) -> list[Sequence]:
        """Return the sequence that streams the row's candidate, or all if it isn't known which ones get it."""
        candidate = row.candidate if isinstance(row, SuffixRow) else row
        if candidate is None or candidate.owner is None:
            return self._prompt.living
        return [] if candidate.owner.is_over else [candidate.owner]

    def stop_event(self, seq: Sequence, event: StopEvent) -> StopEvent:
        """Add the score and the rank. Free the samplers when the last alternative has ended."""
        if not self._prompt.living:
            for each in self._candidates:
                each.close()
        return super().stop_event(seq, event)

    def _begin(self) -> None:
        prompt, branches = self._prompt, self._active.request.branches
        assert prompt.seq_id is not None
        assert prompt.logits is not None
        ids, self._scorer.spare_id = prompt.row_ids[: self._n], next(iter(prompt.row_ids[self._n :]), None)
        n = len(branches)
        owners = {seq.index % n: seq for seq in prompt.living} if self._streams else {}
        for number in owners or range(self._n):
            params, owner = branches[number % n], owners.get(number)
            candidate = BridgeCandidate(
                self,
                prompt,
                replace(params, seed=(params.seed + number - number % n) % (MAX_SEED + 1)),
                ids[number],
                self.new_detokenizer(),
                owner,
            )
            self._parts.cells.fork_seq(prompt.seq_id, ids[number], len(prompt.tokens))
            self._candidates.append(candidate)
            for token in owner.resumed_tokens if owner else ():
                piece = self._parts.output.piece(prompt.sequences[0], token, len(candidate.tokens))
                candidate.push(token, piece)
            if not self._end_if_complete(candidate) and not candidate.tokens:
                self._sample(candidate, prompt.logits)

    def _wanted(self) -> list[BridgeCandidate]:
        """Return the candidates without those of alternatives that have ended."""
        return [each for each in self._candidates if not (each.owner and each.owner.is_over)]

    def _sample(self, candidate: BridgeCandidate, logits: Logits) -> None:
        """Sample the next token of a candidate. End it, or score the suffix there, if it is time."""
        prompt, parts = self._prompt, self._parts
        try:
            if candidate.sampler is None:
                candidate.sampler = self.new_sampler(candidate.params, tuple(candidate.tokens))
            token = candidate.sampler.sample(logits)
            details = self._active.report.details(prompt.sequences[0], token, logits)
        except BackendError as error:
            self._fail(candidate, error)
            return
        piece = parts.output.piece(prompt.sequences[0], token, len(candidate.tokens))
        candidate.push(token, piece)
        candidate.details.append(details)
        self._n_sampled += 1
        parts.totals.tokens_generated += 1
        if candidate.owner:
            candidate.owner.tokens.append(token)
            parts.output.add_token(candidate.owner, token, details, piece)
        if not self._end_if_complete(candidate, logits) and self._stops and candidate.may_end:
            candidate.n_scored_at, candidate.state = len(candidate.tokens), "scoring"
            self._scorer.add(candidate, len(candidate.tokens), b"", self._suffix[:_FIRST_TOKENS])

    def _end_if_complete(self, candidate: BridgeCandidate, logits: Logits | None = None) -> bool:
        """End a candidate if its text ends with its last token, and return whether it has ended.

        A text that was streamed may have been complete when the request was interrupted.

        Args:
            logits: Those that its last token was sampled from, if they are at hand.
        """
        n_tokens = len(candidate.tokens)
        if n_tokens and self.is_end(candidate.params, candidate.tokens[-1]):
            candidate.stop_reason = self.stop_reason(candidate.tokens[-1])
            n_shown = n_tokens if candidate.pieces[-1] else n_tokens - 1
            self._end(candidate, "stop", n_shown, b"", logits if n_shown < n_tokens else None)
        elif candidate.text and candidate.text.matched:
            candidate.stop_reason = candidate.text.matched
            self._end(candidate, "stop", *candidate.shown())
        elif n_tokens == self._prompt.sequences[0].max_tokens:
            self._end(candidate, "length", *candidate.shown())
        return candidate.finish_reason is not None

    def _end(
        self,
        candidate: BridgeCandidate,
        reason: FinishReason,
        n_tokens: int,
        rest: bytes,
        logits: Logits | None = None,
    ) -> None:
        """End a candidate, and score the suffix after its first `n_tokens` and the bytes `rest`."""
        candidate.close()
        candidate.finish_reason, candidate.state = reason, "scoring"
        self._scorer.add(candidate, n_tokens, rest, self._suffix, logits)

    def _set_score(self, row: SuffixRow) -> None:
        """Use a score: the candidate goes on, is cut, or has ended."""
        candidate = row.candidate
        if self._stops and candidate.cut_after_best(math.fsum(row.logprobs[:_FIRST_TOKENS])):
            self._end(candidate, "stop", len(candidate.tokens), b"")
        elif candidate.finish_reason is None:
            candidate.state = "sampling"
        else:
            candidate.state, candidate.suffix_logprob = "ended", math.fsum(row.logprobs)

    def _fail(self, candidate: BridgeCandidate, error: BackendError) -> None:
        """End a candidate that can't go on. Its alternative fails only if it has no other candidate."""
        candidate.close()
        candidate.state, candidate.finish_reason, candidate.error = "ended", "error", error
        if candidate.owner:
            self.fail_sequence(candidate.owner, error)

    def _finish(self) -> None:
        """Give the alternatives their texts, with the rank of each."""
        n = len(self._active.request.branches)
        whole = [each for each in self._wanted() if not each.error]
        best_first = sorted(whole, key=lambda each: -each.suffix_logprob)
        texts = {each.owner.index % n: each for each in whole if each.owner} or dict(enumerate(best_first[:n]))
        for seq in self._prompt.living:
            if text := texts.get(seq.index % n):
                rank = best_first.index(text) + 1
                self.finish_with(seq, text, suffix_logprob=text.suffix_logprob, rank=rank)
            else:
                self.refuse(seq, next(each.error.message for each in self._candidates if each.error))
