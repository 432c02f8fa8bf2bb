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
import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as Many
from dataclasses import replace
from typing import Literal

from srb.engine.backend import Logits, Sampler
from srb.engine.constraints.base import Constraint
from srb.engine.decoding.base import DecodingStrategy
from srb.engine.decoding.candidates import CandidateStrategy, OwnRow, TextRow
from srb.engine.decoding.strategy import EngineParts
from srb.engine.events import FinishReason, StopEvent
from srb.engine.infill import n_rows_here
from srb.engine.output.detokenizer import IncrementalDetokenizer
from srb.engine.request import MAX_REST
from srb.engine.sampling_params import MAX_SEED, SamplingParams
from srb.engine.sequence import Prompt, Sequence
from srb.errors import BackendError

# `Middle`: a candidate for the text between a prompt and a suffix.

_SENTENCE_END = re.compile(r"[.!?\u2026\u3002\uff01\uff1f][\"'\u201d\u2019\u00bb)\]*_]*\s*$|\n\s*$")
"""A text that ends here may be complete. "Mr." is one of its mistakes, which the suffix's likelihood tells."""

_MIN_TOKENS = 8
"""A sentence must end at least this many tokens after the last one where the suffix was scored."""

_PATIENCE = 2
"""With `stop_at_suffix`, a text ends once this many more sentences haven't made the suffix more probable."""

_TAIL = 16  # bytes: as much of a text as it takes to see where it ends


class Middle(TextRow):
    """A text that is drawn from the prompt, with a row of its own. Implements `srb.engine.ports.Row`.

    n_before: the length of the prompt, in tokens. text: looks for stop strings; None: there are none.
    owner: the sequence that streams this text; None: it isn't known whether the text will be returned.
    at_once: whether known tokens may be evaluated together.
    """

    def __init__(
        self,
        strategy: DecodingStrategy,
        params: SamplingParams,
        seq_id: int,
        *,
        n_before: int,
        text: IncrementalDetokenizer | None,
        owner: Sequence | None = None,
        at_once: bool = True,
    ) -> None:
        super().__init__(strategy, n_before, [], seq_id=seq_id, at_once=at_once)
        self.params = params
        self.text = text
        self.owner = owner
        self.state: Literal["drawing", "scoring", "ended"] = "drawing"
        self.pieces: list[bytes] = []  # what each of its tokens adds to the text
        self.sampler: Sampler | None = None
        self.n_looked = 0  # how many tokens it had when the suffix was scored last
        self.looks: list[tuple[int, float]] = []  # at ends of sentences: its length, and the suffix's log-probability
        self.suffix_logprob = -math.inf  # until it has ended and is scored
        self.error: BackendError | None = None

    def push(self, token: int, piece: bytes) -> None:
        """Takes its next token, and the bytes that this adds to the text."""
        self.tokens.append(token)
        self.pieces.append(piece)
        if self.text:
            self.text.push(piece)

    def close(self) -> None:
        """Frees its sampler. The next draw makes another one."""
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
        """Whether the suffix is to be scored where it is."""
        return len(self.tokens) >= self.n_looked + _MIN_TOKENS and self.ends_sentence

    def cut_after_best(self, glance: float) -> bool:
        """Cuts it after the sentence that the suffix follows best, if that is known. Returns whether it did so.

        glance: the log-probability of the beginning of the suffix where it is now.
        """
        if self.ends_sentence or self.finish_reason == "stop":
            self.looks.append((len(self.tokens), glance))
        if not self.looks:
            return False
        best = max(range(len(self.looks)), key=lambda k: self.looks[k][1])
        n_tokens, _ = self.looks[best]
        is_known = self.finish_reason is not None or len(self.looks) - 1 - best >= _PATIENCE
        if not is_known or n_tokens == len(self.tokens):
            return False
        del self.tokens[n_tokens:], self.pieces[n_tokens:], self.reported[n_tokens:]
        self.text, self.looks, self.stop_reason = None, [], "suffix"
        return True

    def shown(self) -> tuple[int, bytes]:
        """The part of its text that a client sees: how many whole tokens, and the bytes after these.

        It ends before a stop string, and before a character that isn't complete.
        """
        text = b"".join(self.pieces)
        if self.text is None or self.text.matched is None:
            end = len(text) - _n_unfinished(text)
            if end == len(text):
                return len(self.tokens), b""
        else:
            end = text.find(self.text.matched.encode())
            if end < 0:  # it has bytes that aren't UTF-8
                return len(self.tokens) - 1, b""
        n_tokens = n_bytes = 0
        while n_bytes + len(self.pieces[n_tokens]) <= end:
            n_bytes += len(self.pieces[n_tokens])
            n_tokens += 1
        return n_tokens, text[n_bytes:end]


def _n_unfinished(text: bytes) -> int:
    """How many bytes at the end of a text are the beginning of a character, which nobody is shown."""
    decoder = getincrementaldecoder("utf-8")(errors="ignore")
    decoder.decode(text[-_TAIL:])
    return len(decoder.getstate()[0])


# `Scorer`: finds the log-probability of a suffix after the candidates of a bridge, with a `Probe` for each. The
# tokens of the suffix are evaluated in the cells of the candidate, and removed again. A model with a recurrent state
# or a sliding window can't take tokens out of its cells. There a further row evaluates the suffix, for one candidate
# after the other, in a fork of it.


class Probe(OwnRow):
    """Scores tokens of the suffix after the first tokens of a middle. Implements `srb.engine.ports.Row`.

    It evaluates them as any row does, in the cells of the middle or in a fork, from where they are removed again. The
    first one is scored by the logits of the token before it, so this token has to be evaluated, too, unless its logits
    are at hand (`first`).

    kept: how many tokens of the middle come before the suffix. rest: tokens between these and the suffix.
    first: the log-probability of the first token of the suffix, if it is known.
    """

    def __init__(
        self,
        middle: Middle,
        kept: int,
        rest: Many[int],
        suffix: Many[int],
        *,
        first: float | None = None,
        at_once: bool = True,
    ) -> None:
        line = [*middle.tokens[:kept], *rest[:MAX_REST], *suffix[:-1]]
        super().__init__(middle.strategy, middle.n_before, line, at_once=at_once)
        self.middle = middle
        self.logprobs = [] if first is None else [first]
        """Those of the suffix's tokens, as far as they are known."""
        self._kept = kept
        self._suffix = suffix
        self._before = kept + len(rest[:MAX_REST])

    @property
    def n_tokens(self) -> int:
        """How many tokens it holds after the prompt."""
        return self.n_held

    @property
    def is_done(self) -> bool:
        """Whether all of the suffix is scored."""
        return len(self.logprobs) == len(self._suffix)

    @property
    def n_usable(self) -> int:
        """How many tokens of the middle's cells it can begin with."""
        return min(self._kept, self._before - (not self.logprobs), self.middle.n_held)

    def next_scored(self) -> int | None:
        """Counts a token as evaluated. Returns the token of the suffix that its logits score, if any."""
        self.n_held += 1
        place = self.n_held - self._before
        return self._suffix[place] if 0 <= place < len(self._suffix) else None


class Scorer:
    """Scores the suffix after the candidates of a prompt.

    spare: the seq_id in which it is evaluated; None: those of the candidates.
    """

    def __init__(self, prompt: Prompt, tools: EngineParts) -> None:
        self.rows: list[Probe] = []
        """The probes that evaluate."""
        self.spare: int | None = None
        self._queue: list[Probe] = []  # those that wait for the spare seq_id, or for the next step
        self._prompt = prompt
        self._tools = tools

    def add(self, middle: Middle, kept: int, rest: bytes, suffix: Many[int], logits: Logits | None = None) -> None:
        """Scores tokens of the suffix after the first `kept` tokens of a middle and the bytes `rest`.

        logits: those of the last of these tokens, if they are at hand.
        """
        tokens: tuple[int, ...] = ()
        if text := rest.decode(errors="ignore"):
            tokens = self._tools.backend.tokenizer.tokenize(text, is_prompt=False, parse_special=False)
            tokens = tokens if len(tokens) <= MAX_REST else ()
        if not kept + len(tokens):
            logits = self._prompt.logits
        first = None if logits is None else self._logprob(logits, suffix[0])
        self._queue.append(Probe(middle, kept, tokens, suffix, first=first, at_once=not self._prompt.block_size))

    def take(self, probe: Probe, logits: Logits) -> None:
        """Takes the logits of a token that a probe has evaluated."""
        token = probe.next_scored()
        if token is not None:
            probe.logprobs.append(self._logprob(logits, token))

    def follow(self, wanted: Callable[[], Collection[Middle]]) -> Iterator[Probe]:
        """The probes that have scored all. The caller may `add` others meanwhile. Lets the next ones begin.

        wanted: returns the candidates that are still of use.
        """
        while True:
            for probe in [each for each in self.rows if each.is_done or each.middle not in wanted()]:
                self.rows.remove(probe)
                self._put_back(probe)
                if probe.is_done:
                    yield probe
            self._queue = [each for each in self._queue if each.middle in wanted()]
            while self._queue and (self.spare is None or not self.rows):
                probe = self._queue.pop(0)
                self._place(probe)
                self.rows.append(probe)
            if not any(each.is_done for each in self.rows):
                return

    def _logprob(self, logits: Logits, token: int) -> float:
        return self._tools.backend.logprobs(logits, token, 0)[0]

    def _place(self, probe: Probe) -> None:
        """Gives a probe cells with as many tokens before the suffix as possible."""
        middle, prompt, backend = probe.middle, self._prompt, self._tools.backend
        assert middle.seq_id is not None
        assert prompt.seq_id is not None
        probe.n_held = probe.n_usable
        if self.spare is None:
            probe.seq_id = middle.seq_id
            backend.truncate(middle.seq_id, probe.position)
            return
        probe.seq_id = self.spare
        source = middle.seq_id
        if backend.continuable_from(source) > probe.position:
            source, probe.n_held = prompt.seq_id, 0
        self._tools.cells.fork_seq(source, self.spare, probe.position)

    def _put_back(self, probe: Probe) -> None:
        """Removes what a probe has evaluated."""
        middle = probe.middle
        assert middle.seq_id is not None
        if self.spare is not None:
            self._tools.backend.remove(self.spare)
        else:
            middle.n_held = min(middle.n_held, probe.n_usable)
            self._tools.backend.truncate(middle.seq_id, middle.position)


GLANCE = 16
"""How many tokens of the suffix are scored where a candidate may end, for `stop_at_suffix`."""


class Bridge(CandidateStrategy):
    """Draws the candidates of a prompt, and gives its sequences the best of them."""

    param = "suffix"

    def __init__(self, prompt: Prompt, tools: EngineParts) -> None:
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
    def n_sampled(self) -> int:  # type: ignore[override]
        """See `DecodingStrategy.n_sampled`: those of all candidates."""
        return self._n_drawn

    @property
    def n_resumed(self) -> int:  # type: ignore[override]
        """See `DecodingStrategy.n_resumed`."""
        return sum(len(seq.resumed_tokens) for seq in self._prompt.sequences) if self._streams else 0

    @property
    def rows(self) -> list[Middle | Probe]:
        """See `DecodingStrategy.rows`."""
        if not self._prompt.living:
            return []
        return [*(each for each in self._wanted() if each.state == "drawing"), *self._scorer.rows]

    def begin(self, seq: Sequence) -> None:
        """See `DecodingStrategy.begin`."""
        super().begin(seq)
        seq.constraints.append(Closing(self._close))

    def take(self, row: Middle | Probe, logits: Logits, beside: Many[Logits]) -> None:
        """See `DecodingStrategy.take`."""
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
            for token in owner.resumed_tokens if owner else ():
                middle.push(token, self._tools.output.piece(prompt.sequences[0], token, len(middle.tokens)))
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
        piece = tools.output.piece(prompt.sequences[0], token, len(middle.tokens))
        middle.push(token, piece)
        middle.reported.append(reported)
        self._n_drawn += 1
        tools.totals.tokens_generated += 1
        if middle.owner:
            middle.owner.tokens.append(token)
            tools.output.goes_on(middle.owner, token, reported, piece)
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


class Closing(Constraint):
    """Calls `close` when an alternative has ended, for whatever reason."""

    def __init__(self, close: Callable[[], object]) -> None:
        self._close = close

    def ended(self, event: StopEvent) -> StopEvent:
        """See `Constraint.ended`."""
        self._close()
        return event
