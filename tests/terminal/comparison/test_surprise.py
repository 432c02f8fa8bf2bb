"""The conditional surprise of texts given others with the same prompt and setting."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from terminal.comparison.test_compare import lines, table
from terminal.conftest import Run

from srb.errors import SettingsError
from srb.options.settings import Settings
from srb.terminal.comparison.measures import Findings, Result
from srb.terminal.comparison.results import read_results
from srb.terminal.comparison.scorers import Surprise
from srb.terminal.comparison.sequential import read_decisions
from srb.terminal.comparison.spec import read_spec

SPEC = """
n = 4
max_tokens = 6
ignore_eos = true
prompts = ["one", "two"]
[settings.usual]
[settings.wild]
temperature = 2
[scorers.surprise]
siblings = 8
[scorers.alone]
siblings = 0
"""


def result(seed: int, text: str, **fields: Any) -> Result:
    made = Result("p", "s", seed, text, model="m", prompt_text="Once", key=f"{seed}{fields}")
    return replace(made, **fields)


def contexts(siblings: int, results: list[Result]) -> list[str | None]:
    found = Surprise(siblings, "").contexts(results)
    return [found.get(each.key) for each in results]


def test_each_half_comes_after_the_other() -> None:
    rows = [result(seed, f" {seed}") for seed in (3, 0, 2, 1, 9)]  # as they arrived
    even, odd = "Once 0\n\nOnce 2\n\nOnce", "Once 1\n\nOnce 3\n\nOnce"
    assert contexts(8, rows) == [even, odd, odd, even, odd]
    assert contexts(1, rows) == [
        "Once 0\n\nOnce",
        "Once 1\n\nOnce",
        "Once 1\n\nOnce",
        "Once 0\n\nOnce",
        "Once 1\n\nOnce",
    ]
    assert contexts(0, rows) == ["Once"] * 5


def test_only_whole_texts_of_the_same_prompt_and_setting_are_siblings() -> None:
    rows = [
        result(0, "a"),
        result(1, "b"),
        result(3, ""),
        result(0, "d", setting="t"),
        result(0, "e", prompt="q", messages=[]),
        result(0, "f", model="n"),
    ]
    assert contexts(8, rows) == ["Onceb\n\nOnce", "Oncea\n\nOnce", *[None] * 4], "one text has no sibling"
    rows = [result(seed, "a", messages=[{"role": "user", "content": "x"}], prompt_text="user: x") for seed in (0, 1)]
    assert contexts(8, rows)[0] == "user: x\nassistant: a\n\nuser: x\nassistant: "


def test_a_score_is_in_bits_per_byte() -> None:
    scorer = Surprise(8, "")
    assert scorer.score({"logprob": -4 * math.log(2)}, "é") == pytest.approx(2)
    assert scorer.score({"logprob": -4, "retokenized": True}, "é") is None


@pytest.mark.e2e  # it needs no model, but self-BLEU and statistics take long to import
@pytest.mark.usefixtures("no_plots")
def test_texts_are_scored_after_their_siblings(srb: Run, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)
    assert srb("compare", "spec.toml") == 0
    rows = lines()
    (tmp_path / "asked.jsonl").write_text(
        "".join(
            json.dumps({"context": context, "continuations": [row["text"]]}) + "\n"
            for row, context in zip(rows, contexts(8, read_results(Path("spec-results"))), strict=True)
        )
    )
    assert srb("score", "asked.jsonl", "--json") == 0
    scores = [json.loads(each) for each in srb.out.splitlines()]
    for row, event in zip(rows, sorted(scores, key=lambda each: each["context"]), strict=True):
        bits = -event["logprob"] / math.log(2) / len(row["text"].encode())
        assert row["scores"]["surprise"] == pytest.approx(bits, rel=1e-4)
    assert all(row["scores"]["alone"] > 0 for row in rows)
    assert float(table("measures.csv")[0]["score_surprise"]) > 0

    before = Path("spec-results/judged.jsonl").read_text()
    assert srb("compare", "spec.toml") == 0
    assert Path("spec-results/judged.jsonl").read_text() == before, "no text is scored twice"
    assert "; 0 prompt tokens evaluated, 0 tokens generated;" in srb.out


@pytest.mark.e2e  # it needs no model, but self-BLEU and statistics take long to import
@pytest.mark.usefixtures("no_plots")
def test_siblings_are_one_group(srb: Run, tmp_path: Path) -> None:
    """Their scores depend on each other, so with one prompt there is nothing to estimate an error from."""
    (tmp_path / "spec.toml").write_text(SPEC.replace('"one", "two"', '"one"'))
    assert srb("compare", "spec.toml") == 0
    found = Findings.of(read_results(Path("spec-results")))
    assert {each.measure for each in found.tests} >= {"alone"}
    assert "surprise" not in {each.measure for each in found.tests}
    for each in found.pooled.values():
        assert each.values["surprise"]
        assert each.intervals["surprise"] is None
        assert each.intervals["alone"]


@pytest.mark.e2e  # it needs no model, but self-BLEU and statistics take long to import
@pytest.mark.usefixtures("no_plots")
def test_texts_without_a_score_are_told(srb: Run, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC.replace('"one", "two"', f'"{"x" * 3000}"'))  # two are too long
    assert srb("compare", "spec.toml") == 0
    assert "srb: scorers.surprise: 8 of 8 texts have no score: " in srb.err
    assert {row["scores"]["surprise"] for row in lines()} == {None}
    assert all(row["scores"]["alone"] for row in lines())


@pytest.mark.parametrize("siblings", ["-1", "33", "true", '"8"'])
def test_wrong_numbers_are_named(siblings: str, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(f'prompts = ["one"]\n[scorers.s]\nsiblings = {siblings}\n')
    with pytest.raises(SettingsError, match=r"scorers\.s: siblings must be a whole number from 0 to 32"):
        read_spec(tmp_path / "spec.toml", Settings())


@pytest.mark.e2e  # it needs no model, but self-BLEU and statistics take long to import
@pytest.mark.usefixtures("no_plots")
def test_scores_of_texts_alone_can_end_a_comparison(srb: Run, tmp_path: Path) -> None:
    spec = SPEC.replace("[scorers.surprise]\nsiblings = 8\n", "").replace("n = 4", "n = 8")
    (tmp_path / "spec.toml").write_text(spec.replace('"one", "two"', '"one"'))
    assert srb("compare", "spec.toml", "--until", "0.05") == 0
    (decision,) = read_decisions(Path("spec-results"))
    assert decision.measure == "alone"
    assert decision.groups > 0
