"""Simulate comparisons that end with `srb compare --until 0.05`, looked at after each seed.

usage: python bench/checks/until.py [--runs 2000] [--planned 64]

Without a difference at most 5% of the runs may find one, and the interval may miss the difference in 5% of them, if
differences are symmetric about their mean. Skewed ones are found more often, also by a test of all of them.
The program also prints how many seeds are used on average, and how many a plan of a fixed length needs to find a
difference as often, by Student's t test.
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import nctdtr, stdtrit

from srb.terminal.comparison.measures import p_value
from srb.terminal.comparison.sequential import allowed, sequential_interval, sequential_test

ERROR = 0.05
EVERY = (-np.inf, np.inf)


def main() -> None:
    """Print a row for each distribution of the differences."""
    parser = argparse.ArgumentParser(description="Does --until keep its error, and what does it save?")
    parser.add_argument("--runs", type=int, default=2_000)
    parser.add_argument("--planned", type=int, default=64)
    arguments = parser.parse_args()
    chance = np.random.default_rng(1)
    draws: dict[str, tuple[Callable[[int], Any], float]] = {
        "none, normal": (chance.standard_normal, 0),
        "none, Student's t": (lambda n: chance.standard_t(3, size=n), 0),
        "none, scores of 0 and 1": (lambda n: chance.integers(0, 2, n) - 1.0 * chance.integers(0, 2, n), 0),
        "none, exponential": (lambda n: chance.exponential(size=n) - 1, 0),
        "none, log-normal": (lambda n: chance.lognormal(size=n) - np.exp(0.5), 0),
        "none, a fifth are large": (
            lambda n: np.where(chance.random(n) < 0.2, 4.0, -1.0) + chance.normal(0, 0.1, n),
            0,
        ),
        "0.3, scores of 0 and 1": (lambda n: 1.0 * (chance.random(n) < 0.5) - (chance.random(n) < 0.2), 0.3),
        "0.05, scores of 0 and 1": (lambda n: 1.0 * (chance.random(n) < 0.95) - (chance.random(n) < 0.9), 0.05),
        "0.25 standard deviations": (lambda n: chance.normal(0.25, 1, n), 0.25),
        "0.5 standard deviations": (lambda n: chance.normal(0.5, 1, n), 0.5),
        "1 standard deviation": (lambda n: chance.normal(1, 1, n), 1),
    }
    print("difference", "found", "by a test of all", "right one", "covered", "mean seeds", "fixed plan", sep="\t")
    for name, (draw, effect) in draws.items():
        found, right, covered, used, whole = 0, 0, 0, 0, 0
        for _ in range(arguments.runs):
            differences = draw(arguments.planned)
            looks, p = sequential_test([*differences], arguments.planned, ERROR, resamples=499)
            whole += bool(p_value(differences) <= ERROR)
            if p <= allowed(looks, arguments.planned, ERROR):
                found, right = found + 1, right + bool(np.sum(differences[:looks]) > 0)
            low, high = sequential_interval([*differences[:looks]], arguments.planned, ERROR, resamples=499) or EVERY
            covered += low <= effect <= high
            used += looks
        fixed = (
            fixed_plan(effect, min(found, arguments.runs - 1) / arguments.runs) if "standard deviation" in name else "-"
        )
        shares = (f"{each / arguments.runs:.1%}" for each in (found, whole, right, covered))
        print(name, *shares, f"{used / arguments.runs:.1f}", fixed, sep="\t", flush=True)


def fixed_plan(effect: float, power: float) -> int:
    """Return the number of seeds with which a two-sided t test finds an effect as often."""
    n = 2
    while n < 10_000 and 1 - nctdtr(n - 1, effect * n**0.5, stdtrit(n - 1, 1 - ERROR / 2)) < power:
        n += 1
    return n


if __name__ == "__main__":
    main()
