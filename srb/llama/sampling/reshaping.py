"""Samplers of a llama.cpp chain that are written in Python: each is a function from logits to logits."""

from collections.abc import Callable
from functools import partial
from typing import Any

import llama_cpp
import numpy as np

from srb.llama.sampling.candidates import rows_of
from srb.llama.sampling.logprobs import Floats

Reshape = Callable[[Floats], Floats]
"""Takes logits of shape (n,), of which some may be -inf, and returns others. -inf drops a token."""


def interface_of(reshape: Reshape) -> Any:
    """The interface of a sampler that reshapes the logits, for `llama_sampler_init` without a context.

    llama.cpp keeps a pointer to it: whoever has the sampler must hold the interface, too. Tokens with -inf are dropped,
    unless no other is left.
    """
    # Such a sampler has no state, so llama.cpp needs no other function of it.
    return llama_cpp.llama_sampler_i(apply=llama_cpp.llama_sampler_i_apply(partial(_apply, reshape)))


def _apply(reshape: Reshape, _: Any, array: Any) -> None:
    rows = rows_of(array.contents)
    rows["logit"] = reshape(rows["logit"])
    left = rows[rows["logit"] > -np.inf]
    if len(left):
        rows[: len(left)] = left
        array.contents.size = len(left)
    array.contents.sorted = False


def weights_of(logits: Floats) -> Floats:
    """Numbers in proportion to the probabilities. The largest is 1, if any logit is above -inf."""
    largest = logits.max()
    return np.exp(logits - largest) if largest > -np.inf else np.zeros_like(logits)
