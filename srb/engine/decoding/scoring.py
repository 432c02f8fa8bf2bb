"""`Scoring`: log-probabilities of given tokens. `PromptScoring`: those of the prompt's own tokens."""

from dataclasses import replace

from srb.engine.backend import Backend
from srb.engine.constraints.base import SamplingInput
from srb.engine.decoding.base import EngineParts
from srb.engine.decoding.sampling import Sampling
from srb.engine.events import Token
from srb.engine.listener import Listener
from srb.engine.output.logprobs import token_of
from srb.engine.output.processor import OutputProcessor
from srb.engine.sequence import Prompt, Sequence


class Scoring(Sampling):
    """Gives each alternative the tokens of its candidate, and reports their log-probabilities.

    An alternative is forked off its prompt as for sampling. But all of its tokens are draft tokens, up to 128 in a
    batch, except the last, which is never evaluated. With blocks (`Backend.block_size`), each has a batch of its own.
    """

    def __init__(self, prompt: Prompt, parts: EngineParts) -> None:
        super().__init__(prompt, parts)
        for seq in prompt.sequences:
            seq.params = replace(seq.params, max_tokens=len(self._active.request.candidates[seq.index]))

    def before_step(self) -> None:
        for seq in self.rows if not self._prompt.block_size else ():
            seq.draft_tokens = self._active.request.candidates[seq.index][seq.length : -1]

    def _next_token(self, seq: Sequence, inputs: SamplingInput) -> int:
        return self._active.request.candidates[seq.index][seq.length]


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
                self._output.add_text(seq, [reported], seq.push_prompt(reported.piece))
