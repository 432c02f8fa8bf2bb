"""`BeamSearch`: carries out a search. It forks the beams, and says what all texts have in common as soon as it is sure.

The beams have the rows (`choosing.py`). The cells and seq_ids of all beams are leased together with the prompt, which
keeps its own: at most max_tokens - 1 cells for each beam, because forks share cells. A beam that goes on keeps its
cells. One that doesn't is removed, and its seq_id goes to a fork. So there are never more sequences than the beams and
the prompt. An example with two beams:

    "a" (seq 1) ─┬─ "b"   keeps seq 1          "c" (seq 2)   removed: none of its ways on is among the two likeliest
                 └─ "x"   forked off seq 1 to seq 2

Alternatives get the tokens that all beams, and all texts that were found, begin with; and at the end they get the rest.
"""

from bisect import insort
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Many
from functools import partial
from itertools import count

from srb.engine.backend import Logits
from srb.engine.decoding.base import DecodingStrategy
from srb.engine.decoding.candidates import CandidateStrategy, TextRow
from srb.engine.decoding.strategy import EngineParts
from srb.engine.events import FinishReason, Token
from srb.engine.model import Ranked, Ranker
from srb.engine.sequence import Prompt, Sequence
from srb.errors import BackendError

# `Search`: decides which beams of a prompt go on, and which texts are found. Nothing here knows of cells, events or
# characters. `beams.py` carries a search out.


class Beam(TextRow):
    """A text of a search: one that goes on, or one that was found.

    tokens: the generated ones. logprob: the natural logarithm of their probability.
    score: once it is found, what texts are compared by.
    parent: the beam that it goes on from; None once it has cells of its own.
    """

    def __init__(self, search: "Search", tokens: list[int], logprob: float) -> None:
        super().__init__(search.strategy, search.n_before, tokens, n_held=max(0, len(tokens) - 1))
        self.search = search
        self.logprob = logprob
        self.score = 0.0
        self.parent: Beam | None = None
        self.ranked: list[Ranked] | None = None  # how it may go on, once its last token is evaluated
        self.logits: Logits | None = None  # from then on, if probabilities are reported


class Search:
    """A beam search, as Hugging Face's `transformers` does it (`GenerationMixin._beam_search`).

    In each step, every beam is continued with its likeliest tokens. The `width` likeliest of these texts that don't end
    are the next beams. A text that ends is found if it is among the first `width` of all. Found texts are compared by
    logprob / length**length_penalty, and the best `width` are kept.

    way: carries it out. n: how many texts are wanted. width: how many beams there are.
    n_before: the length of the prompt, in tokens. max_tokens: the most tokens of a text.
    ends: says why a text ends with its last token; None if it doesn't end.
    """

    def __init__(
        self,
        strategy: DecodingStrategy,
        ranker: Ranker,
        ends: Callable[[Beam], FinishReason | None],
        *,
        n: int,
        width: int,
        n_before: int,
        max_tokens: int,
        min_tokens: int = 0,
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
    ) -> None:
        self.strategy = strategy
        self.n = n
        self.width = width
        self.n_before = n_before
        self.living = [Beam(self, [], 0.0)]
        """The beams, the best first."""
        self.found: list[Beam] = []
        """The texts that have ended, the best first."""
        self.n_settled = 0
        """How many first tokens all texts have in common that the search may still return."""
        self._ranker = ranker
        self._ends = ends
        self._max_tokens = max_tokens
        self._min_tokens = min_tokens
        self._length_penalty = length_penalty
        self._early_stopping = early_stopping

    @property
    def is_over(self) -> bool:
        """Whether the search has ended: no beam goes on."""
        return not self.living

    def take(self, beam: Beam, logits: Logits) -> None:
        """Takes the logits behind the last token of a beam."""
        # The ranker doesn't know which tokens complete a stop string, and so end a text: it gives twice the width.
        may_end = len(beam.tokens) >= self._min_tokens
        beam.ranked = self._ranker.rank(logits, 2 * self.width, may_end=may_end)

    def step(self) -> None:
        """Goes one token further. `take` must have been called for all beams before."""
        strategies = sorted(self._ways(), key=lambda strategy: -strategy[0])
        self.living = []
        for place, (logprob, parent, token) in enumerate(strategies):
            if len(self.living) == self.width:
                break
            beam = self._child(parent, token, logprob)
            if beam.finish_reason is None:
                self.living.append(beam)
            elif place < self.width:
                beam.score = logprob / len(beam.tokens) ** self._length_penalty
                insort(self.found, beam, key=lambda each: -each.score)
                del self.found[self.width :]
        if self.living and self._is_done(self.living[0]):
            self.living = []

    def settle(self) -> int:
        """Sets `n_settled`, and returns by how much it has grown."""
        texts = [each.tokens for each in (*self.living, *self.found[: self.n])]
        begun = self.n_settled
        for place in count(begun):
            if any(len(each) <= place or each[place] != texts[0][place] for each in texts):
                break
            self.n_settled += 1
        return self.n_settled - begun

    def _ways(self) -> Iterator[tuple[float, Beam, int]]:
        """All texts one token longer: their log-probability, the beam, and the token."""
        for beam in self.living:
            for token, logprob in beam.ranked or ():
                yield beam.logprob + logprob, beam, token

    def _child(self, parent: Beam, token: int, logprob: float) -> Beam:
        beam = Beam(self, [*parent.tokens, token], logprob)
        beam.parent = parent
        beam.finish_reason = self._ends(beam)
        return beam

    def _is_done(self, best: Beam) -> bool:
        if len(self.found) < self.width or self._early_stopping is True:
            return len(self.found) == self.width
        # With a penalty above 0 a longer text may have a better score, so the best beam may yet become better.
        hopes = self._early_stopping == "never" and self._length_penalty > 0
        length = self._max_tokens if hopes else len(best.tokens)
        most: float = best.logprob / length**self._length_penalty
        return self.found[-1].score >= most


class BeamSearch(CandidateStrategy):
    """The search of a prompt. The prompt's sequences get the texts that it finds."""

    keeps_step = True
    param = "search"

    def __init__(self, prompt: Prompt, tools: EngineParts) -> None:
        super().__init__(prompt, tools)
        self.n_rows = prompt.active.request.n_rows
        self._search: Search | None = None  # once the prompt is evaluated

    @property
    def rows(self) -> list[Beam]:
        """See `DecodingStrategy.rows`."""
        return list(self._search.living) if self._search and self._prompt.living else []

    def take(self, beam: Beam, logits: Logits, beside: Many[Logits]) -> None:
        """See `DecodingStrategy.take`."""
        beam.search.take(beam, logits)
        if self._active.request.logprobs is not None:
            beam.logits = logits.copy()

    def after_step(self) -> None:
        """Takes a step of the search when it has the logits of all its beams."""
        if not self._prompt.living:
            return
        try:
            if self._search is None:
                self._search = self._begin()
            if all(beam.ranked is not None for beam in self._search.living):
                self._step(self._search)
        except BackendError as error:
            for seq in self._prompt.living:
                self.fail(seq, error)

    def lost(self, row: Beam | None) -> list[Sequence]:  # type: ignore[override]
        """All sequences: without one of its beams a search would find other texts."""
        return self._prompt.living

    def _begin(self) -> Search:
        """Takes the first step, from the prompt."""
        prompt = self._prompt
        search = self._new()
        (root,) = search.living
        root.seq_id, root.text = prompt.seq_id, self.new_text()
        assert prompt.logits is not None
        self.take(root, prompt.logits, ())
        return search

    def _new(self) -> Search:
        prompt, request, first = self._prompt, self._active.request, self._prompt.sequences[0]
        params, n = first.params, len(request.branches)
        return Search(
            self,
            self._tools.backend.ranker(params),
            partial(self._ends, prompt),
            n=n,
            width=request.n_rows,
            n_before=len(prompt.tokens),
            max_tokens=first.max_tokens,
            min_tokens=params.min_tokens,
            length_penalty=request.length_penalty,
            early_stopping=request.early_stopping,
        )

    def _ends(self, prompt: Prompt, beam: Beam) -> FinishReason | None:
        """Why a beam's text ends with its last token; None: it doesn't end."""
        token, seq = beam.tokens[-1], prompt.sequences[0]
        if self._tools.backend.tokenizer.is_end(token):
            return "stop"
        if beam.parent and beam.parent.text:
            beam.text = beam.parent.text.copy()
            beam.text.push(self._tools.output.piece(seq, token, len(beam.tokens) - 1))
            if beam.text.matched:
                beam.stop_reason = beam.text.matched
                return "stop"
        return "length" if len(beam.tokens) == seq.max_tokens else None

    def _step(self, search: Search) -> None:
        prompt = self._prompt
        if prompt.sequences[0].max_tokens == 0:
            for seq in prompt.living:
                self._tools.decoding.finish(seq, "length", None)
            return
        parents = search.living
        search.step()
        if prompt.active.request.reports_tokens:
            self._report(prompt, search)
        for beam in search.found:
            beam.parent = None
        if search.is_over:
            self._end(prompt, search)
            return
        if search.settle():
            for seq in prompt.living:
                self.tell(seq, search.living[0].tokens, search.living[0].reported, search.n_settled)
        self._fork(search, parents)

    def _report(self, prompt: Prompt, search: Search) -> None:
        """Keeps what the request wants to know about the last token of each beam, such as its probability."""
        for beam in (*search.living, *search.found):
            parent = beam.parent
            if parent and len(beam.reported) < len(beam.tokens):
                logits = prompt.logits if parent.logits is None else parent.logits
                assert logits is not None
                beam.reported = [*parent.reported, self._active.report.of(prompt.living[0], beam.tokens[-1], logits)]

    def _end(self, prompt: Prompt, search: Search) -> None:
        """Gives the alternatives of a prompt the texts that were found. The first alternative gets the best text."""
        for seq in prompt.living:
            rank = seq.index % len(prompt.active.request.branches)
            if rank < len(search.found):
                self.give(seq, search.found[rank], logprob=search.found[rank].logprob)
            else:
                self.refuse(seq, f"there are only {len(search.found)} different texts to find")

    def tell(self, seq: Sequence, tokens: Many[int], reported: Many[list[Token]], end: int) -> None:
        """See `PromptStrategy.tell`. A token of a search is generated when it is told."""
        self._tools.totals.tokens_generated += end - seq.length
        super().tell(seq, tokens, reported, end)

    def _fork(self, search: Search, parents: list[Beam]) -> None:
        """Gives each new beam the cells of its parent.

        The first beam that goes on from a parent keeps the parent's cells. The other ones are forked off these.
        parents: all beams before this step. Those that no beam goes on from are removed.
        """
        backend, own_ids = self._tools.backend, self._prompt.row_ids
        continued = {beam.parent for beam in search.living}
        for parent in parents:
            if parent not in continued and parent.seq_id in own_ids:
                backend.remove(parent.seq_id)
        held = {parent.seq_id for parent in continued if parent}
        idle = [seq_id for seq_id in own_ids if seq_id not in held]
        own = held.intersection(own_ids)  # without the prompt's own seq_id, which no beam may take over
        for beam in search.living:
            assert beam.parent
            assert beam.parent.seq_id is not None
            source, beam.parent = beam.parent.seq_id, None
            if source in own:
                own.remove(source)
                beam.seq_id = source
            else:
                beam.seq_id = idle.pop()
                self._tools.cells.fork_seq(source, beam.seq_id, beam.position)
