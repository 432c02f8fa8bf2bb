"""`Scoring`: log-probabilities of given tokens."""

from dataclasses import replace

from srb.engine.constraints.base import SamplingInput
from srb.engine.decoding.base import EngineParts
from srb.engine.decoding.sampling import Sampling
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
            seq.drafting.tokens = self._active.request.candidates[seq.index][seq.length : -1]

    def _next_token(self, seq: Sequence, inputs: SamplingInput) -> int:
        return self._active.request.candidates[seq.index][seq.length]
