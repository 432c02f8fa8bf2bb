"""Log-probabilities from logits, without sorting the vocabulary."""

import math
from typing import Any

import numpy as np

from srb.engine.backend import Logprobs

Floats = np.ndarray[Any, np.dtype[np.float32]]
Places = np.ndarray[Any, np.dtype[np.intp]]

ROWS = 64
"""`likeliest` lays the logits out as a table of so many rows.

The maxima of its columns tell quickly how large the largest logits are."""


def logprobs(logits: Floats, token: int, top: int) -> Logprobs:
    """The natural logarithms of the softmax: the token's, and (place, logprob) of the `top` largest, largest first.

    logits, of shape (n,), may hold -inf; `token` and the places are indices into it.
    """
    largest = float(logits.max())
    # float32 is exact enough: numpy adds up pairwise, so the error stays near 1e-7 for the largest vocabularies.
    log_sum = largest + math.log(float(np.exp(logits - np.float32(largest)).sum()))
    places = largest_of(logits, min(top, len(logits))).tolist()
    return float(logits[token]) - log_sum, [(place, float(logits[place]) - log_sum) for place in places]


def entropy(logits: Floats) -> float:
    """The entropy of their softmax, in nats. logits, of shape (n,), may hold -inf."""
    shifted = logits - logits.max()
    weights = np.exp(shifted)
    total = float(weights.sum())
    shifted[weights == 0] = 0  # 0 times -inf is not a number
    return max(0.0, math.log(total) - float(weights @ shifted) / total)


def largest_of(logits: Floats, k: int) -> Places:
    """The places of the k largest logits, the largest first. Of equal ones, those at the lowest places come first."""
    if k == 0:
        return np.empty(0, np.intp)
    places = likeliest(logits, k) if k <= len(logits) // ROWS else np.arange(len(logits))
    return np.asarray(places[np.argsort(-logits[places], kind="stable")[:k]])


def likeliest(logits: Floats, k: int) -> Places:
    """The places of the k largest logits, in ascending order. At times there are a few more than k.

    k: at most a `ROWS`-th of the logits. They are laid out as a table of `ROWS` rows. The k columns with the largest
    maxima hold at least k values that are not smaller than the least of these maxima, which is the threshold. So after
    one pass through the table, only columns whose maximum reaches the threshold need a second look.
    """
    columns = len(logits) // ROWS
    table, rest = logits[: ROWS * columns].reshape(ROWS, columns), logits[ROWS * columns :]
    maxima = table.max(axis=0)
    threshold = np.partition(maxima, columns - k)[columns - k]
    (chosen,) = (maxima >= threshold).nonzero()
    (places,) = (table.take(chosen, axis=1) >= threshold).ravel().nonzero()  # numpy is slower with two dimensions
    rows, places = np.divmod(places, len(chosen))
    found: Places = rows * columns + chosen[places]
    if not len(rest):
        return found
    (behind,) = (rest >= threshold).nonzero()
    return np.concatenate((found, ROWS * columns + behind))
