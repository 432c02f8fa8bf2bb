"""Measures against values known from elsewhere, or worked out by hand."""

import math
from dataclasses import replace

import pytest

from srb.terminal.comparison.measures import Findings, Result, distinct, measure, perplexity, repeats, self_bleu


def result(text: str, length: int = 1, mean_logprob: float | None = None) -> Result:
    return Result("p", "s", 0, text, length, "stop", None, mean_logprob)


def test_distinct_counts_ngrams_per_word() -> None:
    assert distinct(["a b a b", "a b c"], 1) == 3 / 7
    assert distinct(["a b a b", "a b c"], 2) == 3 / 7  # ab, ba, bc
    assert distinct(["a", ""], 2) == 0
    assert distinct(["", " "], 1) is None


def test_self_bleu_of_known_texts() -> None:
    assert self_bleu(["the same words as there"] * 3) == pytest.approx(100)
    assert self_bleu(["one two three", "four five six"]) == 0
    assert self_bleu(["alone"]) is None
    # Both ways 5 of 6 words, 3 of 5 pairs, 2 of 4 triples and 1 of 3 quadruples are in the other.
    expected = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** (1 / 4)
    assert self_bleu(["the cat sat on the mat", "the cat sat on a mat"]) == pytest.approx(expected)


def test_repeats_are_grouped_most_frequent_first() -> None:
    assert repeats(["a", " b", "b ", "c", "b"]) == [("b", 3), ("a", 1), ("c", 1)]


def test_perplexity() -> None:
    assert perplexity(math.log(1 / 50)) == pytest.approx(50)
    assert perplexity(None) is None
    assert perplexity(-1e9) == math.inf


def test_the_mean_is_over_texts_and_not_over_tokens() -> None:
    measures = measure([result("a", 1, -4.0), result("b b b", 3, -2.0), result("", 0, None)])
    assert measures.count == 3
    expected = {"mean_logprob": -3, "perplexity": pytest.approx(math.exp(3)), "different": 3, "length": 4 / 3}
    assert {name: measures.values[name] for name in expected} == expected


def test_a_score_may_have_the_name_of_a_measure() -> None:
    named = replace(result("a"), scores={"self_bleu": 7})
    found = Findings.of([named, replace(named, prompt="q")])
    assert {each.values["self_bleu"] for each in (*found.cells.values(), *found.pooled.values())} == {7}


def test_nothing_to_measure() -> None:
    nothing = measure([])
    assert (nothing.count, nothing.values["different"], {*nothing.values.values()}) == (0, 0, {0, None})
