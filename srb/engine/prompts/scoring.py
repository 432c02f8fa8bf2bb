"""`PromptScoring`: finds and tells the log-probabilities of prompts' own tokens, for requests that want them."""

from srb.engine.backend import Backend
from srb.engine.ports import Listener
from srb.engine.sequence import Prompt, Sequence
from srb.engine.telling.events import Token
from srb.engine.telling.outbox import Outbox
from srb.engine.telling.reports import token_of


class PromptScoring(Listener):
    """Takes the log-probabilities of a scored prompt's tokens from the logits of each decode."""

    def __init__(self, backend: Backend, outbox: Outbox) -> None:
        self._backend = backend
        self._outbox = outbox

    def evaluated(self, prompt: Prompt, n_tokens: int, last_row: int) -> None:
        """See `Listener.evaluated`."""
        scores, end = prompt.scores, prompt.evaluated
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
            heir.scores = prompt.scores.untold(heir.packed)

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
                self._outbox.say(seq, [reported], seq.precede(reported.piece))
