"""What is written about srb is there: what ARCHITECTURE.md names."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()


def test_the_architecture_is_one_page() -> None:
    lines = ARCHITECTURE.splitlines()
    assert len(lines) <= 120
    assert [line for line in lines if len(line) > 120] == []


@pytest.mark.parametrize(("path", "name"), re.findall(r"`([\w/]+\.py): ([\w.]+)`", ARCHITECTURE))
def test_what_the_architecture_names_is_there(path: str, name: str) -> None:
    body: list[ast.stmt] = ast.parse((ROOT / "srb" / path).read_text()).body
    for part in name.split("."):
        found = [node for node in body if getattr(node, "name", None) == part]
        assert found, f"{path} has no {part}"
        body = getattr(found[0], "body", [])


def test_the_rooms_and_files_of_the_architecture_are_there() -> None:
    paths = set(re.findall(r"`((?:\w+/)+(?:\w+\.py)?|\w+\.py)(?::|`)", ARCHITECTURE))
    places = (ROOT, ROOT / "srb")
    assert len(paths) > 20
    assert [path for path in sorted(paths) if not any((place / path).exists() for place in places)] == []


def test_the_architecture_names_every_room() -> None:
    rooms = {path.name for path in (ROOT / "srb").iterdir() if path.is_dir() and any(path.glob("*.*"))}
    assert [room for room in sorted(rooms - {"__pycache__"}) if f"| `{room}/` |" not in ARCHITECTURE] == []
