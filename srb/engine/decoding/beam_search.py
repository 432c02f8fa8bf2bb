"""`BeamSearch`: beam search.

The beams have the rows. The cells and seq_ids of all beams are allocated together with those of the prompt, which keeps
its own: at most max_tokens - 1 cells for each beam, because forks share cells. A beam that goes on keeps its cells. One
that doesn't is removed, and its seq_id goes to a fork. So there are never more sequences than the beams and the prompt.
An example with two beams:

    "a" (seq 1) ─┬─ "b"   keeps seq 1          "c" (seq 2)   removed: the two most probable texts don't begin with it
                 └─ "x"   forked off seq 1 to seq 2

Alternatives get the tokens that all beams, and all finished texts, begin with; and at the end they get the rest.
"""

from bisect import insort
from collections import abc
from itertools import count

from srb.engine.backend import Logits
from srb.engine.decoding.base import EngineParts
from srb.engine.decoding.search_base import CandidateStrategy, TextRow
from srb.engine.events import FinishReason, Token
from srb.engine.model import Ranked, Ranker
from srb.engine.sequence import Prompt, Sequence
from srb.errors import BackendError


class Beam(TextRow):
    """A text of a search: a beam, or a finished text.

    Args:
        strategy: The search.
        prompt: The prompt that it continues.
        tokens: The generated tokens.
        logprob: The natural logarithm of their probability.
        parent: The beam that it extends; None once it has cells of its own.
    """

    def __init__(
        self, strategy: "BeamSearch", prompt: Prompt, tokens: list[int], logprob: float, parent: "Beam | None" = None
    ) -> None:
        super().__init__(strategy, prompt, tokens, n_computed=max(0, len(tokens) - 1))
        self.logprob = logprob
        self.parent = parent
        self.score = 0.0  # that of a finished text
        self.ranked: list[Ranked] | None = None  # the tokens that may follow, once its last token is evaluated
        self.logits: Logits | None = None  # those after its last token, if probabilities are reported


class BeamSearch(CandidateStrategy[Beam]):
    """A beam search, as `GenerationMixin._beam_search` of Hugging Face's `transformers`.

    In each step, every beam is extended by its most probable tokens. The `n_rows` most probable of these texts that
    don't end are the next beams. A text that ends is finished if it is among the first `n_rows` of all. Finished texts
    are compared by logprob / length**length_penalty, and the best `n_rows` are kept. The prompt's sequences get the
    best of them.
    """

    in_lockstep = True
    param = "search"

    def __init__(self, prompt: Prompt, parts: EngineParts) -> None:
        super().__init__(prompt, parts)
        self.n_rows = self._active.request.n_rows
        self._n = len(self._active.request.branches)
        self._beams: list[Beam] = []  # the best first
        self._finished: list[Beam] = []  # the best first
        self._n_final = 0  # how many first tokens all texts share which the search may still return
        self._ranker: Ranker | None = None  # once the prompt is evaluated

    @property
    def rows(self) -> list[Beam]:
        return self._beams if self._prompt.living else []

    def process_logits(self, beam: Beam, logits: Logits, negative_logits: abc.Sequence[Logits]) -> None:
        assert self._ranker
        # The ranker doesn't know which tokens complete a stop string, and so end a text: it gives twice the width.
        may_end = len(beam.tokens) >= self._prompt.sequences[0].params.min_tokens
        beam.ranked = self._ranker.rank(logits, 2 * self.n_rows, may_end=may_end)
        if self._active.request.logprobs is not None:
            beam.logits = logits.copy()

    def after_step(self) -> None:
        """Extend the beams when all of them are ranked."""
        if not self._prompt.living:
            return
        try:
            if self._ranker is None:
                self._begin()
            if all(beam.ranked is not None for beam in self._beams):
                self._step()
        except BackendError as error:
            for seq in self._prompt.living:
                self.fail_sequence(seq, error)

    def _begin(self) -> None:
        """Make the prompt the only beam."""
        prompt = self._prompt
        assert prompt.logits is not None
        self._ranker = self._parts.backend.ranker(prompt.sequences[0].params)
        root = Beam(self, prompt, [], 0.0)
        root.seq_id, root.text = prompt.seq_id, self.new_detokenizer()
        self._beams = [root]
        self.process_logits(root, prompt.logits, ())

    def _step(self) -> None:
        prompt = self._prompt
        if prompt.sequences[0].max_tokens == 0:
            for seq in prompt.living:
                self._parts.runner.finish(seq, "length", None)
            return
        parents = self._beams
        self._extend()
        if self._active.request.reports_tokens:
            self._set_details()
        for beam in self._finished:
            beam.parent = None
        if not self._beams:
            self._finish()
            return
        if self._finalize():
            for seq in prompt.living:
                self.add_tokens(seq, self._beams[0].tokens, self._beams[0].details, self._n_final)
        self._fork(parents)

    def _extend(self) -> None:
        """Extend the beams by one token."""
        extended = [
            (beam.logprob + logprob, beam, token) for beam in self._beams for token, logprob in beam.ranked or ()
        ]
        extended.sort(key=lambda each: -each[0])
        self._beams = []
        for place, (logprob, parent, token) in enumerate(extended):
            if len(self._beams) == self.n_rows:
                break
            beam = Beam(self, self._prompt, [*parent.tokens, token], logprob, parent)
            beam.finish_reason = self._finish_reason(beam, parent)
            if beam.finish_reason is None:
                self._beams.append(beam)
            elif place < self.n_rows:
                beam.score = logprob / len(beam.tokens) ** self._active.request.length_penalty
                insort(self._finished, beam, key=lambda each: -each.score)
                del self._finished[self.n_rows :]
        if self._beams and self._is_done(self._beams[0]):
            self._beams = []

    def _finish_reason(self, beam: Beam, parent: Beam) -> FinishReason | None:
        """Return why a beam's text ends with its last token; None: it doesn't end."""
        token, seq = beam.tokens[-1], self._prompt.sequences[0]
        if self.is_end(seq.params, token):
            beam.stop_reason = self.stop_reason(token)
            return "stop"
        if parent.text:
            beam.text = parent.text.copy()
            beam.text.push(self._parts.output.piece(seq, token, len(beam.tokens) - 1))
            if beam.text.matched:
                beam.stop_reason = beam.text.matched
                return "stop"
        return "length" if len(beam.tokens) == seq.max_tokens else None

    def _is_done(self, best: Beam) -> bool:
        request = self._active.request
        if len(self._finished) < self.n_rows or request.early_stopping is True:
            return len(self._finished) == self.n_rows
        # With a penalty above 0 a longer text may have a better score, so the best beam may yet become better.
        hopes = request.early_stopping == "never" and request.length_penalty > 0
        length = self._prompt.sequences[0].max_tokens if hopes else len(best.tokens)
        most: float = best.logprob / length**request.length_penalty
        return self._finished[-1].score >= most

    def _finalize(self) -> bool:
        """Set `_n_final`, and return whether it has grown."""
        texts = [each.tokens for each in (*self._beams, *self._finished[: self._n])]
        before = self._n_final
        for place in count(before):
            if any(len(each) <= place or each[place] != texts[0][place] for each in texts):
                break
            self._n_final += 1
        return self._n_final > before

    def _set_details(self) -> None:
        """Store what the request reports of the last token of each beam, such as its probability."""
        for beam in (*self._beams, *self._finished):
            parent = beam.parent
            if parent and len(beam.details) < len(beam.tokens):
                logits = self._prompt.logits if parent.logits is None else parent.logits
                assert logits is not None
                details = self._active.report.details(self._prompt.living[0], beam.tokens[-1], logits)
                beam.details = [*parent.details, details]

    def _finish(self) -> None:
        """Give the alternatives the finished texts. The first alternative gets the best text."""
        for seq in self._prompt.living:
            rank = seq.index % self._n
            if rank < len(self._finished):
                self.finish_with(seq, self._finished[rank], logprob=self._finished[rank].logprob)
            else:
                self.refuse(seq, f"there are only {len(self._finished)} different texts to find")

    def add_tokens(
        self, seq: Sequence, tokens: abc.Sequence[int], details: abc.Sequence[list[Token]], end: int
    ) -> None:
        self._parts.totals.tokens_generated += end - seq.length
        super().add_tokens(seq, tokens, details, end)

    def _fork(self, parents: list[Beam]) -> None:
        """Give each new beam the cells of its parent.

        The first beam that extends a parent takes over the parent's cells. The others are forked off these. Parents
        that no beam extends are removed.
        """
        backend, own_ids = self._parts.backend, self._prompt.row_ids
        extended = {beam.parent for beam in self._beams}
        for parent in parents:
            if parent not in extended and parent.seq_id in own_ids:
                backend.remove(parent.seq_id)
        used = {parent.seq_id for parent in extended if parent}
        free = [seq_id for seq_id in own_ids if seq_id not in used]
        own = used.intersection(own_ids)  # without the prompt's own seq_id, which no beam may take over
        for beam in self._beams:
            assert beam.parent
            assert beam.parent.seq_id is not None
            source, beam.parent = beam.parent.seq_id, None
            if source in own:
                own.remove(source)
                beam.seq_id = source
            else:
                beam.seq_id = free.pop()
                self._parts.cells.fork_seq(source, beam.seq_id, beam.position)
