"""The command line: what is misspelt, what `--help` shows, and what a shell completes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from srb.cli import COMMANDS, main

ALL_COMMANDS = pytest.mark.llama
"""Importing srb tune, alone or with all commands, needs llama.cpp."""


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["generate", "x", "--temprature", "0.2"], "there is no option --temprature; did you mean --temperature?"),
        (["generate", "x", "--ctx-sise=5"], "there is no option --ctx-sise; did you mean --ctx-size?"),
        (["serve", "--temperature", "1"], "there is no option --temperature; did you mean"),
        (["explore", "x", "--qqqq"], "there is no option --qqqq; see srb explore --help"),
        (["history", "list", "--limmit", "5"], "there is no option --limmit; did you mean --limit?"),
        (["generate", "Once", "upon"], "unexpected argument 'upon'; put quotes around a text with spaces"),
        pytest.param(["generat", "x"], "there is no 'generat'; did you mean generate?", marks=ALL_COMMANDS),
        pytest.param(["qqqq"], "command: invalid choice: 'qqqq' (choose from", marks=ALL_COMMANDS),
        pytest.param(
            [], "srb: error: the following arguments are required: command; see srb --help", marks=ALL_COMMANDS
        ),
        (["history", "h.db"], "command: invalid choice: 'h.db' (choose from"),
        (["history", "--history", "h.db"], "are required: command; see srb history --help"),
        (
            ["history", "show"],
            "srb history show: error: the following arguments are required: id; see srb history show",
        ),
        (["history", "list", "--limit", "few"], "--limit: invalid int value: 'few'; see srb history list --help"),
        (["history", "export", "--format", "qqqq"], "--format: invalid choice: 'qqqq' (choose from"),
        (["history", "export", "--format", "jsn"], "there is no 'jsn'; did you mean json?"),
        (["generate", "x", "--max-tokens"], "expected one argument; see srb generate --help"),
        (["compare", "--report"], "--report: expected at least one argument; see srb compare --help"),
    ],
)
def test_what_is_misspelt_is_answered_with_the_nearest(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_help_has_groups_and_no_list_of_all_options_before_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["generate", "--help", "all"])
    out = capsys.readouterr().out
    assert out.startswith("usage: srb generate [PROMPT] [OPTION...]\n")
    groups = re.findall(r"^([a-z][a-z ]+):$", out, re.MULTILINE)
    assert groups[:4] == ["positional arguments", "options", "chat", "output"]
    assert {"the text", "the alternatives", "beam search", "sampling", "branches", "model", "memory"} < {*groups}
    assert out.index("--search") > out.index("\nbeam search:") > out.index("--stop") > out.index("\nthe text:")


@pytest.mark.parametrize(
    "command", ["serve", "generate", "explore", "compare", pytest.param("tune", marks=ALL_COMMANDS)]
)
def test_help_shows_the_options_to_know_first(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    out = capsys.readouterr().out
    assert caught.value.code == 0
    assert "--model PATH" in out
    assert "--yarn-orig-ctx" not in out
    assert "speed:" not in out
    assert out.count("\n") < 90
    assert out.endswith(f"srb {command} --help all shows all options.\n")
    for name in COMMANDS[command].first:
        assert f"--{name.removeprefix('field_').replace('_', '-')} " in out, name


@pytest.mark.e2e  # a process each, since argcomplete ends its own
@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("srb gen", ["generate"]),
        ("srb generate --temper", ["--temperature"]),
        ("srb serve --flash-attn ", ["auto", "off", "on"]),
        ("srb history sto", ["stories"]),
    ],
)
def test_a_shell_completes_commands_options_and_their_values(line: str, completed: list[str], tmp_path: Path) -> None:
    out = tmp_path / "completed"
    asked = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": " "}
    environ = os.environ | asked | {"_ARGCOMPLETE_STDOUT_FILENAME": str(out)}
    subprocess.run([sys.executable, "-m", "srb"], env=environ, check=True, timeout=60)
    assert sorted(out.read_text().split()) == completed
