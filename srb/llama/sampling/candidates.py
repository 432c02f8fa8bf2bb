"""The tokens that samplers choose from, with their logits."""

import ctypes
import math
from typing import Any

import llama_cpp
import numpy as np

from srb.engine.backend import Logprobs
from srb.engine.sampling_params import SamplingParams

# Log-probabilities from logits, without sorting the vocabulary.

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


_BYTES = ctypes.POINTER(ctypes.c_uint8)
_ROW = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Candidates:
    """All tokens with their logits, in the form that llama.cpp's samplers take.

    A sampler changes the object, so `fill` is called before each draw. One object is enough for a thread.
    """

    def __init__(self, n_vocab: int) -> None:
        self._ids = np.arange(n_vocab, dtype=np.int32)
        # No sampler reads a p that it didn't compute itself, so `fill` needn't reset p.
        self._rows = np.zeros(n_vocab, _ROW)
        self._rest = np.empty(n_vocab, np.float32)
        self._data: Any = self._rows.ctypes.data_as(llama_cpp.llama_token_data_p)
        self.array = llama_cpp.llama_token_data_array()

    def fill(self, logits: Floats, ids: Places | None = None) -> None:
        """Sets the candidates to all tokens with these logits, or only to the tokens `ids`."""
        n = len(logits) if ids is None else len(ids)
        self._rows["logit"][:n] = logits if ids is None else logits[ids]
        self._rows["id"][:n] = self._ids if ids is None else ids
        self.array.data = self._data
        self.array.size = n
        self.array.selected = -1
        self.array.sorted = False

    def likeliest(self, logits: Floats, k: int, changed: Places) -> Places:
        """The ids of the k largest logits among the tokens outside of `changed`, and all ids of `changed`.

        The ids come in ascending order. At times there are a few more than these.

        changed: each id once. k: at most a `logprobs.ROWS`-th of the vocabulary.
        """
        if not len(changed):
            return likeliest(logits, k)
        if len(changed) <= k and k + len(changed) <= len(logits) // ROWS:  # faster than a copy of the logits
            return np.unique(np.concatenate((likeliest(logits, k + len(changed)), changed)))
        rest = self._rest
        rest[:] = logits
        rest[changed] = -np.inf
        found = likeliest(rest, k)
        ids = np.concatenate((found[rest[found] > -np.inf], changed))
        ids.sort()
        return ids

    def keep(self, allowed: "np.ndarray[Any, np.dtype[np.bool_]]") -> None:
        """Bans all tokens for which `allowed`, of shape (n_vocab,), is false. Call it right after `fill`."""
        self._rows["logit"][~allowed] = -np.inf

    @property
    def left(self) -> "tuple[np.ndarray[Any, np.dtype[np.int32]], np.ndarray[Any, np.dtype[np.float32]]]":
        """The ids and the logits of the tokens that the samplers have not removed."""
        rows = rows_of(self.array)
        return rows["id"], rows["logit"]

    @property
    def selected(self) -> int:
        """The token that a chain has chosen."""
        return int(self.array.data[self.array.selected].id)


def rows_of(array: Any) -> "np.ndarray[Any, np.dtype[np.void]]":
    """The candidates in a `llama_token_data_array`, each with `id`, `logit` and `p`. It shares their memory."""
    rows = np.ctypeslib.as_array(ctypes.cast(array.data, _BYTES), (array.size * _ROW.itemsize,))
    return rows.view(_ROW)


def alone(token: int) -> Any:
    """An array with this token as the only candidate, with a logit of 1."""
    one = llama_cpp.llama_token_data(token, 1.0, 0.0)
    return llama_cpp.llama_token_data_array(ctypes.pointer(one), 1, -1, False)


def narrowing_top_k(params: SamplingParams, n_vocab: int) -> int:
    """The top_k of the chain, if no sampler before it needs the whole vocabulary.

    0 if one does, if top_k is off, or if it is large.
    """
    if params.mirostat or "top_k" not in params.samplers or not 0 < params.top_k <= n_vocab // ROWS // 4:
        return 0
    before = params.samplers[: params.samplers.index("top_k")]
    needs_all = any(name not in ("penalties", "dry", "top_n_sigma") for name in before)
    return 0 if needs_all or ("top_n_sigma" in before and params.top_n_sigma > 0) else params.top_k
