"""`Particles`: draws texts side by side, scores the suffix behind each, and returns the best, or the luckiest, n.

A bridge leads from a prompt to a suffix. Its candidates are drawn from the prompt alone. A candidate that has ended is
scored: the tokens of the suffix are evaluated behind it, and removed again. Then the n with the likeliest suffix are
returned. An example with two candidates, and the suffix "c d":

    prompt ─┬─ "a b"   (seq 1)     "a b" + "c d": log p("c" | "a b") + log p("d" | "a b c")
            └─ "x y"   (seq 2)     "x y" + "c d": the same, behind "x y"

With `"search": "particles"` the candidates wait for each other after each sentence, and are weighed by how likely the
beginning of the suffix is behind what they have so far. If few of them have most of the weight, the weak ones become
forks of the strong ones (`resampling.py`). Without a suffix, weights are powers of the texts' probabilities.

The particles have the rows, and the alternatives hold nothing, as in a beam search. If each alternative is sure to be
its own candidate, its text is told as it is drawn. Otherwise what all particles begin with is told, and the rest at the
end. `stop` comes when all are scored, because only then their ranks are known.

After an interruption all particles are drawn again, but alternatives that were told as they were drawn go on with what
they have.
"""

import math
import random
from collections.abc import Sequence as Many
from dataclasses import replace

from srb.engine.asking.infill import n_rows_here
from srb.engine.asking.sampling_params import MAX_SEED
from srb.engine.backend import Logits
from srb.engine.kv.needs import LEAST_ROOM
from srb.engine.sequence import Prompt, Sequence
from srb.engine.telling.events import FinishReason
from srb.engine.ways.choosing import Result, chosen, shares
from srb.engine.ways.particle import LEAST, Particle
from srb.engine.ways.resampling import effective_size, normalized, systematic
from srb.engine.ways.suffix import Probe, Scorer
from srb.engine.ways.tools import OfPrompt, Tools
from srb.errors import BackendError, NoTokenError

GLANCE = 16
"""On the way, so many tokens of the suffix are scored."""


class Particles(OfPrompt):
    """Draws the texts of a prompt, of which its sequences get some."""

    begins_anew = True

    def __init__(self, prompt: Prompt, tools: Tools) -> None:
        super().__init__(prompt, tools)
        request = self._active.request
        self.n_rows = n_rows_here(request, tools.backend)
        self._n = request.n_rows
        self._suffix = request.scored_suffix
        self._resamples = request.search == "particles"
        self._stops = request.stop_at_suffix
        self._is_direct = self._n == len(request.branches) and not (self._resamples or self._stops)
        self._particles: list[Particle] = []
        self._scorer = Scorer(prompt, tools)
        self._owners: dict[int, Sequence] = {}  # by the number of a particle: the sequence that tells its text
        self._results: dict[Sequence, Result] = {}
        self._n_settled = 0  # how many first tokens all particles have in common, and have told
        self._n_rounds = 0
        self._n_drawn = 0

    @property
    def n_drawn(self) -> int:  # type: ignore[override]
        """See `Way.n_drawn`: those of all particles."""
        return self._n_drawn

    @property
    def n_begun(self) -> int:  # type: ignore[override]
        """See `Way.n_begun`."""
        return sum(len(seq.begun) for seq in self._prompt.sequences) if self._is_direct else 0

    @property
    def rows(self) -> list[Particle | Probe]:
        """See `Way.rows`."""
        if not self._prompt.living:
            return []
        return [*(each for each in self._wanted() if each.state == "drawing"), *self._scorer.rows]

    def size(self, seq: Sequence, wanted: int, most: int, n_cells: int) -> bool:
        """See `Way.size`. Particles get no more room later, so all of them have the same."""
        prompt, behind = self._prompt, self._active.request.cells_behind
        room = (n_cells - len(prompt.tokens)) // (1 if prompt.block_size else self.n_rows) - behind
        seq.max_tokens = min(LEAST_ROOM if wanted == -1 else wanted, max(0, room + 1))
        seq.room = max(1, seq.max_tokens) + behind
        return False

    def begin(self, seq: Sequence) -> None:
        """See `Way.begin`. The particles begin when this was called for all sequences."""
        seq.state = "running"
        self._results[seq] = Result(self._close)
        seq.rules.append(self._results[seq])

    def take(self, row: Particle | Probe, logits: Logits, beside: Many[Logits]) -> None:
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
        if self._particles:
            self.after_step()

    def after_step(self) -> None:
        """Ends probes that have scored all, and rounds in which nothing is left to evaluate."""
        if not self._prompt.living:
            return
        if not self._particles:
            self._begin()
        for probe in self._scorer.follow(self._wanted):
            self._looked(probe)
        while self._prompt.living and not any(each.state in ("drawing", "looking") for each in self._wanted()):
            self._end_round()
        self._settle()

    def lost(self, row: Particle | Probe | None) -> list[Sequence]:  # type: ignore[override]
        """The alternative whose row it is, if it is known. Otherwise all: without one, others would be returned."""
        if row is None or not self._is_direct:
            return self._prompt.living
        particle = row.particle if isinstance(row, Probe) else row
        return [seq for seq in self._prompt.living if seq is self._owners[particle.number]]

    # The particles

    def _begin(self) -> None:
        prompt, backend = self._prompt, self._tools.backend
        assert prompt.seq_id is not None
        ids, self._scorer.spare = prompt.row_ids[: self._n], next(iter(prompt.row_ids[self._n :]), None)
        n = len(self._active.request.branches)
        if self._is_direct:
            self._owners = {seq.index % n: seq for seq in prompt.living}
        for number in self._owners or range(self._n):
            params = self._active.request.branches[number % n]
            particle = Particle(
                self,
                number,
                replace(params, seed=(params.seed + number - number % n) % (MAX_SEED + 1)),
                ids[number],
                n_before=len(prompt.tokens),
                text=self.new_text(),
                begun=self._owners[number].begun if self._is_direct else (),
                at_once=not prompt.block_size,
            )
            backend.fork(prompt.seq_id, ids[number], len(prompt.tokens))
            self._tools.totals.forks += 1
            self._particles.append(particle)
            for place, token in enumerate(particle.tokens):
                particle.push(self._tools.outbox.piece(prompt.sequences[0], token, place))
        assert prompt.logits is not None
        for particle in self._particles:
            if not self._ends(particle) and not particle.tokens:
                self._draw(particle, prompt.logits)

    def _wanted(self) -> list[Particle]:
        """The particles without those of alternatives that have ended."""
        if not self._is_direct:
            return self._particles
        return [each for each in self._particles if self._owners[each.number].state != "finished"]

    def _draw(self, particle: Particle, logits: Logits) -> None:
        """Draws the next token of a particle, and lets it end, or be looked at, if it is time."""
        prompt, tools, request = self._prompt, self._tools, self._active.request
        try:
            if particle.sampler is None:
                params, compiled, begun = particle.params, self._active.compiled, tuple(particle.tokens)
                particle.sampler = tools.backend.sampler(params, compiled, prompt.words, begun, prompt.repeated)
            token = particle.sampler.sample(logits)
            reported = self._active.report.of(prompt.sequences[0], token, logits)
            if request.power != 1:
                particle.base += (request.power - 1) * particle.sampler.logprobs(token, 0)[0]
        except BackendError as error:
            self._fail(particle, error)
            return
        piece = tools.outbox.piece(prompt.sequences[0], token, len(particle.tokens))
        particle.tokens.append(token)
        particle.push(piece)
        particle.reported.append(reported)
        self._n_drawn += 1
        tools.totals.tokens_generated += 1
        if self._is_direct:
            owner = self._owners[particle.number]
            owner.tokens.append(token)
            tools.outbox.goes_on(owner, token, reported, piece)
        if not self._ends(particle, logits) and self._is_time(particle):
            self._pause(particle)

    def _ends(self, particle: Particle, logits: Logits | None = None) -> bool:
        """Ends a particle if its text ends where it is. logits: those that its last token was drawn from, if at hand.

        An alternative that was told as it was drawn may have had its end already when the request was interrupted.
        """
        n_tokens = len(particle.tokens)
        reason: FinishReason | None = None
        if is_end := n_tokens and self._tools.backend.tokenizer.is_end(particle.tokens[-1]):
            reason = "stop"
        elif particle.text and particle.text.matched:
            reason, particle.stop_reason = "stop", particle.text.matched
        elif n_tokens == self._prompt.sequences[0].max_tokens:
            reason = "length"
        if reason and is_end:
            self._end(particle, reason, n_tokens - 1, b"", logits)
        elif reason:
            self._end(particle, reason, *particle.middle())
        return reason is not None

    def _is_time(self, particle: Particle) -> bool:
        """Whether a particle is weighed, or may end, where it is."""
        if not self._suffix:
            return self._resamples and particle.n_new >= LEAST
        return (self._resamples or self._stops) and particle.is_due(within=self._resamples)

    def _pause(self, particle: Particle) -> None:
        particle.n_looked = len(particle.tokens)
        particle.state = "looking" if self._suffix else "waiting"
        if self._suffix:
            self._scorer.add(particle, len(particle.tokens), b"", self._suffix[:GLANCE])

    def _end(
        self, particle: Particle, reason: FinishReason, kept: int, rest: bytes, logits: Logits | None = None
    ) -> None:
        """Ends a particle. The suffix comes behind its first `kept` tokens and the bytes `rest`; see `Scorer.add`."""
        particle.finish_reason = reason
        particle.close()
        particle.state = "looking" if self._suffix else "ended"
        if self._suffix:
            self._scorer.add(particle, kept, rest, self._suffix, logits)

    def _fail(self, particle: Particle, error: BackendError) -> None:
        """Ends a particle that can't go on. Alternatives get it only if there is no other one left for them."""
        particle.close()
        particle.state, particle.finish_reason, particle.error = "ended", "error", error
        particle.base = -math.inf
        if self._is_direct:
            self._fail_sequence(self._owners[particle.number], error)

    def _fail_sequence(self, seq: Sequence, error: BackendError) -> None:
        self._tools.outbox.error(self._active, seq.index, error)
        self._tools.decoding.finish(seq, "error", None)

    # The suffix

    def _looked(self, probe: Probe) -> None:
        """Takes the score of a particle, which then goes on, waits for the others, or has ended."""
        particle, score = probe.particle, math.fsum(probe.logprobs)
        glance = math.fsum(probe.logprobs[:GLANCE])
        if self._stops and particle.cut_after_best(glance):
            self._end(particle, "stop", len(particle.tokens), b"")
            return
        particle.twist = score
        if particle.finish_reason is None:
            particle.state = "waiting" if self._resamples else "drawing"
        else:
            particle.state, particle.suffix_logprob = "ended", score

    # Rounds

    def _end_round(self) -> None:
        """Called when all particles wait or have ended: weighs them, and lets them go on, or tells the end."""
        if all(each.state == "ended" for each in self._wanted()):
            self._finish()
            return
        self._n_rounds += 1
        weights = normalized([each.log_weight for each in self._particles])
        if 2 * effective_size(weights) < len(weights):
            self._resample(weights)
        for each in self._particles:
            if each.state == "waiting":
                each.state = "drawing"

    def _resample(self, weights: list[float]) -> None:
        """Replaces weak particles by forks of strong ones, and makes all weights equal."""
        backend = self._tools.backend
        copies = systematic(weights, self._random("resample").random())
        free = [each for each, n in zip(self._particles, copies, strict=True) if not n]
        for source, n in zip(self._particles, copies, strict=True):
            for _ in range(n - 1):
                each = free.pop()
                assert each.seq_id is not None
                assert source.seq_id is not None
                backend.remove(each.seq_id)
                each.copy_from(source)
                if source.state != "ended":
                    backend.fork(source.seq_id, each.seq_id, source.position)
                    self._tools.totals.forks += 1
        for each in self._particles:
            each.base = -each.twist

    def _random(self, purpose: str) -> random.Random:
        return random.Random(repr((self._active.request.branches[0].seed, purpose, self._n_rounds)))

    def _settle(self) -> None:
        """Tells what all particles begin with. What is yet to be cut at the suffix may become shorter."""
        if self._is_direct or self._stops or not self._prompt.living:
            return
        texts = [each.tokens for each in self._particles if not each.error]
        begun = self._n_settled
        while texts and all(len(each) > self._n_settled for each in texts):
            if len({each[self._n_settled] for each in texts}) > 1:
                break
            self._n_settled += 1
        if self._n_settled > begun:
            first = next(each for each in self._particles if not each.error)
            for seq in self._prompt.living:
                self.tell(seq, first.tokens, first.reported, self._n_settled)

    def _finish(self) -> None:
        """Gives the alternatives their texts, with the rank of each."""
        n = len(self._active.request.branches)
        if self._is_direct:
            found = {each.number: each for each in self._wanted()}
        else:
            rng = self._random("choose") if self._resamples else None
            found = dict(enumerate(chosen(self._particles, n, rng)))
        best_first = sorted(found.values(), key=lambda each: -(each.suffix_logprob or 0.0))
        parts = shares(self._particles) if self._resamples else {}
        for seq in self._prompt.living:
            each, problem = found.get(seq.index % n), ""
            if each is None:
                errors = [each.error.message for each in self._particles if each.error]
                problem = errors[0] if errors else "there are too few texts"
            elif each.tokens[: seq.length] != [*seq.begun, *seq.tokens]:
                problem = "the request was interrupted, and came to another text this time"
            if each is None or problem:
                self._fail_sequence(seq, NoTokenError(problem, param="suffix" if self._suffix else "search"))
                continue
            if not self._is_direct:
                self.tell(seq, each.tokens, each.reported, len(each.tokens))
            result = self._results[seq]
            result.weight = parts.get(tuple(each.tokens))
            if self._suffix:
                result.suffix_logprob, result.rank = each.suffix_logprob, best_first.index(each) + 1
            self._tools.decoding.finish(seq, each.finish_reason or "stop", each.stop_reason)

    def _close(self) -> None:
        """Frees the samplers when the last alternative has ended."""
        if not self._prompt.living:
            for each in self._particles:
                each.close()
