"""top-H sampling: the likeliest tokens whose entropy is a part of the whole distribution's."""

from typing import Any

import numpy as np

from srb.llama.sampling.logprobs import Floats
from srb.llama.sampling.reshaping import weights_of

_FEW = 1000

Doubles = np.ndarray[Any, np.dtype[np.float64]]


def top_h(part: float, logits: Floats) -> Floats:
    """Keeps the likeliest tokens, as many as leave an entropy of at most `part` times that of all tokens.

    Among such sets of tokens it has nearly the most probability; the likeliest token is always kept: Baghaei Potraghloo
    et al., "Top-H decoding: adapting the creativity and coherence with bounded entropy in text generation" (arXiv
    2509.02510), algorithm 1.

    part: from 0, which keeps the likeliest token alone, to 1, which keeps all. The paper takes 0.4.
    """
    weights = weights_of(logits).astype(np.float64)
    all_of_it = _entropies(weights)[-1]
    for n in (_FEW, len(weights)):  # to sort all takes long, and mostly few are kept
        order = np.argpartition(-logits, n)[:n] if n < len(weights) else np.arange(len(weights))
        order = order[np.argsort(-logits[order], kind="stable")]
        within = _entropies(weights[order])[1:] <= part * all_of_it
        if not within.all():
            break
    n_kept = 1 + (len(within) if within.all() else int(within.argmin()))
    kept = np.full_like(logits, -np.inf)
    kept[order[:n_kept]] = logits[order[:n_kept]]
    return kept


def _entropies(weights: Doubles) -> Doubles:
    """The entropy of the first token alone, of the first two among themselves, and so on, in nats."""
    sums = weights.cumsum()
    logs = np.log(np.where(weights > 0, weights, 1))
    with np.errstate(divide="ignore", invalid="ignore"):
        entropies: Doubles = np.log(sums) - (weights * logs).cumsum() / sums
    return entropies
