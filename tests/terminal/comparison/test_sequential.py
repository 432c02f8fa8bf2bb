"""`--until` keeps its error although it looks after each group, and ends as soon as there is a difference."""

from typing import Any

import numpy as np
import pytest
from driver import few

from srb.terminal.comparison.measures import p_value
from srb.terminal.comparison.sequential import Decision, allowed, sequential_interval, sequential_test

PLANNED = 24
ERROR = 0.05


def decided(differences: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> int:
    """Return the number of groups after which the test decides, or 0."""
    looks, p = sequential_test([*map(float, differences)], PLANNED, ERROR, resamples=999)
    return looks if p <= allowed(looks, PLANNED, ERROR) else 0


@pytest.mark.parametrize("runs", few(100, many=[2_000]))
@pytest.mark.parametrize("scores", ["normal", "binary"])
def test_looks_find_no_more_than_they_may(runs: int, scores: str) -> None:
    chance = np.random.default_rng(7)
    normal, binary = chance.normal(size=(runs, PLANNED)), chance.integers(-1, 2, size=(runs, PLANNED)).astype(float)
    found = sum(decided(each) > 0 for each in (normal if scores == "normal" else binary))
    assert found / runs <= ERROR + 3 * (ERROR * (1 - ERROR) / runs) ** 0.5


def test_a_difference_ends_the_test_early() -> None:
    chance = np.random.default_rng(7)
    looks = [decided(chance.normal(1, 1, size=PLANNED)) for _ in range(100)]
    assert sum(each > 0 for each in looks) > 95
    assert np.mean(looks) < 14


def test_equal_texts_decide_nothing() -> None:
    assert sequential_test([0.0] * PLANNED, PLANNED, ERROR, resamples=999) == (PLANNED, 1.0)


def test_a_decision_stays_when_there_is_more() -> None:
    differences = [1.0, 2.0, 1.5, 1.2, 0.8, 1.1, 1.9, 1.4] * 2
    looks, p = sequential_test(differences, PLANNED, ERROR)
    assert looks < len(differences)
    assert sequential_test(differences[:looks], PLANNED, ERROR) == (looks, p)
    assert sequential_test([*differences, -9.0], PLANNED, ERROR) == (looks, p)


@pytest.mark.parametrize("scale", [1e-10, 1e10])
def test_the_scale_of_the_scores_does_not_matter(scale: float) -> None:
    differences = [1.0, 2.0, 1.5, 1.2, 0.8, 1.1, 1.9, 1.4] * 2
    looks, p = sequential_test(differences, PLANNED, ERROR)
    scaled, its_p = sequential_test([scale * each for each in differences], PLANNED, ERROR)
    assert scaled == looks
    assert its_p == pytest.approx(p, abs=0.002)  # it has other random signs


def test_differences_with_rare_large_values_are_found_little_more_often_than_by_a_test_of_all() -> None:
    chance, shape = np.random.default_rng(7), (150, 48)
    draws: Any = np.where(chance.random(shape) < 0.2, 4.0, -1.0) + chance.normal(0, 0.1, shape)
    tests = [sequential_test([*each], 48, ERROR, resamples=399) for each in draws]
    found = sum(p <= allowed(looks, 48, ERROR) for looks, p in tests)
    assert found <= sum(p_value(draws) <= ERROR) + 12  # an error that is spent evenly finds 20 more


def test_a_test_that_has_not_ended_names_what_is_allowed_so_far() -> None:
    decision = Decision("a", "b", "good", 48, 96, 0.05, 0.1, None, None, 0.02, allowed(48, 96, 0.05))
    assert str(decision) == (
        "b isn't found to differ from a in good: 48 of 96 groups, p = 0.02, and at most 0.0063 is allowed after these."
    )


@pytest.mark.parametrize("runs", few(8, many=[40]))
@pytest.mark.parametrize("effect", [0.0, 0.7])
@pytest.mark.parametrize("scores", ["normal", "binary"])
def test_the_interval_holds_wherever_the_test_stops(effect: float, scores: str, runs: int) -> None:
    chance = np.random.default_rng(3)
    draws: Any = chance.normal(effect, 1, size=(runs, PLANNED))
    if scores == "binary":  # the first setting succeeds in a fifth of its texts
        draws = 1.0 * (chance.random((runs, PLANNED)) < 0.2 + effect) - (chance.random((runs, PLANNED)) < 0.2)
    covered = 0
    for draw in draws:
        looks, p = sequential_test([*draw], PLANNED, ERROR, resamples=199)
        found = sequential_interval([*draw[:looks]], PLANNED, ERROR, resamples=199)
        if found is None:  # it can stop early, with successes only
            assert {*draw[:looks]} == {1.0}
            covered += 1
            continue
        low, high = found
        covered += low <= effect <= high
        assert (p <= allowed(looks, PLANNED, ERROR)) == (not low <= 0 <= high)  # the text and the numbers agree
    assert covered / runs >= 1 - ERROR - 3 * (ERROR * (1 - ERROR) / runs) ** 0.5


@pytest.mark.parametrize("differences", [[], [1.0], [0.0] * PLANNED, [2.0] * PLANNED, [1.0, 2.0, 3.0]])
def test_equal_or_few_differences_have_no_interval(differences: list[float]) -> None:
    assert sequential_interval(differences, PLANNED, ERROR, resamples=199) is None
