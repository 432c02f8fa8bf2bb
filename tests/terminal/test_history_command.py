"""`srb history`, on a file."""

import json
import sqlite3
import zlib
from pathlib import Path

import pytest

from srb.cli import main
from srb.history import stories
from srb.history.database import add_text
from srb.history.history import History
from srb.history.stories import NewNode

DAY = 86_400


def add_request(db: sqlite3.Connection, number: int, finished: int, text: str) -> None:
    body = zlib.compress(json.dumps({"prompt": f"Prompt {number}"}).encode())
    db.execute(
        "INSERT INTO requests(number, id, created, path, model, title, body, detached, status, finished) "
        "VALUES (?, ?, ?, '/v1/completions', 'fake', ?, ?, 0, 'finished', ?)",
        (number, f"cmpl-{number}", finished, f"Prompt {number}", body, finished),
    )
    db.execute(
        "INSERT INTO alternatives(request, number, seed, settings, text, length, finish_reason) "
        "VALUES (?, 0, 7, '{}', ?, 3, 'length')",
        (number, add_text(db, text, (1, 2, 3))),
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Ten old requests, and a story."""
    path = tmp_path / "history.db"
    with History(path) as history:
        for number in range(1, 11):
            history.write(add_request, number, number * DAY, f"text {number} " + "dragon " * 5_000).result()
        tree = [NewNode("Once", id=1), NewNode(" upon", id=2, parent=1, author="model", kept=True)]
        history.write(stories.make_story, "somebody", "A tale", tree, None, {1: ("Once more", None)}).result()
    return path


def run(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> str:
    assert main(["history", "--history", str(path), *words]) == 0
    return capsys.readouterr().out


def test_list_and_show(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = run(capsys, path, "list", "--limit", "2").splitlines()
    assert [line.split()[2] for line in listed] == ["cmpl-10", "cmpl-9"]
    (story,) = run(capsys, path, "stories").splitlines()
    assert story.endswith("2 nodes  A tale")
    assert run(capsys, path, "show", story.split()[2]) == "# A tale\n\nOnce upon\n"
    assert run(capsys, path, "show", story.split()[2], "--node", "1") == "# A tale\n\nOnce\n"
    shown = run(capsys, path, "show", "cmpl-3")
    assert "> Prompt 3" in shown
    assert "### Alternative 1\n\nSeed 7\n\ntext 3 dragon" in shown


def test_search(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "cmpl-7 0" in run(capsys, path, "search", '"text 7"')
    assert "node 1" in run(capsys, path, "search", "once")


def test_export(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    things = [json.loads(line) for line in run(capsys, path, "export").splitlines()]
    assert [(each["node"], each["text"]) for each in things[0]["drafts"]] == [(1, "Once more")]
    assert [thing["id"] for thing in things[1:]] == [f"cmpl-{number}" for number in range(10, 0, -1)]
    assert things[0]["nodes"][1]["text"] == " upon"
    assert things[1]["body"] == {"prompt": "Prompt 10"}
    assert things[1]["choices"][0]["tokens"] == [1, 2, 3]
    assert json.loads(run(capsys, path, "export", "--format", "json")) == things
    assert json.loads(run(capsys, path, "export", "cmpl-4"))["id"] == "cmpl-4"
    assert "Once upon" in run(capsys, path, "export", "--format", "markdown")


def test_prune_by_age(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("srb.terminal.history.time.time", lambda: 10.0 * DAY)
    assert run(capsys, path, "prune", "--older-than", "3d").startswith("deleted 6 requests")
    assert len(run(capsys, path, "list").splitlines()) == 4
    assert run(capsys, path, "search", '"text 5"') == ""
    assert run(capsys, path, "search", "upon") != ""


def test_prune_by_size(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = path.stat().st_size
    assert run(capsys, path, "prune", "--to-size", "1K").startswith("deleted 10 requests")
    assert path.stat().st_size < before - 300_000
    assert run(capsys, path, "stories")
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        db.execute("INSERT INTO search(search, rank) VALUES ('integrity-check', 1)")
    db.close()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["show", "cmpl-none"], 1, "no request and no story cmpl-none"),
        (["prune"], 2, "choose what to delete"),
        (["prune", "--older-than", "3"], 2, "--older-than takes a number and a unit, such as 12h"),
        (["prune", "--to-size", "3X"], 2, "--to-size takes a number and a unit, such as 500M"),
    ],
)
def test_what_is_wrong_is_said(
    path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str
) -> None:
    assert main(["history", "--history", str(path), *words]) == code
    assert message in capsys.readouterr().err


def test_a_file_that_isnt_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "list"]) == 2
    assert "--history FILE list" in capsys.readouterr().err
    assert main(["history", "--history", str(tmp_path / "none"), "list"]) == 2
    assert "there is no such file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_file_may_be_named_after_the_command(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "list", "--limit", "1", "--history", str(path)]) == 0
    assert "cmpl-10" in capsys.readouterr().out
