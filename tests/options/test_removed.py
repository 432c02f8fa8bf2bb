"""Removed options and request fields: each is answered with what to do instead."""

import argparse
import json
import re
from pathlib import Path

import pytest

from srb.cli import main
from srb.errors import InvalidRequestError, SettingsError
from srb.options.arguments import REMOVED, removal
from srb.options.settings import load_settings
from srb.terminal.options import BRANCH_NAMES, check_names
from srb.wire.limits import Limits
from srb.wire.request.body import parse

API = Path(__file__).parents[2] / "docs" / "http" / "api.md"


@pytest.fixture(autouse=True)
def _removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REMOVED, "old_option", "leave it out; --new-option does it")


@pytest.mark.parametrize(
    "argv", [["serve", "--old-option", "256"], ["serve", "--no-old-option"], ["generate", "x", "--old-option=1"]]
)
def test_a_flag_is_refused_with_one_line(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    flag = next(each for each in argv if each.startswith("--")).partition("=")[0]
    message = f"srb {argv[0]}: error: {flag} was removed: leave it out; --new-option does it\n"
    assert capsys.readouterr().err == message


def test_a_variable_a_toml_key_and_a_name_in_a_spec_are_refused(tmp_path: Path) -> None:
    config = tmp_path / "srb.toml"
    config.write_text("old-option = 256\n")
    said = "was removed: leave it out; --new-option does it"
    nothing = argparse.Namespace(config=None)
    with pytest.raises(SettingsError, match=f"^SRB_OLD_OPTION {said}$"):
        load_settings(nothing, {"SRB_OLD_OPTION": "256"})
    with pytest.raises(SettingsError, match=rf"srb\.toml: old-option {said}$"):
        load_settings(argparse.Namespace(config=config), {})
    with pytest.raises(InvalidRequestError, match=f"^--branch x: old_option {said}$"):
        check_names(["old_option"], BRANCH_NAMES, "--branch x")
    assert removal("--port") is None


def test_the_docs_list_what_was_removed() -> None:
    section = API.read_text().partition("### Removed fields\n")[2].partition("\n### ")[0]
    listed = {name.lstrip("-").replace("-", "_") for name in re.findall(r"`([\w-]+)`", section)}
    assert {*REMOVED} - {"old_option"} <= listed


def test_samplers_that_were_removed_are_reported() -> None:
    body = {"prompt": "p", "samplers": ["top_k", "p_less", "temperature"], "branches": [{"max_rewinds": 5}]}
    parsed = parse(json.dumps(body).encode(), Limits("fake", n=1, max_n=8), lambda text, **_: tuple(text.encode()))
    assert parsed.completion.branches[0].samplers == ("top_k", "temperature")
    assert {*parsed.ignored} == {"branches[0].max_rewinds", "samplers.p_less"}
