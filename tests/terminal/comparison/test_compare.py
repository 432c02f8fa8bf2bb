"""`srb compare` on the fake backend."""

import _thread
import csv
import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_backend import END, FakeBackend
from terminal.conftest import Run

from srb.engine.sampling_params import SamplingParams
from srb.terminal.comparison.results import read_results

pytestmark = pytest.mark.e2e  # it needs no model, but drawing the plots takes long

SPEC = """
n = 4
seeds = [0, 10]
max_tokens = 6
ignore_eos = true

[prompts]
one = "a beginning that is shared by all: one"
two = "a beginning that is shared by all: two"
other = "another prompt, which is a different one"

[settings.cold]
temperature = 0
[settings.usual]
[settings.wild]
temperature = 2
"""
BEGINNING = len("a beginning that is shared by all: ")


@pytest.fixture(autouse=True)
def _spec(backend: FakeBackend, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(SPEC)


def lines(path: str = "spec-results/results.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def table(name: str, folder: str = "spec-results") -> list[dict[str, str]]:
    with Path(folder, name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_files_of_a_comparison(srb: Run) -> None:
    assert srb("compare", "spec.toml") == 0
    results = lines()
    assert [(each["prompt"], each["setting"], each["seed"]) for each in results] == [
        (prompt, setting, seed)
        for prompt in ("one", "two", "other")
        for setting in ("cold", "usual", "wild")
        for seed in (0, 1, 2, 3, 10, 11, 12, 13)
    ]
    assert all(each["length"] == 6 and each["mean_logprob"] < 0 and each["model"] == "fake" for each in results)
    rows = table("results.csv")
    assert [row["text"] for row in rows] == [each["text"] for each in results]
    cells = table("measures.csv")
    assert [(cell["prompt"], cell["setting"], cell["count"]) for cell in cells[:4]] == [
        ("one", "cold", "8"),
        ("one", "usual", "8"),
        ("one", "wild", "8"),
        ("two", "cold", "8"),
    ]
    out, err = srb.out, srb.err
    assert out.startswith("72 of 72 alternatives; ")
    assert out.endswith(" 432 tokens generated; see spec-results/report.html\n")
    evaluated = BEGINNING + 2 * len("one") + len("another prompt, which is a different one")
    assert f" {evaluated} prompt tokens evaluated" in out, "a shared beginning is evaluated once"
    assert err == ""


def test_a_report_and_a_rating_change_nothing_of_what_another_run_writes(srb: Run) -> None:
    assert srb("compare", "spec.toml") == 0
    path = Path("spec-results/results.jsonl")
    results = read_results(path.parent)
    half = path.read_text() + '{"model": "half of a li'
    path.write_text(half)  # another process is at it
    path.chmod(0o444)
    assert read_results(path.parent) == results
    assert srb("compare", "--report", "spec-results") == 0
    assert path.read_text() == half


def test_the_same_command_goes_on(srb: Run) -> None:
    assert srb("compare", "spec.toml") == 0
    report = Path("spec-results/report.html").read_text()
    path = Path("spec-results/results.jsonl")
    whole = path.read_text().splitlines(keepends=True)
    cut = whole[50].replace('"finish_reason": "length"', '"finish_reason": "abort"')  # as srb 0.1.0 kept it
    path.write_text("".join(whole[5:50]) + cut + whole[60][:30])  # it was killed while it wrote
    assert srb("compare", "spec.toml") == 0
    assert path.read_text() == "".join(whole)
    assert f"{27 * 6} tokens generated" in srb.out
    without_usage = re.compile("Last run: [^<]*|· 20[^<]*·")
    assert without_usage.sub("", Path("spec-results/report.html").read_text()) == without_usage.sub("", report)
    assert srb("compare", "spec.toml") == 0
    assert "; 0 prompt tokens evaluated, 0 tokens generated;" in srb.out


def test_alternatives_that_depend_on_each_other_run_together(srb: Run, backend: FakeBackend, tmp_path: Path) -> None:
    spec = SPEC + "[settings.diverse]\ndiversity = 2\n"
    (tmp_path / "spec.toml").write_text(spec)
    assert srb("compare", "spec.toml") == 0
    path = Path("spec-results/results.jsonl")
    whole = path.read_text()
    kept = [line for line in whole.splitlines(keepends=True) if '"seed": 11' not in line]
    path.write_text("".join(kept))
    assert srb("compare", "spec.toml") == 0
    assert f"{3 * (3 + 4) * 6} tokens generated" in srb.out  # all four of the diverse ones
    assert path.read_text() == whole
    (tmp_path / "spec.toml").write_text(spec.replace("n = 4", "n = 5"))
    assert srb("compare", "spec.toml") == 2, "they would have other siblings"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_what_is_done(srb: Run, backend: FakeBackend, number: signal.Signals) -> None:
    def interrupt() -> None:
        if path.exists() and path.read_text():
            backend.on_decode = lambda: None
            _thread.interrupt_main(number)

    path = Path("spec-results/results.jsonl")
    backend.on_decode = interrupt
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background ignores it
    assert srb("compare", "spec.toml", "-n", "1") == 130
    signal.signal(signal.SIGINT, previous)
    done = lines()
    assert 0 < len(done) < 72
    assert {line["finish_reason"] for line in done} == {"length"}
    assert f"spec-results has {len(done)} of 72 alternatives; run it again to continue" in srb.err
    assert f"<p>{len(done)} of 72 alternatives" in Path("spec-results/report.html").read_text()
    assert srb("compare", "spec.toml") == 0
    assert len(lines()) == 72


def test_a_changed_spec_keeps_what_is_there(srb: Run, tmp_path: Path) -> None:
    assert srb("compare", "spec.toml") == 0
    (tmp_path / "spec.toml").write_text(SPEC + "[settings.wilder]\ntemperature = 3\n")
    assert srb("compare", "spec.toml") == 0
    out = srb.out
    assert out.startswith("96 of 96 alternatives; ")
    assert f" {24 * 6} tokens generated; " in out
    before = lines()
    (tmp_path / "spec.toml").write_text(SPEC)  # without the new setting
    assert srb("compare", "spec.toml") == 2
    message = (
        "results.jsonl, line 25, has a model, weights, prompt, setting or seed that isn't in the spec; choose another"
    )
    assert message in srb.err
    assert lines() == before
    assert srb("compare", "spec.toml", "--out", "elsewhere") == 0
    assert len(lines("elsewhere/results.jsonl")) == 72


def test_a_folder_with_something_else_in_it(srb: Run, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/results.jsonl").write_text("not JSON\n")
    assert srb("compare", "spec.toml", "--out", "out") == 2
    assert "out/results.jsonl, line 1, is not a result" in srb.err
    assert srb("compare", "spec.toml", "--out", "spec.toml") == 2
    assert "spec.toml/results.jsonl can't be written: File exists" in srb.err


def test_failed_alternatives_are_left_for_the_next_run(srb: Run, backend: FakeBackend) -> None:
    backend.fail_decodes = {*range(1_000)}
    assert srb("compare", "spec.toml") == 1
    assert srb.out.startswith("0 of 72 alternatives")
    backend.fail_decodes = {1, 2}
    assert srb("compare", "spec.toml") == 1
    out, err = srb.out, srb.err
    assert "llama_decode failed with code -3" in err
    assert 0 < len(lines()) < 72
    assert out.startswith(f"{len(lines())} of 72 alternatives")
    backend.fail_decodes = set()
    assert srb("compare", "spec.toml") == 0
    assert len(lines()) == 72


def test_repeated_texts_are_grouped_and_nothing_in_the_report_is_markup(
    srb: Run, backend: FakeBackend, tmp_path: Path
) -> None:
    def script(params: SamplingParams, tokens: tuple[int, ...]) -> int:
        text = b"<script>alert(1)</script>" if params.temperature == 0 else b"$\\frac{$ %d" % params.seed
        said = len(tokens) - len("<b>&amp;")
        return text[said] if said < len(text) else END

    backend.script = script
    spec = 'n = 3\n[prompts]\n"_<i>$x" = "<b>&amp;"\n[settings."<u>"]\ntemperature = 0\n[settings."$y_"]\n'
    (tmp_path / "spec.toml").write_text(spec)
    assert srb("compare", "spec.toml", "--max-tokens", "40") == 0
    page = Path("spec-results/report.html").read_text()
    without_tokens = re.sub("<span class=t [^>]*>|</span>", "", page)
    assert without_tokens.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 1
    assert "&times; 3" in page
    assert page.count("same as seed 0") == 2
    assert not re.search("<(script|[biu]>|link|img|iframe)", page)
    assert page.count("<svg") == 1
    assert "&lt;b&gt;&amp;amp;" in page
    targets = re.findall(r"""(?:src|href)=["']?([^"'> ]+)""", page)
    assert all(target.startswith("#") for target in targets)


def test_a_spec_is_checked_before_the_model_is_loaded(
    srb: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delattr("srb.serving.async_engine.load_backend")
    (tmp_path / "spec.toml").write_text(SPEC + "top_p = 7")
    assert srb("compare", "spec.toml") == 2
    assert srb.err == "srb: spec.toml: settings.wild: top_p must be from 0 to 1, got 7.0\n"
    assert not Path("spec-results").exists()


def test_what_only_the_model_knows_is_named_with_its_prompt(srb: Run, backend: FakeBackend, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(f'prompts = ["fits", "{"x" * 5000}"]')
    assert srb("compare", "spec.toml") == 2
    assert "srb: prompts.2: prompt has" in srb.err
    assert lines() == []


def test_an_extra_that_is_missing_is_named(srb: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "sacrebleu" else True)
    assert srb("compare", "spec.toml") == 2
    said = srb.err
    assert f"srb compare needs sacrebleu: {sys.executable} -m pip install 'llama-srb[compare]'" in said


def test_results_are_verified(srb: Run, backend: FakeBackend) -> None:
    backend.fingerprint = "0123"
    assert srb("compare", "spec.toml") == 0
    assert {each["fingerprint"] for each in lines()} == {"0123"}
    assert (
        "With the fingerprint 0123, the same command generates the same texts."
        in Path("spec-results/report.html").read_text()
    )
    before = {path: path.read_bytes() for path in Path("spec-results").iterdir()}
    assert srb("compare", "spec.toml", "--verify") == 0
    assert srb.out == "72 of 72 alternatives are identical\n"
    results = Path("spec-results/results.jsonl")
    changed = lines()
    changed[3]["text"] = "X" + changed[3]["text"][1:]
    changed[5]["tokens"][0][1] += 1e-12
    results.write_text("".join(json.dumps(each) + "\n" for each in changed))
    assert srb("compare", "spec.toml", "--verify") == 1
    out, err = srb.out, srb.err
    assert out == "70 of 72 alternatives are identical\n"
    assert re.search(r"^srb: one, cold, seed 3: the text differs from character 0 on: 'X.*, and now '", err, re.M)
    assert "srb: one, cold, seed 11: the text is the same, but different: tokens\n" in err
    results.write_bytes(before[results])
    assert {path: path.read_bytes() for path in Path("spec-results").iterdir()} == before


def test_results_are_exported_for_inspect_ai(srb: Run, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(
        'n = 2\nmax_tokens = 6\nprompts = ["one"]\n[settings.a]\n[settings.b]\ntop_k = 1\n'
    )
    assert srb("compare", "spec.toml", "--export", "inspect") == 0
    assert "inspect view --log-dir spec-results/inspect" in srb.out
    logs = [json.loads(path.read_text()) for path in sorted(Path("spec-results/inspect").iterdir())]
    assert [log["eval"]["task"] for log in logs] == ["spec-results-a", "spec-results-b"]
    texts = [each["output"]["completion"] for log in logs for each in log["samples"]]
    assert texts == [each["text"] for each in lines()]
    assert srb("compare", "--report", "spec-results", "--out", "again", "--export", "inspect") == 0
    assert len([*Path("again/inspect").iterdir()]) == 2
    assert srb("compare", "spec.toml", "--verify", "--export", "inspect") == 2
    assert "--export needs a spec, or --report" in srb.err


UNTIL = """
n = 40
prompts = ["a prompt"]
decides = "length"
ignore_eos = true
[settings.short]
max_tokens = 2
[settings.long]
max_tokens = 3
"""


def test_until_ends_when_a_difference_is_found(srb: Run, tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(UNTIL)
    assert srb("compare", "spec.toml", "--until", "0.05") == 0
    printed = srb.out
    assert "long differs from short in length: 11 of 40 groups, " in printed
    assert [each["seed"] for each in lines()] == [*range(12)] * 2
    (test,) = (row for row in table("tests.csv") if row["measure"] == "length")
    assert f"p = {float(test['p']):.2g}" in printed
    report = Path("spec-results/report.html").read_text()
    assert "These p and intervals allow for the looks" in report
    assert (report.count("<td>--until, 95% interval</td>"), report.count("<td>sign-flip, 95% interval")) == (1, 1)

    assert srb("compare", "spec.toml", "--until", "0.05") == 0
    assert "0 tokens generated" in srb.out
    assert srb("compare", "--report", "spec-results", "--out", "later") == 0
    assert table("tests.csv", "later") == table("tests.csv")
    assert "long differs from short in length: 11 of 40 groups, " in Path("later/report.html").read_text()
    assert srb("compare", "spec.toml") == 0  # the rest of the plan
    assert len(lines()) == 80
    assert srb("compare", "--report", "spec-results", "--out", "later") == 0
    assert "allow for the looks" not in Path("later/report.html").read_text()


@pytest.mark.usefixtures("no_plots")
def test_runs_with_until_have_their_own_tests(srb: Run, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(UNTIL.replace("ignore_eos = true", "").replace("_tokens = 3", "_tokens = 30"))
    (tmp_path / "b.toml").write_text(UNTIL)
    assert srb("compare", "a.toml", "--until", "0.05", "--out", "a") == 0
    (test,) = (row for row in table("tests.csv", "a") if row["measure"] == "length")
    low, difference, high = (float(test[name]) for name in ("low", "difference", "high"))
    assert 0 < low < difference < high
    assert f"The difference is {low:.3g} to {high:.3g} (95% interval)." in srb.out

    assert srb("compare", "b.toml", "--until", "0.05", "--out", "b") == 0
    assert srb("compare", "--report", "a", "b", "--out", "both") == 0
    rows = {(row["one"], row["other"]): row for row in table("tests.csv", "both") if row["measure"] == "length"}
    names = ("groups", "difference", "low", "high", "p")
    assert [rows["a · short", "a · long"][name] for name in names] == [test[name] for name in names]
    assert ("a · short", "b · long") in rows  # of a fixed number of groups
    assert "b: long differs from short in length" in Path("both/report.html").read_text()
    Path("a/until.json").write_text("[1]")
    assert srb("compare", "--report", "a", "b", "--out", "both") == 2
    assert "a/until.json isn't what srb compare --until has written" in srb.err


@pytest.mark.parametrize(
    ("error", "spec", "message"),
    [
        ("0.05", SPEC, "3 groups can't tell 3 settings apart"),
        ("0.9", UNTIL.replace("40", "1"), "1 group can't tell 2 settings apart, because p is at least 2 / 2 ** 1"),
        ("5", SPEC, "--until must be above 0 and below 1"),
        ("0.05", UNTIL.partition("[settings.long]")[0], "1 models and 1 settings"),
        ("0.05", UNTIL.replace("length", "beauty"), "decides must be one of mean_logprob, length, got 'beauty'"),
    ],
)
def test_until_says_what_it_needs(srb: Run, tmp_path: Path, error: str, spec: str, message: str) -> None:
    (tmp_path / "spec.toml").write_text(spec)
    assert srb("compare", "spec.toml", "--until", error) == 2
    assert message in srb.err


@pytest.mark.usefixtures("no_plots")
def test_the_report_names_the_direction_of_each_text(srb: Run) -> None:
    Path("spec.toml").write_text(
        'prompts = ["Anna waited. The door"]\nn = 2\nseeds = [0, 5]\nmax_tokens = 3\n'
        '[settings.plain]\n[settings.led]\ndirections = ["she <lies>", ""]\n'
    )
    assert srb("compare", "spec.toml") == 0
    found = [(each["setting"], each["seed"], each["direction"]) for each in lines()]
    assert found == [
        *(("plain", seed, None) for seed in (0, 1, 5, 6)),
        *(("led", 0, "she <lies>"), ("led", 1, ""), ("led", 5, "she <lies>"), ("led", 6, "")),
    ]
    texts = {(each["setting"], each["seed"]): each["text"] for each in lines()}
    assert texts["plain", 0] != texts["led", 0]
    assert texts["plain", 1] == texts["led", 1]
    assert Path("spec-results/report.html").read_text().count("<div class=more>she &lt;lies&gt;</div>") == 2
