"""Says how sure a comparison is: bootstrap intervals, and paired tests, both scipy's."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

CONFIDENCE = 0.95
RESAMPLES = 9_999
SEED = 0
"""The seed of the resampling. It is fixed, so that the same results give the same report."""

Interval = tuple[float, float]


def interval(values: Sequence[float], weights: Sequence[float] | None = None) -> Interval | None:
    """The 95% interval of the mean, by scipy's bias-corrected and accelerated bootstrap; None for one value.

    weights: for a weighted mean, the weight of each value. A value is drawn together with its weight.
    """
    import numpy as np  # numpy and scipy are imported in functions, because it takes a while
    from scipy.stats import bootstrap

    if len(values) < 2:
        return None
    samples = np.array(values), np.array(weights if weights is not None else [1.0] * len(values))
    if len({*values}) == 1:
        return values[0], values[0]

    def mean(x: Any, w: Any, axis: int = -1) -> Any:
        return (x * w).sum(axis=axis) / w.sum(axis=axis)

    for method in ("BCa", "percentile"):  # BCa has no answer if leaving out one value changes nothing
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = bootstrap(
                samples,
                mean,
                paired=True,
                vectorized=True,
                n_resamples=RESAMPLES,
                confidence_level=CONFIDENCE,
                method=method,
                rng=np.random.default_rng(SEED),
            ).confidence_interval
        if math.isfinite(found.low) and math.isfinite(found.high):
            break
    return float(found.low), float(found.high)


@dataclass(frozen=True)
class Paired:
    """Two kinds of texts, compared by the pairs that have the same prompt and seed.

    one, other: the names of the kinds. measure: the name of what is compared. pairs: how many pairs there are.
    difference: the mean of other - one. low, high: its 95% interval.
    p: of a two-sided permutation test that swaps within pairs; exact if there are few pairs.
    adjusted: p after the adjustment of Benjamini and Hochberg 1995, for all tests of a report.
    """

    one: str
    other: str
    measure: str
    pairs: int
    difference: float
    low: float
    high: float
    p: float
    adjusted: float = math.nan


def paired(
    one: str, other: str, measure: str, values: Mapping[Any, float], others: Mapping[Any, float]
) -> Paired | None:
    """Compares the values with the same key. Returns None for fewer than two pairs."""
    import numpy as np
    from scipy.stats import permutation_test

    keys = [key for key in values if key in others]
    differences = [others[key] - values[key] for key in keys]
    if (ends := interval(differences)) is None:
        return None
    p = 1.0
    if any(differences):

        def mean_difference(x: Any, y: Any, axis: int = -1) -> Any:
            return (y - x).mean(axis=axis)

        found = permutation_test(
            (np.array([values[key] for key in keys]), np.array([others[key] for key in keys])),
            mean_difference,
            permutation_type="samples",
            vectorized=True,
            n_resamples=RESAMPLES,
            rng=np.random.default_rng(SEED),
        )
        p = float(found.pvalue)
    return Paired(one, other, measure, len(keys), math.fsum(differences) / len(keys), *ends, p)


def adjusted(tests: Sequence[Paired]) -> list[Paired]:
    """The same tests, each with its adjusted p."""
    from scipy.stats import false_discovery_control

    if not tests:
        return []
    values = false_discovery_control([each.p for each in tests])
    return [replace(each, adjusted=float(value)) for each, value in zip(tests, values, strict=True)]
