"""Calls a caller's own function (`logits_processor`) on the logits of a sequence.

Whatever it raises becomes a `BackendError`, which ends this alternative alone.
"""

import math

import numpy as np

from srb.engine.asking.sampling_params import LogitsProcessor
from srb.errors import LogitsProcessorError
from srb.llama.sampling.logprobs import Floats


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

    def go_back(self, n_tokens: int) -> None:
        """Takes back the last tokens."""
        self._n_tokens -= n_tokens

    def process(self, logits: Floats) -> Floats:
        """The row of logits that the function returns for this one. `logits` itself isn't changed.

        Raises `LogitsProcessorError` if the function raises, or leaves logits that can't be used.
        """
        tokens = self._tokens[: self._n_tokens]
        tokens.flags.writeable = False
        row = logits.copy()
        try:
            # The function gets a view, so that a change of the shape doesn't change that of the row.
            result = self._function(tokens, row[:])
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
