"""Smoothing ("quadratic sampling"), which brings the likeliest tokens closer together and the others further away."""

from functools import partial
from typing import Any

import llama_cpp
import numpy as np

from srb.llama.sampling.candidates import rows_of
from srb.llama.sampling.logprobs import Floats


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
