"""A caller's own function on the logits of a sequence."""

import math

import numpy as np

from srb.engine.sampling_params import LogitsProcessor
from srb.errors import LogitsProcessorError
from srb.llama.logprobs import Floats


class Processor:
    """Calls a request's `logits_processor` with the tokens of one sequence, which are held in one growing array."""

    def __init__(self, function: LogitsProcessor, prompt: tuple[int, ...]) -> None:
        self._function = function
        self._tokens = np.array(prompt, np.int32)
        self._n_tokens = len(prompt)

    def accept(self, token: int) -> None:
        """Takes the sequence's next token."""
        if self._n_tokens == len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.empty_like(self._tokens)))
        self._tokens[self._n_tokens] = token
        self._n_tokens += 1

    def process(self, logits: Floats) -> Floats:
        """What the function makes of a row of logits, which stays as it is. Raises `LogitsProcessorError`."""
        tokens = self._tokens[: self._n_tokens]
        tokens.flags.writeable = False
        row = logits.copy()
        try:
            result = self._function(tokens, row[:])  # a view, whose shape is its own
        except Exception as error:
            raise LogitsProcessorError(f"logits_processor raised {type(error).__name__}: {error}") from error
        if result is not None:
            raise LogitsProcessorError(
                f"logits_processor must change the logits in place and return None, got {type(result).__name__}"
            )
        if not math.isfinite(largest := float(row.max())):  # NaN is the largest of all
            raise LogitsProcessorError(
                "logits_processor must leave a finite logit, and beside such only -inf, for a ban; "
                f"the largest one is {largest}"
            )
        return row
