"""`Beams`: carries out a search. It forks the beams, and says what all texts have in common as soon as it is sure.

The beams have the rows (`choosing.py`). The cells and seq_ids of all beams are leased together with the prompt, which
keeps its own: at most max_tokens - 1 cells for each beam, because forks share cells. A beam that goes on keeps its
cells. One that doesn't is removed, and its seq_id goes to a fork. So there are never more sequences than the beams and
the prompt. An example with two beams:

    "a" (seq 1) ─┬─ "b"   keeps seq 1          "c" (seq 2)   removed: none of its ways on is among the two likeliest
                 └─ "x"   forked off seq 1 to seq 2

Alternatives get the tokens that all beams, and all texts that were found, begin with; and at the end they get the rest.
"""

from collections.abc import Sequence as Many
from functools import partial

from srb.engine.backend import Logits
from srb.engine.sequence import Prompt, Sequence
from srb.engine.telling.events import FinishReason, Token
from srb.engine.ways.choosing import Choosing
from srb.engine.ways.search import Beam, Search
from srb.engine.ways.tools import Tools
from srb.errors import BackendError


class Beams(Choosing):
    """The search of a prompt. The prompt's sequences get the texts that it finds."""

    keeps_step = True
    param = "search"

    def __init__(self, prompt: Prompt, tools: Tools) -> None:
        super().__init__(prompt, tools)
        self.n_rows = prompt.active.request.n_rows
        self._search: Search | None = None  # once the prompt is evaluated

    @property
    def rows(self) -> list[Beam]:
        """See `Way.rows`."""
        return list(self._search.living) if self._search and self._prompt.living else []

    def take(self, beam: Beam, logits: Logits, beside: Many[Logits]) -> None:
        """See `Way.take`."""
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
            beam.text.push(self._tools.outbox.piece(seq, token, len(beam.tokens) - 1))
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
        """See `OfPrompt.tell`. A token of a search is generated when it is told."""
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
