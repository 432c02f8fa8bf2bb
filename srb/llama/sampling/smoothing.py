"""Smoothing ("quadratic sampling"), which brings the likeliest tokens closer together and the others further away."""

import numpy as np

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
