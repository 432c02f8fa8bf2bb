"""Logits as numpy arrays, and as the candidates that llama.cpp's samplers choose from."""

import ctypes
import math
from typing import Any

import llama_cpp
import numpy as np

from srb.engine.backend import Logprobs
from srb.engine.sampling_params import SamplingParams

Floats = np.ndarray[Any, np.dtype[np.float32]]
Places = np.ndarray[Any, np.dtype[np.intp]]

_ROWS = 64
"""The rows of the table in `likeliest`."""

_BYTES = ctypes.POINTER(ctypes.c_uint8)
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


def logprobs(logits: Floats, token: int, top: int) -> Logprobs:
    """Return the log-probability of a token, and (index, log-probability) of the `top` largest, largest first.

    Args:
        logits: of shape (n,), may hold -inf.
    """
    largest = float(logits.max())
    # float32 is exact enough: numpy adds up pairwise, so the error stays near 1e-7 for the largest vocabularies.
    log_sum = largest + math.log(float(np.exp(logits - np.float32(largest)).sum()))
    places = largest_of(logits, min(top, len(logits))).tolist()
    return float(logits[token]) - log_sum, [(place, float(logits[place]) - log_sum) for place in places]


def entropy(logits: Floats) -> float:
    """Return the entropy of the softmax, in nats. logits: of shape (n,), may hold -inf."""
    shifted = logits - logits.max()
    weights = np.exp(shifted)
    total = float(weights.sum())
    shifted[weights == 0] = 0  # 0 times -inf is not a number
    return max(0.0, math.log(total) - float(weights @ shifted) / total)


def largest_of(logits: Floats, k: int) -> Places:
    """Return the indices of the k largest logits, the largest first; of equal ones, the lowest index first."""
    if k == 0:
        return np.empty(0, np.intp)
    places = likeliest(logits, k) if k <= len(logits) // _ROWS else np.arange(len(logits))
    return np.asarray(places[np.argsort(-logits[places], kind="stable")[:k]])


def likeliest(logits: Floats, k: int) -> Places:
    """Return the indices of the k largest logits, in ascending order, and sometimes a few more.

    The logits are laid out as a table of `_ROWS` rows. The k columns with the largest maxima hold at least k values
    that are not smaller than the least of these maxima, which is the threshold. So after one pass over the table, only
    columns whose maximum reaches the threshold need a second look.

    Args:
        k: at most a `_ROWS`-th of the logits.
    """
    columns = len(logits) // _ROWS
    table, rest = logits[: _ROWS * columns].reshape(_ROWS, columns), logits[_ROWS * columns :]
    maxima = table.max(axis=0)
    threshold = np.partition(maxima, columns - k)[columns - k]
    (chosen,) = (maxima >= threshold).nonzero()
    (places,) = (table.take(chosen, axis=1) >= threshold).ravel().nonzero()  # numpy is slower with two dimensions
    rows, places = np.divmod(places, len(chosen))
    found: Places = rows * columns + chosen[places]
    if not len(rest):
        return found
    (after,) = (rest >= threshold).nonzero()
    return np.concatenate((found, _ROWS * columns + after))


class Candidates:
    """All tokens with their logits, in the form that llama.cpp's samplers take.

    Samplers change the candidates, so `fill` is called before each sampling. One object is enough for a thread.
    """

    def __init__(self, n_vocab: int) -> None:
        self._ids = np.arange(n_vocab, dtype=np.int32)
        # Samplers read only a `p` that they have computed, so `fill` needn't reset it.
        self._rows = np.zeros(n_vocab, _CANDIDATE)
        self._rest = np.empty(n_vocab, np.float32)
        self._data: Any = self._rows.ctypes.data_as(llama_cpp.llama_token_data_p)
        self.array = llama_cpp.llama_token_data_array()

    def fill(self, logits: Floats, ids: Places | None = None) -> None:
        """Set the candidates to all tokens with these logits, or only to the tokens `ids`."""
        n = len(logits) if ids is None else len(ids)
        self._rows["logit"][:n] = logits if ids is None else logits[ids]
        self._rows["id"][:n] = self._ids if ids is None else ids
        self.array.data = self._data
        self.array.size = n
        self.array.selected = -1
        self.array.sorted = False

    def likeliest(self, logits: Floats, k: int, changed: Places) -> Places:
        """Return all ids of `changed`, and those of the k largest logits among the others, in ascending order.

        Sometimes there are a few more. changed: each id once. k: at most a `_ROWS`-th of the vocabulary.
        """
        if not len(changed):
            return likeliest(logits, k)
        if len(changed) <= k and k + len(changed) <= len(logits) // _ROWS:  # faster than a copy of the logits
            return np.unique(np.concatenate((likeliest(logits, k + len(changed)), changed)))
        rest = self._rest
        rest[:] = logits
        rest[changed] = -np.inf
        found = likeliest(rest, k)
        ids = np.concatenate((found[rest[found] > -np.inf], changed))
        ids.sort()
        return ids

    def ban(self, banned: "np.ndarray[Any, np.dtype[np.bool_]]") -> None:
        """Ban all tokens for which `banned`, of shape (n_vocab,), is true. Call it right after `fill`."""
        self._rows["logit"][banned] = -np.inf

    @property
    def remaining(self) -> "tuple[np.ndarray[Any, np.dtype[np.int32]], np.ndarray[Any, np.dtype[np.float32]]]":
        """The ids and logits of the tokens that the samplers haven't removed."""
        rows = rows_of(self.array)
        return rows["id"], rows["logit"]

    @property
    def selected(self) -> int:
        """The token that a chain has selected."""
        return int(self.array.data[self.array.selected].id)


def rows_of(array: Any) -> "np.ndarray[Any, np.dtype[np.void]]":
    """Return a view of a `llama_token_data_array`, with `id`, `logit` and `p` of each candidate."""
    rows = np.ctypeslib.as_array(ctypes.cast(array.data, _BYTES), (array.size * _CANDIDATE.itemsize,))
    return rows.view(_CANDIDATE)


def only(token: int) -> Any:
    """Return a `llama_token_data_array` with this token as the only candidate, with a logit of 1."""
    one = llama_cpp.llama_token_data(token, 1.0, 0.0)
    return llama_cpp.llama_token_data_array(ctypes.pointer(one), 1, -1, False)


def narrowing_top_k(params: SamplingParams, n_vocab: int) -> int:
    """Return the top_k of the chain; 0 if it is off or large, or if a sampler before it needs the whole vocabulary."""
    if params.mirostat or "top_k" not in params.samplers or not 0 < params.top_k <= n_vocab // _ROWS // 4:
        return 0
    before = params.samplers[: params.samplers.index("top_k")]
    needs_all = any(name not in ("penalties", "dry", "top_n_sigma") for name in before)
    return 0 if needs_all or ("top_n_sigma" in before and params.top_n_sigma > 0) else params.top_k
