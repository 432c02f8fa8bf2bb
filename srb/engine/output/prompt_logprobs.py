"""Computes and reports the log-probabilities of prompts' own tokens, for requests that want them."""

from collections.abc import Iterator
from dataclasses import replace

from srb.engine.backend import Backend
from srb.engine.events import Token
from srb.engine.output.logprobs import token_of
from srb.engine.output.processor import OutputProcessor
from srb.engine.sequence import Prompt


class PromptLogprobs:
    """Takes the log-probabilities of a scored prompt's tokens from the logits of each decode."""

    def __init__(self, backend: Backend, output: OutputProcessor) -> None:
        self._backend = backend
        self._output = output

    def on_computed(self, prompt: Prompt, n_tokens: int, last_row: int) -> None:
        """Takes the log-probabilities of the last `n_tokens` of a prompt, and reports them."""
        scores, end = prompt.scores, prompt.n_computed
        if scores and scores.end > end - n_tokens:
            for place in range(scores.end, min(end + 1, len(scores.tokens))):
                logits = self._backend.logits(last_row - end + place)
                token = scores.tokens[place]
                scores.append(self._backend.logprobs(logits, token, scores.top), self._backend.rank(logits, token))
        self.report(prompt)

    def report(self, prompt: Prompt) -> None:
        """Reports the tokens whose log-probabilities are known, and that weren't reported yet."""
        scores, tokenizer = prompt.scores, self._backend.tokenizer
        if scores is None or scores.n_reported >= scores.end:
            return
        request, begin = prompt.active.request, scores.n_reported
        scores.n_reported = scores.end

        def tokens(top: int) -> Iterator[Token]:
            for place, token in enumerate(scores.tokens[begin : scores.end], begin):
                if place:
                    yield replace(token_of(tokenizer, token, scores.of(place, top)), rank=scores.rank(place))
                else:
                    yield Token(token, tokenizer.special_piece(token), None)  # nothing comes before it

        if request.prompt_logprobs is not None:
            self._output.prompt_logprobs(prompt, tuple(tokens(request.prompt_logprobs)))
        if request.echo and request.logprobs is not None:
            echoed = list(tokens(request.logprobs))
            for seq in prompt.living:
                for reported in echoed:
                    self._output.add_text(seq, [reported], seq.push_prompt(reported.piece))
