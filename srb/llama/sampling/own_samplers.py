"""Calls a caller's own function (`logits_processor`) on the logits of a sequence.

Whatever it raises becomes a `BackendError`, which ends this alternative alone.
"""

import math
from collections.abc import Iterable
from functools import partial
from itertools import takewhile
from typing import Any

import llama_cpp
import numpy as np

from srb.engine.sampling_params import LogitsProcessor
from srb.errors import InvalidRequestError, LogitsProcessorError
from srb.llama.sampling.candidates import Floats, rows_of

# Smoothing ("quadratic sampling"), which brings the likeliest tokens closer together and the others further away.


def smoothing(factor: float, curve: float, logits: Floats) -> Floats:
    """Moves each logit by a cubic of its distance to the highest one, as KoboldCpp and text-generation-webui do.

    With d = logit - highest, the logit becomes highest - factor * ((3 - curve) / 2 * d^2 - (curve - 1) / 2 * d^3). With
    a curve of 1 the cubic part is gone.
    """
    highest = logits.max()
    if highest == -np.inf:
        return logits
    distance = np.where(logits > -np.inf, logits - highest, 0)
    moved = highest - factor * ((3 - curve) / 2 * distance**2 - (curve - 1) / 2 * distance**3)
    return np.where(logits > -np.inf, moved, -np.inf).astype(np.float32)


def interface_of(factor: float, curve: float) -> Any:
    """Make the interface of a llama.cpp sampler that smooths, for `llama_sampler_init` without a context.

    llama.cpp keeps a pointer to the interface, so whoever has the sampler must hold the interface, too.
    """
    # The sampler has no state, so llama.cpp needs no other function of it.
    return llama_cpp.llama_sampler_i(apply=llama_cpp.llama_sampler_i_apply(partial(_apply, factor, curve)))


def _apply(factor: float, curve: float, _: Any, array: Any) -> None:
    rows = rows_of(array.contents)
    rows["logit"] = smoothing(factor, curve, rows["logit"])
    array.contents.sorted = False


# DRY's sequence breakers, and a bound of what they cost. llama.cpp looks for each breaker in the texts of all
# tokens. It notes the tokens that have the breaker in them, and those that end where it begins; for each of these it
# tokenizes the rest of the breaker. All this is done in a worker thread. But the sampler of each alternative has a
# copy of the notes, which is made in the engine's thread.

MAX_TOKENS = 20_000
"""How many notes the breakers of one alternative may make. A copy takes about 1 ms then, and tokenizing 0.8 s."""
MAX_IN_ALL = 128
"""How many breakers the different DRY settings of a request may have together. Each takes 5 ms with 50,000 tokens."""

_MAX_BYTES = 40  # llama.cpp cuts longer ones off


def as_read(breakers: Iterable[str]) -> dict[bytes, str]:
    """The breakers as llama.cpp reads them, each once, and the texts that they are made of."""
    read = {text.encode(errors="replace").partition(b"\0")[0][:_MAX_BYTES]: text for text in breakers}
    read.pop(b"", None)
    return read


def check_breakers(texts: bytes, lists: Iterable[tuple[str, ...]]) -> None:
    """Raises `InvalidRequestError` if breakers would take too long.

    texts: those of all tokens, with a zero byte behind each. lists: the breakers of each different DRY setting.
    """
    settings = [as_read(each) for each in lists]
    n_in_all = sum(map(len, settings))
    if n_in_all > MAX_IN_ALL:
        raise InvalidRequestError(
            f"dry_sequence_breakers: the different DRY settings of branches have {n_in_all} breakers together; the "
            f"limit is {MAX_IN_ALL}; give more branches the same DRY settings, or fewer breakers",
            param="dry_sequence_breakers",
        )
    counts: dict[bytes, int] = {}

    def count(text: bytes) -> int:
        if text not in counts:
            counts[text] = texts.count(text)
        return counts[text]

    def ends(breaker: bytes) -> int:
        starts = (breaker[:n] for n in range(1, len(breaker)))
        return sum(count(start + b"\0") for start in takewhile(count, starts))

    n_ends_in_all = 0
    for breakers in settings:
        n_ends = {breaker: ends(breaker) for breaker in breakers}
        n_notes = {breaker: count(breaker) + n_ends[breaker] for breaker in breakers}
        n_ends_in_all += sum(n_ends.values())
        if (n := max(sum(n_notes.values()), n_ends_in_all)) > MAX_TOKENS:
            worst = max(n_notes, key=n_notes.__getitem__)
            raise InvalidRequestError(
                f"dry_sequence_breakers are in {n} texts of the model's tokens, or begin at their ends; the limit is "
                f"{MAX_TOKENS}; leave out {breakers[worst]!r}, which has {n_notes[worst]} of them",
                param="dry_sequence_breakers",
            )


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
