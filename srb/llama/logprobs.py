"""Log-probabilities from logits, without sorting the vocabulary."""

import math
from typing import Any

import numpy as np

from srb.engine.backend import Logprobs

Floats = np.ndarray[Any, np.dtype[np.float32]]
Doubles = np.ndarray[Any, np.dtype[np.float64]]

_ROWS = 64


def logprobs(logits: Floats, token: int, top: int) -> Logprobs:
    """The natural logarithms of the softmax: the token's, and (place, logprob) of the `top` largest, largest first.

    logits, of shape (n,), may hold -inf; `token` and the places are indices into it.
    """
    largest = float(logits.max())
    # float32 will do: numpy adds up pairwise, so the error stays near 1e-7 for the largest vocabularies.
    log_sum = largest + math.log(float(np.exp(logits - np.float32(largest)).sum()))
    places = largest_of(logits, min(top, len(logits))).tolist()
    return float(logits[token]) - log_sum, [(place, float(logits[place]) - log_sum) for place in places]


def largest_of(logits: Floats | Doubles, k: int) -> np.ndarray[Any, np.dtype[np.intp]]:
    """The indices of the k largest, the largest first; of equal ones, the lowest indices.

    The k columns with the largest maxima hold k values as large as anything outside, so only these need a look.
    """
    if k == 0:
        return np.empty(0, np.intp)
    columns = len(logits) // _ROWS
    if columns > k:
        table = logits[: _ROWS * columns].reshape(_ROWS, columns)
        maxima = table.max(axis=0)
        threshold = np.partition(maxima, columns - k)[columns - k]
        chosen = np.flatnonzero(maxima >= threshold)
        rest = np.arange(_ROWS * columns, len(logits))
        candidates = np.concatenate([(np.arange(_ROWS)[:, None] * columns + chosen).ravel(), rest])
    else:
        candidates = np.arange(len(logits))
    order = np.argsort(-logits[candidates], kind="stable")[:k]
    return np.asarray(candidates[order])
