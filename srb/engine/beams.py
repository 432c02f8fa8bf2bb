"""Carries out searches: forks the beams, and says the tokens that all texts have in common as soon as they are sure."""

from collections.abc import Callable
from functools import partial

from srb.engine.backend import Backend, Logits
from srb.engine.cells import Cells
from srb.engine.events import FinishReason
from srb.engine.outbox import LONGEST_CHARACTER, Outbox
from srb.engine.search import Beam, Search, StochasticSearch
from srb.engine.sequence import Prompt, Sequence
from srb.engine.stats import Totals
from srb.engine.text import TextState
from srb.errors import BackendError, NoTokenError


class Beams:
    """The searches that run, by their prompts. The alternatives of a prompt get the texts that its search finds.

    finish: ends a sequence; see `Decoding.finish`.
    """

    def __init__(
        self,
        backend: Backend,
        cells: Cells,
        outbox: Outbox,
        totals: Totals,
        finish: Callable[[Sequence, FinishReason, str | None], None],
    ) -> None:
        self._backend = backend
        self._tokenizer = backend.tokenizer
        self._cells = cells
        self._outbox = outbox
        self._totals = totals
        self._finish = finish
        self._prompts: dict[Prompt, None] = {}

    def prompt_of(self, beam: Beam) -> Prompt | None:
        """The prompt whose search has this beam, if the search still runs."""
        return next((each for each in self._prompts if each.search is beam.search and each.living), None)

    def add(self, prompt: Prompt) -> None:
        """Adds an evaluated prompt, whose search starts with the next `begin`. Adding it twice does no harm."""
        self._prompts[prompt] = None

    def begin(self) -> None:
        """Takes the first step of the searches that were added."""
        for prompt in self._prompts:
            if prompt.search is None:
                prompt.search = self._search(prompt)
                (root,) = prompt.search.living
                root.seq_id, root.text = prompt.seq_id, self._text(prompt)
                assert prompt.logits is not None
                self._take(prompt, root, prompt.logits)
        self.go_on()

    def take(self, beam: Beam, logits: Logits) -> None:
        """Takes the logits of the token that follows a beam. They are valid until the next decode."""
        if prompt := self.prompt_of(beam):
            self._take(prompt, beam, logits)

    def go_on(self) -> None:
        """Takes a step of each search that has had the logits of all its beams."""
        for prompt in list(self._prompts):
            if not prompt.living:
                del self._prompts[prompt]
            elif prompt.search and all(beam.ranked is not None for beam in prompt.search.living):
                try:
                    self._step(prompt, prompt.search)
                except BackendError as error:
                    for seq in prompt.living:
                        self._outbox.error(prompt.active, seq.index, error)
                        self._finish(seq, "error", None)

    def _search(self, prompt: Prompt) -> Search:
        request, first = prompt.active.request, prompt.sequences[0]
        params, n = first.params, len(request.branches)
        ranker, ends = self._backend.ranker(params), partial(self._ends, prompt)
        n_before, most = len(prompt.tokens), first.max_tokens
        if request.search == "stochastic_beam":
            seed = request.branches[0].seed
            return StochasticSearch(
                ranker, ends, n=n, n_before=n_before, max_tokens=most, min_tokens=params.min_tokens, seed=seed
            )
        return Search(
            ranker,
            ends,
            n=n,
            width=request.n_beams,
            n_before=n_before,
            max_tokens=most,
            min_tokens=params.min_tokens,
            length_penalty=request.length_penalty,
            early_stopping=request.early_stopping,
        )

    def _text(self, prompt: Prompt) -> TextState | None:
        """The text of the first beam, with nothing behind the prompt; None: there are no stop strings to look for."""
        stops = prompt.sequences[0].text.stops
        if stops is None:
            return None
        text = TextState(stops)
        text.precede(b"".join(map(self._tokenizer.special_piece, prompt.asked[-LONGEST_CHARACTER:])))
        return text

    def _take(self, prompt: Prompt, beam: Beam, logits: Logits) -> None:
        beam.search.take(beam, logits)
        if prompt.active.request.logprobs is not None:
            beam.logits = logits.copy()

    def _ends(self, prompt: Prompt, beam: Beam) -> FinishReason | None:
        """Why a beam's text ends with its last token; None: it doesn't end."""
        token, seq = beam.tokens[-1], prompt.sequences[0]
        if self._tokenizer.is_end(token):
            return "stop"
        if beam.parent and beam.parent.text:
            beam.text = beam.parent.text.copy()
            beam.text.push(self._outbox.piece(seq, token, len(beam.tokens) - 1))
            if beam.text.matched:
                beam.stop_reason = beam.text.matched
                return "stop"
        return "length" if len(beam.tokens) == seq.max_tokens else None

    def _step(self, prompt: Prompt, search: Search) -> None:
        if prompt.sequences[0].max_tokens == 0:
            for seq in prompt.living:
                self._finish(seq, "length", None)
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
        self._cells.fork_beams(prompt, parents)

    def _report(self, prompt: Prompt, search: Search) -> None:
        """Keeps what the request wants to know about the last token of each beam, such as its probability."""
        for beam in (*search.living, *search.found):
            parent = beam.parent
            if parent and len(beam.reported) < len(beam.tokens):
                logits = prompt.logits if parent.logits is None else parent.logits
                assert logits is not None
                beam.reported = [*parent.reported, self._outbox.report(prompt.living[0], beam.tokens[-1], logits)]

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
                self._outbox.error(prompt.active, seq.index, NoTokenError(problem or "", param="search"))
                self._finish(seq, "error", None)
                continue
            self._say(seq, found, len(found.tokens))
            seq.logprob, seq.weight = found.logprob, search.weight(found)
            self._finish(seq, found.finish_reason or "stop", found.stop_reason)

    def _say(self, seq: Sequence, beam: Beam, end: int) -> None:
        """Gives an alternative the first `end` tokens of a beam, and says those that weren't said yet."""
        for place in range(seq.length, end):
            seq.tokens.append(beam.tokens[place])
            self._totals.tokens_generated += 1
            self._outbox.drawn(seq, beam.tokens[place], beam.reported[place] if beam.reported else [], 0.0)
