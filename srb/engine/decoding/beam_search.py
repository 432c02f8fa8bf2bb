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
from srb.engine.decoding.base import AnyStrategy, EngineParts
from srb.engine.decoding.candidates import CandidateStrategy, TextRow
from srb.engine.events import FinishReason, Token
from srb.engine.model import Ranked, Ranker
from srb.engine.sequence import Prompt, Sequence
from srb.errors import BackendError


class Beam(TextRow):
    """A text of a search: a beam, or a finished text.

    Args:
        search: The search.
        tokens: The generated tokens.
        logprob: The natural logarithm of their probability.
    """

    def __init__(self, search: "Search", tokens: list[int], logprob: float) -> None:
        super().__init__(search.strategy, search.n_prompt, tokens, n_computed=max(0, len(tokens) - 1))
        self.search = search
        self.logprob = logprob
        self.score = 0.0  # that of a finished text
        self.parent: Beam | None = None  # the beam that it extends; None once it has cells of its own
        self.ranked: list[Ranked] | None = None  # the tokens that may follow, once its last token is evaluated
        self.logits: Logits | None = None  # those after its last token, if probabilities are reported


class Search:
    """A beam search, as `GenerationMixin._beam_search` of Hugging Face's `transformers`.

    In each step, every beam is extended by its most probable tokens. The `width` most probable of these texts that
    don't end are the next beams. A text that ends is finished if it is among the first `width` of all. Finished texts
    are compared by logprob / length**length_penalty, and the best `width` are kept.

    It knows nothing of cells, events and characters.

    Args:
        strategy: The strategy of its beams.
        ranker: Ranks the tokens that may follow.
        ends: Returns why a text ends with its last token; None if it doesn't end.
        n: The number of texts that are wanted.
        width: The number of beams.
        n_prompt: The length of the prompt, in tokens.
        min_tokens: The least number of tokens of a text.
        length_penalty: The exponent of the length in the score.
        early_stopping: As in `CompletionRequest`.
    """

    def __init__(
        self,
        strategy: AnyStrategy,
        ranker: Ranker,
        ends: abc.Callable[[Beam], FinishReason | None],
        *,
        n: int,
        width: int,
        n_prompt: int,
        max_tokens: int,
        min_tokens: int = 0,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
    ) -> None:
        self.strategy = strategy
        self.n = n
        self.width = width
        self.n_prompt = n_prompt
        self.beams = [Beam(self, [], 0.0)]
        """The beams, the best first."""
        self.finished: list[Beam] = []
        """The texts that have ended, the best first."""
        self.n_final = 0
        """The number of first tokens that all texts share which the search may still return."""
        self._ranker = ranker
        self._ends = ends
        self._max_tokens = max_tokens
        self._min_tokens = min_tokens
        self._length_penalty = length_penalty
        self._early_stopping = early_stopping

    def rank(self, beam: Beam, logits: Logits) -> None:
        """Rank the tokens that may follow a beam, by the logits after its last token."""
        # The ranker doesn't know which tokens complete a stop string, and so end a text: it gives twice the width.
        may_end = len(beam.tokens) >= self._min_tokens
        beam.ranked = self._ranker.rank(logits, 2 * self.width, may_end=may_end)

    def step(self) -> None:
        """Extend the beams by one token. All of them must be ranked."""
        extended = [
            (beam.logprob + logprob, beam, token) for beam in self.beams for token, logprob in beam.ranked or ()
        ]
        extended.sort(key=lambda each: -each[0])
        self.beams = []
        for place, (logprob, parent, token) in enumerate(extended):
            if len(self.beams) == self.width:
                break
            beam = Beam(self, [*parent.tokens, token], logprob)
            beam.parent = parent
            beam.finish_reason = self._ends(beam)
            if beam.finish_reason is None:
                self.beams.append(beam)
            elif place < self.width:
                beam.score = logprob / len(beam.tokens) ** self._length_penalty
                insort(self.finished, beam, key=lambda each: -each.score)
                del self.finished[self.width :]
        if self.beams and self._is_done(self.beams[0]):
            self.beams = []

    def finalize(self) -> int:
        """Set `n_final`, and return by how much it has grown."""
        texts = [each.tokens for each in (*self.beams, *self.finished[: self.n])]
        before = self.n_final
        for place in count(before):
            if any(len(each) <= place or each[place] != texts[0][place] for each in texts):
                break
            self.n_final += 1
        return self.n_final - before

    def _is_done(self, best: Beam) -> bool:
        if len(self.finished) < self.width or self._early_stopping is True:
            return len(self.finished) == self.width
        # With a penalty above 0 a longer text may have a better score, so the best beam may yet become better.
        hopes = self._early_stopping == "never" and self._length_penalty > 0
        length = self._max_tokens if hopes else len(best.tokens)
        most: float = best.logprob / length**self._length_penalty
        return self.finished[-1].score >= most


class BeamSearch(CandidateStrategy[Beam]):
    """The search of a prompt. The prompt's sequences get the texts that it finds."""

    in_lockstep = True
    param = "search"

    def __init__(self, prompt: Prompt, parts: EngineParts) -> None:
        super().__init__(prompt, parts)
        self.n_rows = prompt.active.request.n_rows
        self._search: Search | None = None  # once the prompt is evaluated

    @property
    def rows(self) -> list[Beam]:
        """The beams."""
        return list(self._search.beams) if self._search and self._prompt.living else []

    def process_logits(self, beam: Beam, logits: Logits, negative_logits: abc.Sequence[Logits]) -> None:
        """Rank the tokens that may follow a beam."""
        beam.search.rank(beam, logits)
        if self._active.request.logprobs is not None:
            beam.logits = logits.copy()

    def after_step(self) -> None:
        """Extend the beams when all of them are ranked."""
        if not self._prompt.living:
            return
        try:
            if self._search is None:
                self._search = self._begin()
            if all(beam.ranked is not None for beam in self._search.beams):
                self._step(self._search)
        except BackendError as error:
            for seq in self._prompt.living:
                self.fail_sequence(seq, error)

    def _begin(self) -> Search:
        """Return a search whose one beam is the prompt."""
        prompt, request, first = self._prompt, self._active.request, self._prompt.sequences[0]
        search = Search(
            self,
            self._parts.backend.ranker(first.params),
            self._ends,
            n=len(request.branches),
            width=request.n_rows,
            n_prompt=len(prompt.tokens),
            max_tokens=first.max_tokens,
            min_tokens=first.params.min_tokens,
            length_penalty=request.length_penalty,
            early_stopping=request.early_stopping,
        )
        (root,) = search.beams
        root.seq_id, root.text = prompt.seq_id, self.new_detokenizer()
        assert prompt.logits is not None
        self.process_logits(root, prompt.logits, ())
        return search

    def _ends(self, beam: Beam) -> FinishReason | None:
        """Return why a beam's text ends with its last token; None: it doesn't end."""
        token, seq = beam.tokens[-1], self._prompt.sequences[0]
        if self._parts.backend.tokenizer.is_end(token):
            return "stop"
        if beam.parent and beam.parent.text:
            beam.text = beam.parent.text.copy()
            beam.text.push(self._parts.output.piece(seq, token, len(beam.tokens) - 1))
            if beam.text.matched:
                beam.stop_reason = beam.text.matched
                return "stop"
        return "length" if len(beam.tokens) == seq.max_tokens else None

    def _step(self, search: Search) -> None:
        prompt = self._prompt
        if prompt.sequences[0].max_tokens == 0:
            for seq in prompt.living:
                self._parts.runner.finish(seq, "length", None)
            return
        parents = search.beams
        search.step()
        if self._active.request.reports_tokens:
            self._set_details(search)
        for beam in search.finished:
            beam.parent = None
        if not search.beams:
            self._finish(search)
            return
        if search.finalize():
            for seq in prompt.living:
                self.add_tokens(seq, search.beams[0].tokens, search.beams[0].details, search.n_final)
        self._fork(search, parents)

    def _set_details(self, search: Search) -> None:
        """Store what the request reports of the last token of each beam, such as its probability."""
        for beam in (*search.beams, *search.finished):
            parent = beam.parent
            if parent and len(beam.details) < len(beam.tokens):
                logits = self._prompt.logits if parent.logits is None else parent.logits
                assert logits is not None
                details = self._active.report.details(self._prompt.living[0], beam.tokens[-1], logits)
                beam.details = [*parent.details, details]

    def _finish(self, search: Search) -> None:
        """Give the alternatives the finished texts. The first alternative gets the best text."""
        for seq in self._prompt.living:
            rank = seq.index % len(self._active.request.branches)
            if rank < len(search.finished):
                self.finish_with(seq, search.finished[rank], logprob=search.finished[rank].logprob)
            else:
                self.refuse(seq, f"there are only {len(search.finished)} different texts to find")

    def add_tokens(
        self, seq: Sequence, tokens: abc.Sequence[int], details: abc.Sequence[list[Token]], end: int
    ) -> None:
        """Extend a sequence, and count the tokens as generated."""
        self._parts.totals.tokens_generated += end - seq.length
        super().add_tokens(seq, tokens, details, end)

    def _fork(self, search: Search, parents: list[Beam]) -> None:
        """Give each new beam the cells of its parent.

        The first beam that extends a parent takes over the parent's cells. The others are forked off these.

        Args:
            search: The search after this step.
            parents: All beams before this step. Those that no beam extends are removed.
        """
        backend, own_ids = self._parts.backend, self._prompt.row_ids
        extended = {beam.parent for beam in search.beams}
        for parent in parents:
            if parent not in extended and parent.seq_id in own_ids:
                backend.remove(parent.seq_id)
        used = {parent.seq_id for parent in extended if parent}
        free = [seq_id for seq_id in own_ids if seq_id not in used]
        own = used.intersection(own_ids)  # without the prompt's own seq_id, which no beam may take over
        for beam in search.beams:
            assert beam.parent
            assert beam.parent.seq_id is not None
            source, beam.parent = beam.parent.seq_id, None
            if source in own:
                own.remove(source)
                beam.seq_id = source
            else:
                beam.seq_id = free.pop()
                self._parts.cells.fork_seq(source, beam.seq_id, beam.position)
