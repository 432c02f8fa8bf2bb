"""Says how sure a comparison is: intervals and tests for the means of groups that don't depend on each other."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

CONFIDENCE = 0.95
MAX_EXACT = 13
"""Up to so many groups, a test tries all signs. With more it draws `RESAMPLES` of them."""

RESAMPLES = 9_999
SEED = 0
"""The seed of what is drawn. It is fixed, so that the same results give the same report."""

Interval = tuple[float, float]


def margin(values: Any) -> Any:
    """Half the width of Student's 95% interval of the mean: `[..., group]` to `[...]`.

    It is NaN for fewer than two values, and for values that are all the same: these don't tell how far others would be.
    """
    import numpy as np  # numpy and scipy are imported in functions, because it takes a while
    from scipy.special import stdtrit  # the quantile of Student's t; scipy.stats has it, too, and takes 1 s to import

    n = values.shape[-1]
    if n < 2:
        return np.full(values.shape[:-1], np.nan)
    deviation = values.std(axis=-1, ddof=1)
    scale = np.abs(values).max(axis=-1)
    deviation = np.where(deviation > 1e-12 * scale, deviation, np.nan)  # 0.1 + 0.2 isn't 0.3
    return stdtrit(n - 1, (1 + CONFIDENCE) / 2) * deviation / math.sqrt(n)


def interval(values: Sequence[float]) -> Interval | None:
    """The 95% interval of the mean of groups, by Student's t; None if there is none, see `margin`."""
    import numpy as np

    half, mean = float(margin(np.array(values, dtype=float))), math.fsum(values) / max(1, len(values))
    return (mean - half, mean + half) if math.isfinite(half) else None


def p_value(differences: Any) -> Any:
    """The p of a two-sided test that changes the signs of differences: `[..., group]` to `[...]`.

    It says how often the mean would be as far from 0 if each difference were as likely the other way round (Fisher
    1935, section 21). With n groups it is at least 2 / 2 ** n.
    """
    import numpy as np

    n = differences.shape[-1]
    if n <= MAX_EXACT:
        signs = 1 - 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
    else:
        signs = np.random.default_rng(SEED).choice([-1, 1], size=(RESAMPLES + 1, n))
        signs[0] = 1  # what was found is one of the possible ones
    sums = np.abs(differences @ signs.T.astype(float))
    return (sums >= sums[..., :1] * (1 - 1e-9)).mean(axis=-1)


@dataclass(frozen=True)
class Paired:
    """Two kinds of texts, compared group by group.

    one, other: the names of the kinds. measure: the name of what is compared. groups: how many groups there are that
    don't depend on each other. difference: the mean of other - one. low, high: its 95% interval, None if there is none.
    p: see `p_value`. adjusted: p after the adjustment of Benjamini and Hochberg 1995, for all tests of a report.
    """

    one: str
    other: str
    measure: str
    groups: int
    difference: float
    low: float | None
    high: float | None
    p: float
    adjusted: float = math.nan


def paired(
    one: str, other: str, measure: str, values: Mapping[Any, float], others: Mapping[Any, float]
) -> Paired | None:
    """Compares the means of the groups that both have. Returns None for fewer than two groups."""
    import numpy as np

    differences = [others[group] - value for group, value in values.items() if group in others]
    if len(differences) < 2:
        return None
    low, high = interval(differences) or (None, None)
    difference = math.fsum(differences) / len(differences)
    return Paired(one, other, measure, len(differences), difference, low, high, float(p_value(np.array(differences))))


def adjusted(tests: Sequence[Paired]) -> list[Paired]:
    """The same tests, each with its adjusted p."""
    result, least = list(tests), 1.0
    for rank, k in reversed([*enumerate(sorted(range(len(tests)), key=lambda k: tests[k].p), 1)]):
        least = min(least, tests[k].p * len(tests) / rank)
        result[k] = replace(tests[k], adjusted=least)
    return result
