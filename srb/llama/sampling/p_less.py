"""p-less sampling, as a sampler of a llama.cpp chain that is written in Python."""

from typing import Any

import llama_cpp
import numpy as np

from srb.llama.sampling.candidates import rows_of
from srb.llama.sampling.logprobs import Floats


def p_less() -> Any:
    """A sampler that leaves the tokens that `is_kept` keeps. NULL if there is no memory."""
    return llama_cpp.llama_sampler_init(_INTERFACE, None)


def is_kept(logits: Floats) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Whether each token is at least as likely as two draws from the distribution are to be the same token.

    The probability of that is the sum of the squares of all probabilities. It is at most the largest probability, so
    the likeliest token is always kept: Tan, Wu and Howard, "p-less sampling: a robust hyperparameter-free approach for
    LLM decoding" (arXiv 2509.23234).

    logits, of shape (n,), may hold -inf. If they hold nothing else, all are kept.
    """
    largest = logits.max()
    if largest == -np.inf:
        return np.ones(len(logits), np.bool_)
    weights = np.exp(logits - largest)
    # No weight is over 1, so no square is over its weight. Both sums are added up in the same order; so rounding
    # never makes that of the squares the larger one, and the likeliest token, with a weight of 1, stays.
    return np.asarray(weights * weights.sum() >= np.square(weights).sum())


def _apply(_: Any, array: Any) -> None:
    rows = rows_of(array.contents)
    left = rows[is_kept(rows["logit"])]
    rows[: len(left)] = left
    array.contents.size = len(left)


# It has no state, so llama.cpp needs no other function of it, and one interface is enough for all samplers.
_INTERFACE = llama_cpp.llama_sampler_i(apply=llama_cpp.llama_sampler_i_apply(_apply))
