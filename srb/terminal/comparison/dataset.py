"""Exports results as a dataset: a Parquet file with a row for each alternative, and its card.

`datasets.load_dataset` reads the folder, and a hub of datasets shows its card.
"""

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from srb import __version__
from srb.errors import SettingsError
from srb.options.arguments import pip_install
from srb.terminal.comparison.measures import Group, Result, groups_of, names_of_scores

FOLDER = "dataset"
"""The folder of the dataset, in the folder of the results."""

FILE = "results.parquet"

COLUMNS = {
    "prompt": ("string", "the name of the prompt"),
    "prompt_text": ("string", "the prompt; a chat is its messages, each with its role"),
    "cluster": ("string", "texts of different clusters don't depend on each other, as clustered standard errors need"),
    "setting": ("string", "the name of the setting"),
    "settings": ("string", "the sampler fields of the setting, as JSON"),
    "model": ("string", "the name of the model"),
    "run": ("string", "the name of the run, if there are several"),
    "variables": ("string", "the variables of the prompt, as JSON"),
    "seed": ("int64", "the seed"),
    "text": ("string", "the generated text"),
    "finish_reason": ("string", "`stop`, `length`, or `abort` for an incomplete text"),
    "stop_reason": ("string", "why the text stopped, if that was a stop string, for example"),
    "length": ("int64", "the length in tokens"),
    "mean_logprob": ("double", "the mean log-probability of the tokens, by the model and before any sampler"),
    "tokens": ("tokens", "the tokens: `text`, `logprob`, and `top`, the most probable tokens in this place"),
}
"""The columns, each with its type and meaning. Each scorer has one more.

Types are given, so that a column without values has one, and files of several comparisons can be joined.
"""

SIZES = {1_000: "n<1K", 10_000: "1K<n<10K", 100_000: "10K<n<100K", 1_000_000: "100K<n<1M"}
"""The hub's names of sizes, by the number of rows that each ends before."""


def check_pyarrow() -> None:
    """Raise `SettingsError` if pyarrow isn't installed."""
    if importlib.util.find_spec("pyarrow") is None:
        command = pip_install("'llama-srb[parquet]'")
        raise SettingsError(f"--export dataset needs pyarrow: {command}")


def write_dataset(folder: Path, results: Sequence[Result]) -> Path:
    """Write the dataset into the folder of the results, instead of an earlier one.

    Returns:
        The folder of the dataset.
    """
    import pyarrow  # imported here, because it belongs to an extra
    import pyarrow.parquet

    path = folder / FOLDER
    path.mkdir(exist_ok=True)
    groups, scores = groups_of(results), names_of_scores(results)
    rows = [_row(each, groups[each.prompt, each.seed], scores) for each in results]
    token = [("text", pyarrow.string()), ("logprob", pyarrow.float64())]
    tokens = pyarrow.list_(pyarrow.struct([*token, ("top", pyarrow.list_(pyarrow.struct(token)))]))
    types = {name: tokens if of == "tokens" else of for name, (of, _) in _columns(scores).items()}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, pyarrow.schema([*types.items()])), path / FILE)
    (path / "README.md").write_text(_card(folder.absolute().name, results, scores), encoding="utf-8")
    return path


def _columns(scores: list[str]) -> dict[str, tuple[str, str]]:
    return COLUMNS | {f"score_{name}": ("double", f"the score of the scorer `{name}`") for name in scores}


def _row(each: Result, group: Group, scores: list[str]) -> dict[str, Any]:
    name, first = group
    row = {column: getattr(each, column) for column in COLUMNS.keys() - {"cluster", "tokens"}}
    row["cluster"] = name if first is None else f"{name}, seed {first}"
    row |= {column: json.dumps(row[column], ensure_ascii=False) for column in ("variables", "settings")}
    row["tokens"] = [
        _token(text, logprob) | {"top": [_token(*other) for other in top]} for text, logprob, top in each.tokens
    ]
    return row | {f"score_{score}": each.scores.get(score) for score in scores}


def _token(text: str, logprob: float | None) -> dict[str, Any]:
    return {"text": text, "logprob": logprob}


def _card(name: str, results: Sequence[Result], scores: list[str]) -> str:
    """Return the card: Markdown after a head of YAML. A JSON text is also a YAML text."""
    size = next((label for end, label in SIZES.items() if len(results) < end), "n>1M")
    settings = {each.setting: f"`{json.dumps(each.settings, ensure_ascii=False)}`" for each in results}
    models = dict.fromkeys(each.model for each in results)
    lines = [
        "---",
        f"pretty_name: {json.dumps(name, ensure_ascii=False)}",
        "tags: [synthetic, llama-srb]",
        f"size_categories: [{json.dumps(size)}]",
        "configs:",
        "- config_name: default",
        "  data_files:",
        "  - split: train",
        f"    path: {FILE}",
        "---",
        "",
        f"# {name}",
        "",
        f"Generated and scored by `srb compare` (srb {__version__}) with {', '.join(models)}. Each row is an "
        "alternative: a text for a prompt, a setting and a seed.",
        "",
        *_table("column", {f"`{column}`": meaning for column, (_, meaning) in _columns(scores).items()}),
        "",
        *_table("setting", settings),
        "",
    ]
    return "\n".join(lines)


def _table(title: str, rows: dict[str, str]) -> list[str]:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in rows.items()]
    return [f"| {title} | |", "|---|---|", *(f"| {name} | {text} |" for name, text in escaped)]
