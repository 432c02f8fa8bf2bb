"""What a comparison says of its numbers is true as often as it says: of groups, of tables and tests, and of reports."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from driver import few

from srb.terminal.comparison.measures import Findings, Paired, Result, adjusted, groups_of, interval, p_value
from srb.terminal.comparison.report import render


def result(setting: str, seed: int, logprob: float | None, *, prompt: str = "p", **fields: Any) -> Result:
    return Result(prompt, setting, seed, f"{setting} {seed}", 3, "stop", None, logprob, prompt_text="Once", **fields)


@pytest.mark.e2e  # it needs no model, but importing SciPy takes long
@pytest.mark.parametrize("groups", [2, 5, 9, 20])
def test_the_numbers_are_scipys_own(groups: int) -> None:
    from scipy.stats import false_discovery_control, permutation_test, ttest_1samp

    values = np.random.default_rng(groups).normal(0.3, size=groups)
    assert interval(values.tolist()) == pytest.approx(ttest_1samp(values, 0).confidence_interval())
    of_scipy = permutation_test((values,), np.mean, permutation_type="samples", rng=np.random.default_rng(0))
    assert float(p_value(values)) == pytest.approx(of_scipy.pvalue, abs=0 if groups <= 13 else 0.02)
    chances = np.random.default_rng(groups).random(groups)
    tests = [Paired("a", "b", "length", 9, 0.0, None, None, float(each)) for each in chances]
    assert [each.adjusted for each in adjusted(tests)] == pytest.approx(false_discovery_control(chances))


def test_what_is_all_the_same_has_no_interval_and_no_certainty() -> None:
    assert interval([0.1 + 0.2, 0.3, 0.3]) is None
    assert interval([1.0]) is None
    assert float(p_value(np.ones(3))) == 0.25
    assert float(p_value(np.zeros(3))) == 1


@pytest.mark.usefixtures("no_plots")
def test_siblings_that_depend_on_each_other_are_one_group() -> None:
    """Two requests of four alternatives each: with `diversity` in one setting there are two groups, and not eight."""
    plain = [result("plain", seed, -1.0 - seed % 100 / 10) for seed in (1, 2, 3, 4, 101, 102, 103, 104)]
    diverse = [result("diverse", each.seed, -2.0, first=each.seed // 100 * 100 + 1) for each in plain]
    (test,) = [each for each in Findings.of([*plain, *diverse]).tests if each.measure == "mean_logprob"]
    assert (test.groups, test.p) == (2, 0.5)
    without = Findings.of([*plain, *(dataclasses.replace(each, setting="b") for each in plain)])
    assert len(without.groups) == 8
    only_cut = [each for each in diverse if each.seed != 101]  # the group is known by a seed that has no text
    assert len({*groups_of(only_cut).values()}) == 2
    two_runs = [*diverse, *(result("diverse", seed, -2.0, first=4, run="b") for seed in (4, 101))]
    assert len({*groups_of(two_runs).values()}) == 1
    page = render(Findings.of([*plain, *diverse]))
    assert "about this prompt only" in page
    assert "Its texts form 2 groups" in page
    assert "p is at least 0.5" in page


@pytest.mark.usefixtures("no_plots")
def test_one_group_is_too_few_for_a_test() -> None:
    found = [result("s", seed, -1.0, first=1, settings={"diversity": 1}) for seed in (1, 2, 101)]
    assert len({*groups_of(found).values()}) == 1
    page = render(Findings.of([*found, result("t", 1, -2.0)]))
    assert "That is too few for a test." in page


@pytest.mark.usefixtures("no_plots")
def test_prompts_are_groups_and_the_report_says_so() -> None:
    results = [
        result(setting, seed, -1.0 - seed - (setting == "b"), prompt=prompt)
        for prompt in "pq"
        for setting in "ab"
        for seed in (1, 2, 3)
    ]
    found = Findings.of(results)
    assert {each.groups for each in found.tests} == {len(found.groups)} == {2}
    page = render(found)
    assert "Each of the 2 prompts is a group. More seeds" in page


@pytest.mark.usefixtures("no_plots")
def test_prompts_of_one_group_count_once_and_the_report_names_the_groups() -> None:
    texts = {"a 1": "a", "a 2": "a", "b": "b"}
    results = [
        result(setting, seed, -seed / 10 - (setting == "y") - len(prompt), prompt=prompt, group=group)
        for prompt, group in texts.items()
        for setting in "xy"
        for seed in (1, 2, 3)
    ]
    found = Findings.of(results)
    assert {each.groups for each in found.tests} == {2}
    page = render(found)
    assert "The 3 prompts form 2 groups" in page
    assert "depend on each other: a, b. More seeds" in page
    of_one = Findings.of([each for each in results if each.group == "a"])
    assert {each.groups for each in of_one.tests} == {3}, "with one group of prompts, seeds are groups"
    assert "about these forks or rows of one text only" in render(of_one)


@pytest.mark.parametrize("groups", few(8, 30, many=[16]))
def test_scores_of_0_and_1_arent_tested_more_strictly_than_others(groups: int) -> None:
    chance = np.random.default_rng(groups)
    scores = chance.integers(0, 2, size=(2, 4_000 if groups < 14 else 500, groups))
    found = float((p_value(scores[0] - scores[1]) <= 0.05).mean())
    assert found <= 0.055
    assert found > {8: 0.01, 16: 0.03, 30: 0.035}[groups]


def test_the_table_and_the_test_agree() -> None:
    """A long text, an empty one and a prompt with few texts weigh the same in both."""
    texts = [("a", 1, -1.0, 1), ("a", 2, -5.0, 300), ("a", 3, -9.0, 1), ("b", 1, -2.0, 300), ("b", 2, -4.5, 1)]
    results = [
        dataclasses.replace(result(setting, seed, logprob), length=length) for setting, seed, logprob, length in texts
    ]
    results.append(result("b", 3, None))  # it has no tokens: left out, the other one of its pair is left out, too
    found = Findings.of(results)
    (test,) = [each for each in found.tests if each.measure == "mean_logprob"]
    one, other = (each.values["mean_logprob"] for each in found.pooled.values())
    assert one is not None
    assert other is not None
    assert test.difference == pytest.approx(other - one) == pytest.approx(-0.25)
    assert [each.values["mean_logprob"] for each in found.cells.values()] == [one, other]


def test_what_has_no_prompt_in_common_isnt_tested() -> None:
    """The tables have all prompts of each kind then, so a test of some of them could contradict these."""
    of_kind = {"a": "pqrst", "b": "pqr", "c": "xyz"}
    results = [
        result(setting, 1, -float(k) - (setting == "b"), prompt=prompt)
        for setting, prompts in of_kind.items()
        for k, prompt in enumerate(prompts)
    ]
    found = Findings.of(results)
    assert [each.values["mean_logprob"] for each in found.pooled.values()] == [-2, -2, -1]
    assert found.tests == []
    assert [each.measure for each in Findings.of([each for each in results if each.setting != "c"]).tests]
