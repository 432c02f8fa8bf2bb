"""What `srb compare` does for research, on the fake backend: scorers, judges, variables, chats, forks, models, runs."""

import errno
import json
import math
from pathlib import Path
from typing import Any

import pytest
from fake_backend import FakeBackend
from terminal.comparison.test_compare import lines, table
from terminal.conftest import Run

from srb.errors import SettingsError
from srb.llama.model.chat_template import ChatTemplate
from srb.terminal.comparison.measures import Findings, Result
from srb.terminal.comparison.results import Results, read_results
from srb.terminal.comparison.scorers import read_scorer

pytestmark = pytest.mark.e2e  # it needs no model, but drawing the plots takes long

SPEC = """
n = 3
seeds = [1, 50]
max_tokens = 8
ignore_eos = true
variables = "cities.csv"

[prompts]
city = "The capital of {country} is"
plain = "Nothing to fill in"
ask = {system = "Be brief.", user = "What about {country}?", group = "about {country}"}
fork = {text = "He said", forks = [" no", " yes"]}

[settings.usual]
[settings.wild]
temperature = 2

[scorers.vowel]
regex = "[aeiou]"
[scorers.json]
schema = {type = "number"}
[scorers.words]
function = "counting:words"
[scorers.good]
judge = "About {prompt}: {text}. Good? From a to m:"
answers = {a = 1, b = 0.9, c = 0.8, d = 0.7, e = 0.6, f = 0.5, g = 0, h = 0, i = 0.4, j = 0, k = 0, l = 0, m = 0}
"""
PROMPTS = ["city 1", "city 2", "plain", "ask 1", "ask 2", "fork ' no'", "fork ' yes'"]
GROUPS = {"city": [0, 1], "plain": [2], "about France": [3], "about Italy, too": [4], "fork": [5, 6]}
"""The prompts of each group."""


@pytest.fixture(autouse=True)
def _files(backend: FakeBackend, tmp_path: Path) -> None:
    backend.chat_template = ChatTemplate("{% for each in messages %}{{ each.content }}\n{% endfor %}")
    (tmp_path / "spec.toml").write_text(SPEC)
    (tmp_path / "cities.csv").write_text('country,capital\nFrance,Paris\n"Italy, too",Rome\n')
    (tmp_path / "counting.py").write_text("def words(row):\n    return len(row['text'].split()) or None\n")


def test_a_row_for_each_alternative_has_its_text_settings_and_scores(srb: Run) -> None:
    assert srb("compare", "spec.toml") == 0
    rows = lines()
    assert list(dict.fromkeys(row["prompt"] for row in rows)) == PROMPTS
    texts = {row["prompt"]: row["prompt_text"] for row in rows}
    assert texts["city 2"] == "The capital of Italy, too is"
    assert texts["ask 1"] == "system: Be brief.\nuser: What about France?"
    assert texts["fork ' yes'"] == "He said yes"
    groups = {PROMPTS[place]: group for group, places in GROUPS.items() for place in places}
    assert {row["prompt"]: row["group"] for row in rows} == groups
    assert rows[0]["variables"] == {"country": "France", "capital": "Paris"}
    assert rows[-1]["settings"] == {"max_tokens": 8, "ignore_eos": True, "temperature": 2}
    for row in rows:
        assert "".join(token[0] for token in row["tokens"]) == row["text"]
        assert all(len(likeliest) == 3 for _, _, likeliest in row["tokens"])
        assert row["scores"]["vowel"] == any(letter in row["text"] for letter in "aeiou")
        assert row["scores"]["words"] == (len(row["text"].split()) or None)
        assert 0 <= row["scores"]["good"] <= 1
    assert {row["scores"]["json"] for row in rows} == {0.0}
    assert [row["score_good"] for row in table("results.csv")] == [str(row["scores"]["good"]) for row in rows]


def test_what_was_judged_isnt_asked_again(srb: Run) -> None:
    assert srb("compare", "spec.toml") == 0
    before = lines()
    assert srb("compare", "spec.toml") == 0
    assert "; 0 prompt tokens evaluated, 0 tokens generated;" in srb.out
    assert lines() == before
    Path("spec.toml").write_text(SPEC.replace("Good?", "Really good?"))
    assert srb("compare", "spec.toml") == 0
    assert f"{len(before)} tokens generated" in srb.out  # a token of the judge for each


def test_the_tables_and_the_report_have_the_numbers_that_were_found(srb: Run) -> None:
    assert srb("compare", "spec.toml") == 0
    found = Findings.of(read_results(Path("spec-results")))
    cell = found.cells["city 1", ("", "fake", "wild")]
    low, high = cell.intervals["good"] or (0.0, 0.0)
    numbers = {"self_bleu": cell.values["self_bleu"], "score_good": cell.values["good"]}
    numbers |= {"score_good_low": low, "score_good_high": high}
    (row,) = [each for each in table("measures.csv") if (each["prompt"], each["setting"]) == ("city 1", "wild")]
    assert {name: float(row[name]) for name in numbers} == pytest.approx(numbers)
    test = next(each for each in found.tests if each.measure == "good")
    tested = {"groups": len(GROUPS), "difference": test.difference, "p": test.p, "adjusted": test.adjusted}
    row = next(each for each in table("tests.csv") if each["measure"] == "good")
    assert {name: float(row[name]) for name in tested} == pytest.approx(tested)
    page = Path("spec-results/report.html").read_text()
    assert all(
        f"{value:.3g}" in page for value in (cell.values["self_bleu"], cell.values["good"], test.difference, test.p)
    )


def test_the_likeliest_tokens_are_what_a_number_of_forks_begins_with(srb: Run) -> None:
    Path("spec.toml").write_text(
        'n = 1\nmax_tokens = 2\nignore_eos = true\nprompts = [{text = "He said", forks = 3}]\n'
    )
    assert srb("compare", "spec.toml") == 0
    texts = [line["prompt_text"] for line in lines()]
    assert len({*texts}) == 3
    assert all(len(text) == len("He said") + 1 and text.startswith("He said") for text in texts)


def test_several_models_in_one_report_and_the_rest_after_an_interruption(
    srb: Run, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("spec.toml").write_text(SPEC + '[models.one]\n[models.two]\nmodel = "two.gguf"\nctx_size = 100\n')
    asked = []

    def load(settings: Any, _progress: object) -> FakeBackend:
        asked.append((settings.model, settings.ctx_size))
        if len(asked) > 1:
            backend.__post_init__()
        backend.identity = str(settings.model)
        return backend

    monkeypatch.setattr("srb.serving.async_engine.load_backend", load)
    assert srb("compare", "spec.toml") == 0
    assert asked == [(None, 8192), (Path.cwd() / "two.gguf", 100)] or asked == [(None, 8192), (Path("two.gguf"), 100)]
    rows = lines()
    assert [row["model"] for row in rows] == ["one"] * (len(rows) // 2) + ["two"] * (len(rows) // 2)
    page = Path("spec-results/report.html").read_text()
    assert all(f"<h3>{name}</h3>" in page for name in ("one · usual", "one · wild", "two · usual", "two · wild"))
    assert {each["one"] for each in table("tests.csv")} == {"one · usual"}
    path = Path("spec-results/results.jsonl")
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if '"seed": 51' not in line))
    assert srb("compare", "spec.toml") == 0
    assert f"{2 * 2 * len(PROMPTS) * 8} tokens generated" in srb.out
    assert lines() == rows


def test_two_runs_in_one_report(srb: Run) -> None:
    assert srb("compare", "spec.toml", "--out", "a") == 0
    Path("spec.toml").write_text(SPEC.replace("max_tokens = 8", "max_tokens = 4"))
    assert srb("compare", "spec.toml", "--out", "b") == 0
    assert srb("compare", "--report", "a", "b") == 0
    out = srb.out
    assert out == f"{len(lines('a/results.jsonl')) * 2} alternatives; see a-b/report.html\n"
    others = {(each["other"], each["groups"]) for each in table("tests.csv", "a-b")}
    assert others == {(kind, str(len(GROUPS))) for kind in ("a · wild", "b · usual", "b · wild")}
    found = Findings.of(read_results(Path("a"), "a") + read_results(Path("b"), "b"))
    length = next(test for test in found.tests if test.measure == "length" and test.other == "b · usual")
    assert (length.difference, length.low, length.high) == (-4, None, None)  # the same everywhere
    rating = {"prompt": "1", "seed": 50, "kinds": [["", "fake", "usual"], ["", "fake", "wild"]], "winner": 0}
    Path("b/ratings.jsonl").write_text(json.dumps(rating) + "\n")
    assert srb("compare", "--report", "a", "b", "--out", "rated") == 0
    rated = Path("rated/report.html").read_text().partition("<h2>Blind ratings</h2>")[2]
    assert rated.index("b · usual") < rated.index("b · wild"), "blind ratings are in a report of several folders"
    assert srb("compare", "--report", "a", "nowhere") == 2
    assert "nowhere/results.jsonl can't be read: No such file or directory" in srb.err
    assert srb("compare") == 2
    assert srb("compare", "spec.toml", "--report", "a") == 2
    assert "takes either a spec, or --report or --rate with the results" in srb.err


def test_a_function_that_fails_is_named(srb: Run) -> None:
    Path("failing.py").write_text("def fail(row):\n    raise ValueError('no luck')\n")
    Path("spec.toml").write_text('n = 1\nprompts = ["p"]\nscorers.s.function = "failing:fail"\n')
    assert srb("compare", "spec.toml", "--max-tokens", "2") == 2
    text = "the text of 1, default, seed 0"
    assert srb.err == f"srb: scorers.s: failing:fail failed for {text}: ValueError: no luck\n"
    assert len(lines()) == 1


def test_what_a_function_returns_and_changes(tmp_path: Path) -> None:
    (tmp_path / "returning.py").write_text("def what(row):\n    row['settings']['n'] = 5\n    return row.pop('text')\n")
    score: Any = read_scorer("s", {"function": "returning:what"}, tmp_path, [""])
    values: list[Any] = [2, 0.5, True, None, math.nan, -math.inf]
    results = [Result("p", "s", 1, value) for value in values]
    assert [score(each) for each in results] == [2.0, 0.5, 1.0, None, None, None]
    assert [(each.settings, repr(each.text)) for each in results] == [({}, repr(value)) for value in values]
    with pytest.raises(SettingsError, match="returned '3' for the text of p, s, seed 1; it must return a number, True"):
        score(Result("p", "s", 1, "3"))


def test_a_judge_that_has_no_answer_is_told_once(srb: Run) -> None:
    Path("spec.toml").write_text(
        'n = 3\nmax_tokens = 2\nprompts = ["p"]\nscorers.good = {judge = "{text}", answers = {"→" = 1, "←" = 0}}\n'
    )
    assert srb("compare", "spec.toml") == 0
    reason = "because none of the top 100 tokens starts '→' or '←'"
    assert srb.err == f"srb: scorers.good: 3 of 3 texts have no score, {reason}\n"
    assert [line["scores"] for line in lines()] == [{"good": None}] * 3


def test_all_models_that_cant_be_used_are_told_before_another_runs(srb: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from srb.llama.model.model_file import find_model

    monkeypatch.setattr("srb.terminal.source.find_model", lambda path: find_model(path) if path else Path("fake"))
    Path("spec.toml").write_text(
        'n = 1\nprompts = ["p"]\n[models]\none = {}\ntwo = "nowhere.gguf"\nthree.url = "ftp:x"\n'
    )
    assert srb("compare", "spec.toml", "--max-tokens", "2") == 1
    first, two, three = srb.err.splitlines()
    assert first == "srb: some models can't be used:"
    assert two.startswith("- models.two: the model nowhere.gguf can't be read")
    assert three.startswith("- models.three: --url must begin with")
    assert not Path("spec-results/results.jsonl").read_text()


def test_a_full_disk_keeps_what_is_there(srb: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    Path("spec.toml").write_text('n = 2\nprompts = ["p"]\nmax_tokens = 2\n')
    with monkeypatch.context() as patch:
        patch.setattr(Results, "finish", fail)
        assert srb("compare", "spec.toml") == 1
    message = "srb: the results can't be written: No space left on device; earlier results are intact\n"
    assert srb.err == message
    assert srb("compare", "spec.toml") == 0
    assert "2 of 2 alternatives; 0 prompt tokens evaluated, 0 tokens generated" in srb.out


def test_many_prompts_fold_their_measures(srb: Run) -> None:
    Path("spec.toml").write_text('n = 1\nmax_tokens = 2\nprompts = ["a", "b", "c", "d", "e", "f", "g", "h", "i"]\n')
    assert srb("compare", "spec.toml") == 0
    page = Path("spec-results/report.html").read_text()
    before, _, behind = page.partition("<details>")
    assert (before.count("<td>all prompts</td>"), before.count("<td>9</td>")) == (1, 0)
    assert behind.count("<td>9</td>") == 1


def test_no_plot_is_constant_and_the_head_says_what_it_is(srb: Run) -> None:
    Path("spec.toml").write_text('n = 2\nseeds = [7, 20]\nmax_tokens = 3\nignore_eos = true\nprompts = ["p", "q"]\n')
    assert srb("compare", "spec.toml") == 0
    page = Path("spec-results/report.html").read_text()
    svg = page.partition("<svg")[2].partition("</svg>")[0]
    assert "mean log-probability" in svg
    assert ">tokens<" not in svg
    assert "<td>tokens</td>" not in page  # nor is it tested
    assert "4 seeds from 7 to 21" in page
    assert "srb 0.1.0 · 20" in page


def test_the_numbers_of_a_judge_are_weighed_by_their_probabilities(srb: Run) -> None:
    from srb.terminal.comparison.scorers import Judge

    judge = Judge({"prompt": "{text}"}, {"yes": 1.0, "no": 0.0, "maybe": 0.5}, "")
    tokens = {" Yes": 0.2, "no": 0.1, "N": 0.1, "may": 0.2, "x": 0.3, " ": 0.1}
    top = [{"token": token, "logprob": math.log(p)} for token, p in tokens.items()]
    assert judge.score(top) == pytest.approx((0.2 + 0.2 * 0.5) / 0.6)
    assert judge.score([{"token": "x", "logprob": 0.0}]) is None


def test_json_schemas_in_files(srb: Run) -> None:
    Path("schema.json").write_text(json.dumps({"type": "object", "required": ["a"]}))
    score: Any = read_scorer("s", {"schema": "schema.json"}, Path(), [""])
    texts = ['{"a": 1}', "{}", "{", "[]", '{"a": NaN}', "[" * 100_000]
    assert [score(Result("p", "s", 1, text)) for text in texts] == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    score = read_scorer("s", {"schema": {"$ref": "#/$defs/none"}}, Path(), [""])
    with pytest.raises(SettingsError, match=r"scorers\.s: schema can't be used"):
        score(Result("p", "s", 1, "{}"))
