"""`PromptScoring`: finds and tells the log-probabilities of prompts' own tokens, for requests that want them."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from srb.engine.backend import Backend, Logprobs
from srb.engine.decoding.sampling import Sampling
from srb.engine.events import Token
from srb.engine.listener import Listener
from srb.engine.output.logprobs import token_of
from srb.engine.output.processor import OutputProcessor
from srb.engine.sequence import ActiveRequest, Prompt, Sequence

# `GivenTokens`: stands in for the sampler of an alternative that is scored, whose tokens are known before they are
# drawn. So a continuation is scored like an alternative is drawn: it is forked off its prompt, and each token is
# reported with the log-probability that it has there. But nobody needs to wait for a token before the next one is
# evaluated. The planner evaluates them together (`Row.draft_tokens`), up to 128 of them in a step, and then they are
# drawn one after the other.


class Scoring(Sampling):
    """Draws the given tokens. All are evaluated ahead but the end, which needs no row.

    With blocks (`Backend.block_size`) each is in a row of its own, as if it were drawn.
    """

    def before_step(self) -> None:
        """Sets which tokens are evaluated ahead."""
        for seq in self.rows if not self._prompt.block_size else ():
            seq.draft_tokens = self._active.request.candidates[seq.index][seq.length : -1]


class GivenTokens:
    """Draws the given tokens, whatever the logits are. Implements `srb.engine.backend.Sampler`."""

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self._left = iter(tokens)

    def sample(self, logits: Any, excluded: Collection[int] = (), biases: Mapping[int, float] | None = None) -> int:
        """The next token."""
        return next(self._left)

    def hold(self, n_tokens: int) -> None:
        """Given tokens stay."""

    def go_back(self, n_tokens: int) -> None:
        """Given tokens stay."""

    def forced(self, most: int) -> tuple[int, ...]:
        """Nobody asks: the way knows them."""
        return ()

    def logprobs(self, token: int, top: int) -> Logprobs:
        """Nothing else could have been drawn."""
        return 0.0, [(token, 0.0)][:top]

    def close(self) -> None:
        """There is nothing to free."""


def give_tokens(active: ActiveRequest) -> None:
    """Gives the alternatives of a request their tokens, if these are scored and not drawn."""
    candidates = active.request.candidates
    for seq in active.sequences if candidates else ():
        tokens = candidates[seq.index]
        seq.params = replace(seq.params, max_tokens=len(tokens))
        seq.sampler = GivenTokens(tokens[len(seq.resumed_tokens) :])


class PromptScoring(Listener):
    """Takes the log-probabilities of a scored prompt's tokens from the logits of each decode."""

    def __init__(self, backend: Backend, output: OutputProcessor) -> None:
        self._backend = backend
        self._output = output

    def on_computed(self, prompt: Prompt, n_tokens: int, last_row: int) -> None:
        """See `Listener.n_computed`."""
        scores, end = prompt.scores, prompt.n_computed
        if scores and scores.end > end - n_tokens:
            for place in range(scores.end, min(end + 1, len(scores.tokens))):
                logits = self._backend.logits(last_row - end + place)
                scores.append(self._backend.logprobs(logits, scores.tokens[place], scores.top))
        self.begins(prompt)

    def shares(self, source: Prompt | Sequence, prompt: Prompt) -> None:
        """See `Listener.shares`."""
        if prompt.scores and isinstance(source, Prompt) and source.scores:
            prompt.scores.take(source.scores)

    def inherits(self, prompt: Prompt, heir: Prompt) -> None:
        """See `Listener.inherits`. The others may wait for log-probabilities, so the heir finds them, too."""
        if prompt.scores and not heir.scores:
            heir.scores = prompt.scores.unreported_tokens(heir.packed)

    def begins(self, prompt: Prompt) -> None:
        """Reports the tokens whose log-probabilities are known, and that weren't reported yet."""
        scores, tokenizer = prompt.scores, self._backend.tokenizer
        if scores is None or scores.told >= scores.end:
            return
        tokens = []
        for place, token in enumerate(scores.tokens[scores.told : scores.end], scores.told):
            first = Token(token, tokenizer.special_piece(token), None)  # nothing comes before it, so it has none
            tokens.append(token_of(tokenizer, token, scores.of(place)) if place else first)
        scores.told = scores.end
        for seq in prompt.living:
            for reported in tokens:
                self._output.say(seq, [reported], seq.precede(reported.piece))
