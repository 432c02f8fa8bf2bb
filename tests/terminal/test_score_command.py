"""`srb score` on the fake backend."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_backend import scores
from terminal.conftest import Run

from srb.terminal import score

LINES = [
    {"context": "Once upon\n a time ", "continuations": ["a", "bc"], "more": 1},
    {"context": list(b"It"), "continuations": [[98, 99], "\x1b[2J"]},
    {"context": "x" * 100, "continuations": ["y"]},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_text("\n\n".join(map(json.dumps, LINES)) + "\n")
    return path


def expected(context: bytes, end: bytes) -> float:
    text = context + end
    return sum(scores(tuple(text[:k]))[text[k]] for k in range(len(context), len(text)))


def test_each_context_has_its_continuations_below_it_the_likeliest_first(srb: Run, path: Path) -> None:
    assert srb("score", path) == 0
    out, err = srb.out, srb.err
    assert err == "srb: no effect: more\n"
    lines = out.splitlines()
    assert lines[0] == "0: Once upon\\n a time "
    assert lines[6] == "2: …" + "x" * 69
    ends = {"a": b" a", "bc": b" bc"}
    shown = [(line.split()[0], float(line.split()[1]), line.rsplit(" ", 1)[1]) for line in lines[1:3]]
    assert [rank for rank, _, _ in shown] == ["1", "2"]
    assert {text: logprob for _, logprob, text in shown} == {
        text: pytest.approx(expected(b"Once upon\n a time", end), abs=1e-3) for text, end in ends.items()
    }
    assert {line.split(" a token")[1].strip() for line in lines[4:6]} == {"[98, 99]", "\\x1b[2J"}


def test_json_has_the_numbers_of_the_lines_whatever_bodies_they_were_asked_for_with(
    srb: Run, monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    found = []
    for most in (1 << 20, 1):
        monkeypatch.setattr(score, "MAX_BODY_CHARS", most)
        assert srb("score", path, "--json", "--logprobs", "1") == 0
        rows = [json.loads(line) for line in srb.out.splitlines()]
        found.append(sorted(rows, key=lambda row: (row["context"], row["continuation"])))
    assert found[0] == found[1]
    assert [(row["context"], row["continuation"]) for row in found[0]] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    assert [len(token["top_logprobs"]) for token in found[0][1]["logprobs"]] == [1, 1, 1]


def test_what_cant_be_scored_is_told(srb: Run, path: Path) -> None:
    path.write_text(json.dumps({"context": "a", "continuations": ["b", "c" * 5000]}))
    assert srb("score", path) == 1
    out = srb.out.splitlines()
    assert out[1].startswith("   1 ")
    assert out[2].startswith("   -  continuations[1] and the text before it are too long together: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "line 1 of - must be an object with"),
        ('\n[{"a": 1}]', "line 2 of - must be an object with"),
        ("\nnothing", "line 2 of - is not JSON"),
        ('\n{"context": "a", "continuations": []}', "line 2 of -: continuations takes a list of texts"),
        ('{"context": "a", "continuations": ["b", ""]}', "line 1 of -: continuations[1] is empty"),
        ('{"context": [1, 2], "continuations": [[3], ["x"]]}', "line 1 of -: continuations[1] must be a text"),
    ],
)
def test_what_is_wrong_in_the_file_is_told_before_the_model_is_loaded(
    srb: Run,
    monkeypatch: pytest.MonkeyPatch,
    write_stdin: Callable[[str], None],
    text: str,
    message: str,
) -> None:
    monkeypatch.delattr("srb.serving.async_engine.load_backend")
    write_stdin(text)
    assert srb("score", "-") == 2
    assert message in srb.err


def test_a_file_that_isnt_there(srb: Run) -> None:
    assert srb("score", "none.jsonl") == 2
    assert "none.jsonl can't be read: No such file" in srb.err
    assert srb("score", "none.jsonl", "--url", "http://localhost:1", "--ctx-size", "9") == 2
    assert "--ctx-size has no effect with --url" in srb.err
