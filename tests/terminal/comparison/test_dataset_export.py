"""Results as a dataset: a Parquet file with a row for each alternative, and a card that `datasets` reads."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from terminal.conftest import Run

from srb.terminal.comparison.dataset import COLUMNS, write_dataset
from srb.terminal.comparison.measures import Result

pytestmark = pytest.mark.e2e  # it needs no model, but importing pyarrow takes long


def read(folder: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet

    rows: list[dict[str, Any]] = pyarrow.parquet.read_table(folder / "results.parquet").to_pylist()
    return rows


def result(prompt: str, seed: int, **fields: Any) -> Result:
    given: dict[str, Any] = {
        "text": "a\n“b”",
        "length": 2,
        "finish_reason": "stop",
        "stop_reason": None,
        "mean_logprob": -0.5,
    }
    return Result(prompt, "wild", seed, **(given | fields))


def test_a_row_has_all_of_its_alternative(tmp_path: Path) -> None:
    tokens = [["a\n", -0.25, [["a\n", -0.25], ["c", -2.0]]], ["“b”", None, []]]
    results = [
        result("one", 3, tokens=tokens, scores={"ends": 1.0}, variables={"land": "Österreich"}, group="g"),
        result("two", 3, finish_reason="abort", mean_logprob=None),
    ]
    first, second = read(write_dataset(tmp_path, results))
    assert [*first] == [*COLUMNS, "score_ends"]
    assert first["tokens"] == [
        {"text": "a\n", "logprob": -0.25, "top": [{"text": "a\n", "logprob": -0.25}, {"text": "c", "logprob": -2.0}]},
        {"text": "“b”", "logprob": None, "top": []},
    ]
    assert (first["prompt"], first["cluster"], first["setting"], first["seed"]) == ("one", "g", "wild", 3)
    assert (first["text"], first["finish_reason"], first["score_ends"]) == ("a\n“b”", "stop", 1.0)
    assert json.loads(first["variables"]) == {"land": "Österreich"}
    assert (second["cluster"], second["finish_reason"], second["score_ends"]) == ("two", "abort", None)


def test_the_types_dont_depend_on_the_values(tmp_path: Path) -> None:
    """Else a comparison without stop strings has another type in this column, and can't be joined with one that has."""
    import pyarrow.parquet

    schemas = []
    for number, stop in enumerate((None, "!")):
        (folder := tmp_path / str(number)).mkdir()
        write_dataset(folder, [result("one", 0, stop_reason=stop)])
        schemas.append(pyarrow.parquet.read_schema(folder / "dataset/results.parquet"))
    assert schemas[0] == schemas[1]


def test_a_cluster_is_what_the_tests_count(tmp_path: Path) -> None:
    """With one prompt it is a seed, or the seeds of a request whose alternatives depend on each other."""
    results = [result("one", seed, first=first) for seed, first in ((0, 0), (1, 0), (5, None))]
    rows = read(write_dataset(tmp_path, results))
    assert [row["cluster"] for row in rows] == ["one, seed 0", "one, seed 0", "one, seed 5"]


def test_the_card_names_the_file_and_the_columns(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    (folder := tmp_path / 'a: "b"').mkdir()
    card = (write_dataset(folder, [result("one", 0, settings={"stop": "|"})]) / "README.md").read_text()
    _, head, text = card.split("---\n", 2)
    found = yaml.safe_load(head)
    (config,) = found["configs"]
    assert config["data_files"] == [{"split": "train", "path": "results.parquet"}]
    assert (found["pretty_name"], found["size_categories"]) == ('a: "b"', ["n<1K"])
    assert all(f"| `{column}` | {meaning} |" in text for column, (_, meaning) in COLUMNS.items())
    assert '| wild | `{"stop": "\\|"}` |' in text


@pytest.mark.usefixtures("no_plots")
def test_a_comparison_is_exported(srb: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text('n = 2\nmax_tokens = 6\nprompts = ["one"]\n')
    assert srb("compare", "spec.toml", "--export", "dataset") == 0
    assert "datasets.load_dataset('spec-results/dataset')" in capsys.readouterr().out
    rows = read(Path("spec-results/dataset"))
    saved = [json.loads(line) for line in Path("spec-results/results.jsonl").read_text().splitlines()]
    assert [row["text"] for row in rows] == [each["text"] for each in saved]
    assert all("".join(token["text"] for token in row["tokens"]) == row["text"] for row in rows)


def test_a_missing_pyarrow_is_named_before_the_run(
    srb: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "spec.toml").write_text('prompts = ["one"]\n')
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pyarrow" else find(name))
    assert srb("compare", "spec.toml", "--export", "dataset") == 2
    assert "--export dataset needs pyarrow: " in capsys.readouterr().err
    assert not (tmp_path / "spec-results").exists()
