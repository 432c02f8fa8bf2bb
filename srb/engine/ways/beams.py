"""`Beams`: carries out a search. It forks the beams, and says what all texts have in common as soon as it is sure.

The alternatives of a prompt with a search hold nothing; the beams have the rows. The cells and seq_ids of all beams are
leased together with the prompt, which keeps its own: at most max_tokens - 1 cells for each beam, because forks share
cells. A beam that goes on keeps its cells. One that doesn't is removed, and its seq_id goes to a fork. So there are
never more sequences than the beams and the prompt. An example with two beams:

    "a" (seq 1) ─┬─ "b"   keeps seq 1          "c" (seq 2)   removed: none of its ways on is among the two likeliest
                 └─ "x"   forked off seq 1 to seq 2

Alternatives get the tokens that all beams, and all texts that were found, begin with; and at the end they get the rest.
So journals, probabilities and history know nothing of beams. To go on after an interruption, a search begins anew with
the prompt, and skips what was said.
"""

from collections.abc import Sequence as Many
from dataclasses import replace
from functools import partial

from srb.engine.backend import Logits
from srb.engine.kv.needs import LEAST_ROOM
from srb.engine.ports import Rule
from srb.engine.sequence import Prompt, Sequence
from srb.engine.telling.events import FinishReason, StopEvent
from srb.engine.ways.search import Beam, Search
from srb.engine.ways.tools import OfPrompt, Tools
from srb.errors import BackendError, NoTokenError


class Beams(OfPrompt):
    """The search of a prompt. The prompt's sequences get the texts that it finds."""

    begins_anew = True  # it finds the same texts again
    keeps_step = True

    def __init__(self, prompt: Prompt, tools: Tools) -> None:
        super().__init__(prompt, tools)
        self.n_rows = prompt.active.request.n_rows
        self._search: Search | None = None  # once the prompt is evaluated

    @property
    def rows(self) -> list[Beam]:
        """See `Way.rows`."""
        return list(self._search.living) if self._search and self._prompt.living else []

    def size(self, seq: Sequence, wanted: int, most: int, n_cells: int) -> bool:
        """See `Way.size`. Beams get no more room later, so all of them have the same."""
        room = (n_cells - len(self._prompt.tokens)) // self.n_rows
        seq.max_tokens = seq.room = min(LEAST_ROOM if wanted == -1 else wanted, room + 1)
        return False

    def begin(self, seq: Sequence) -> None:
        """See `Way.begin`. The search itself begins when this was called for all sequences."""
        seq.state = "running"

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
                self._tools.outbox.error(self._active, seq.index, error)
                self._tools.decoding.finish(seq, "error", None)

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
                self._say(seq, search.living[0], search.n_settled)
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
            found = search.found[rank] if rank < len(search.found) else None
            problem = None
            if found is None:
                problem = f"there are only {len(search.found)} different texts to find"
            elif found.tokens[: seq.length] != [*seq.begun, *seq.tokens]:
                problem = "the search was interrupted, and came to another text this time"
            if found is None or problem:
                self._tools.outbox.error(prompt.active, seq.index, NoTokenError(problem or "", param="search"))
                self._tools.decoding.finish(seq, "error", None)
                continue
            self._say(seq, found, len(found.tokens))
            seq.rules.append(Found(found.logprob))
            self._tools.decoding.finish(seq, found.finish_reason or "stop", found.stop_reason)

    def _say(self, seq: Sequence, beam: Beam, end: int) -> None:
        """Gives an alternative the first `end` tokens of a beam, and says those that weren't said yet."""
        self._tools.totals.tokens_generated += end - seq.length
        self.tell(seq, beam.tokens, beam.reported, end)

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
                backend.fork(source, beam.seq_id, beam.position)
                self._tools.totals.forks += 1


class Found(Rule):
    """Tells how probable the text is that an alternative got from a search."""

    def __init__(self, logprob: float) -> None:
        self._logprob = logprob

    def ended(self, event: StopEvent) -> StopEvent:
        """See `Rule.ended`."""
        return replace(event, logprob=self._logprob)
