"""The tokens that samplers choose from, with their logits."""

import ctypes
from typing import Any

import llama_cpp
import numpy as np

from srb.engine.asking.sampling_params import SamplingParams
from srb.llama.sampling.logprobs import ROWS, Floats, Places, likeliest

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
