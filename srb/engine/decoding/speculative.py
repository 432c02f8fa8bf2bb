"""`SpeculativeSampling`: draws as `Sampling` does, and evaluates what will probably be drawn together with the last
token.

An example: after "the old" the guess is " man and the sea". The step evaluates " old", " man", " and", " the" and
" sea" at once, which takes little longer than one of them. Then tokens are drawn one after the other, from the logits
behind each. If these are " man", " and", " a", the logits behind " the" and " sea" are those of another text: nobody is
told of them, and their cells are emptied. So three tokens came with one step, and without a guess they are the same.

`engine/guesses/` says what is guessed, and how many of these tokens are worth a row. Leviathan, Kalman and Matias,
"Fast inference from Transformers via speculative decoding" (ICML 2023), accept tokens by a rule that keeps the
distribution. Here the sampler draws each token, as it does without guesses. So the text of a seed can only change with
the last bits of logits, which depend on the rows that are evaluated together.
"""

from collections.abc import Sequence as Many
from dataclasses import replace

from srb.engine.backend import Logits
from srb.engine.batch import in_use
from srb.engine.decoding.sampling import Sampling
from srb.engine.decoding.strategy import EngineParts
from srb.engine.sequence import Prompt, Sequence
from srb.engine.spec_decode.base import AcceptanceRate
from srb.engine.spec_decode.proposers import proposers_of


class SpeculativeSampling(Sampling):
    """Draws the tokens of a sequence, several in a step where these were guessed."""

    def __init__(self, prompt: Prompt, tools: EngineParts) -> None:
        super().__init__(prompt, tools)
        self._guesses = proposers_of(prompt, tools.backend)
        self._n_before: dict[Sequence, int] = {}  # how many tokens each had before the step
        self._evaluated: list[Sequence] = []  # those whose guesses were in the last decode

    def before_step(self) -> None:
        """Guesses what each sequence says next."""
        for seq in self.rows:
            seq.draft_tokens = self._ahead(seq)
            self._n_before[seq] = len(seq.tokens)

    def _ahead(self, seq: Sequence) -> Many[int]:
        """The guessed tokens that are worth a row, and have room: the last token of a text is never evaluated."""
        room = seq.max_tokens - 1 - seq.n_own
        backend, scheduler = self._tools.backend, self._tools.scheduler
        n_rows = scheduler.leased
        guesses = [guess for guess in self._guesses.get(seq, ()) if n_rows <= guess.most_rows and room > 0]
        if not guesses:
            return ()
        most = min(room, backend.n_outputs // n_rows)  # the others may guess as many
        worth = AcceptanceRate(n_rows, seq.position, backend.costs.among(in_use(scheduler.prompts)), most)
        best: Many[int] = ()
        for guess in guesses:
            if tokens := guess.next(worth):
                n, saved = worth.of(guess.trust, len(tokens))
                worth = replace(worth, least=saved)
                best = tokens[:n] or best
        return best

    def begin(self, seq: Sequence) -> None:
        """See `DecodingStrategy.begin`."""
        seq.draft_tokens, self._n_before[seq] = (), len(seq.tokens)
        super().begin(seq)

    def take(self, seq: Sequence, logits: Logits, beside: Many[Logits]) -> None:
        """See `DecodingStrategy.take`. Counts the tokens that were guessed, and those of them that were drawn."""
        if seq.state == "running":
            is_first = len(seq.tokens) == self._n_before[seq]
            self._count(seq, *((len(seq.draft_tokens), 0) if is_first else (0, 1)))
        super().take(seq, logits, beside)

    def _count(self, seq: Sequence, n_drafted: int, n_accepted: int) -> None:
        for counts in (seq, self._tools.totals):
            counts.n_drafted += n_drafted
            counts.n_accepted += n_accepted
        if n_drafted:
            self._evaluated.append(seq)

    def after_step(self) -> None:
        """Empties the cells of tokens that were guessed and not drawn."""
        for seq in self._evaluated:
            self._tools.cells.repair(seq)
        self._evaluated = []
