"""The weights of particles, and which of them go on: the arithmetic of sequential Monte Carlo. Pure functions.

Texts are drawn side by side, each by the samplers. Their weights say how much more or less of each there should be. If
few of them have most of the weight, the weak ones are replaced by copies of the strong ones, and all weights are equal
again. For language models: A. K. Lew et al., "Sequential Monte Carlo Steering of Large Language Models using
Probabilistic Programs" (arXiv 2306.03081), and S. Zhao et al., "Probabilistic Inference in Language Models via Twisted
Sequential Monte Carlo" (arXiv 2404.17546). There the likelihood of the suffix after an unfinished text is a *twist*.
"""

import math
import random
from collections.abc import Sequence


def normalized(log_weights: Sequence[float]) -> list[float]:
    """Weights that add up to 1, from their natural logarithms. If all of these are -inf, the weights are equal."""
    highest = max(log_weights)
    if highest == -math.inf:
        return [1 / len(log_weights)] * len(log_weights)
    weights = [math.exp(each - highest) for each in log_weights]
    total = math.fsum(weights)
    return [each / total for each in weights]


def effective_size(weights: Sequence[float]) -> float:
    """How many particles of equal weights would be as good as these, whose weights add up to 1.

    A. Kong, J. S. Liu and W. H. Wong, "Sequential Imputations and Bayesian Missing Data Problems" (JASA 89, 1994).
    """
    return 1 / math.fsum(each * each for each in weights)


def systematic(weights: Sequence[float], offset: float) -> list[int]:
    """How many copies of each particle go on: as many in all as there are, each n * its weight on average.

    That is systematic resampling: G. Kitagawa, "Monte Carlo Filter and Smoother for Non-Gaussian Nonlinear State Space
    Models" (1996), compared with others by R. Douc and O. Cappe (2005). One random number is enough, and no
    particle gets a copy more, or less, than n * its weight, rounded up or down.

    weights: add up to 1. offset: drawn from 0 to 1.
    """
    n, total, copies = len(weights), 0.0, []
    taken = 0
    for each in weights:
        total += each
        until = min(n, max(taken, math.ceil(n * total - offset)))
        copies.append(until - taken)
        taken = until
    copies[max(k for k in range(n) if weights[k])] += n - taken  # rounding may have lost the last one
    return copies


def drawn_order(log_weights: Sequence[float], rng: random.Random) -> list[int]:
    """The numbers of the particles in the order of draws without replacement, each draw by the weights that are left.

    The largest logarithms with Gumbel noise come first: W. Kool, H. van Hoof and M. Welling (ICML 2019).
    """
    noisy = [each - math.log(rng.expovariate(1.0)) for each in log_weights]
    return sorted(range(len(noisy)), key=lambda k: -noisy[k])
