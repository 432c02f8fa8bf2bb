"""p-less sampling: the distribution itself says which tokens may be drawn."""

import numpy as np

from srb.llama.sampling.logprobs import Floats
from srb.llama.sampling.reshaping import weights_of


def p_less(logits: Floats) -> Floats:
    """Drops each token that is less likely than two draws from the distribution are to be the same token.

    The probability of that is the sum of the squares of all probabilities. It is at most the largest probability, so
    the likeliest token is always kept: Tan, Wu and Howard, "p-less sampling: a robust hyperparameter-free approach for
    LLM decoding" (arXiv 2509.23234).
    """
    weights = weights_of(logits)
    # No weight is over 1, so no square is over its weight. Both sums are added up in the same order; so rounding
    # never makes that of the squares the larger one, and the likeliest token, with a weight of 1, stays.
    return np.where(weights * weights.sum() >= np.square(weights).sum(), logits, np.float32(-np.inf))
