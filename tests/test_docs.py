"""What is written about srb is true: what ARCHITECTURE.md names is there, and so are the pages that links lead to."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()


@cache
def parsed(path: str) -> ast.Module:
    return ast.parse((ROOT / "srb" / path).read_text())


def test_what_the_architecture_names_is_there() -> None:
    named = re.findall(r"`([\w/]+\.py): ([\w.]+)`", ARCHITECTURE)
    assert len(named) > 20
    for path, name in named:
        body = parsed(path).body
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


FOLDERS = ("bench", "deploy", "docs", "examples", "srb", "tests", "website")
SUFFIXES = {".md", ".py", ".cfg", ".css", ".html", ".js", ".service", ".sh", ".toml", ".yaml", ".yml", ""}


def files() -> Iterator[Path]:
    """The files that people have written."""
    yield from (path for path in ROOT.iterdir() if path.is_file() and path.suffix in SUFFIXES)
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.suffix in SUFFIXES and not {"__pycache__", "node_modules"} & set(path.parts):
                yield path


def pages() -> list[Path]:
    return [path for path in files() if path.suffix == ".md"]


@cache
def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as links have them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", each)).lower().replace(" ", "-")
        for each in headings
    }


def test_every_page_is_in_the_index() -> None:
    index = ROOT / "docs" / "README.md"
    named = {(index.parent / link).resolve() for link in re.findall(r"\]\(([^)#]+)\)", index.read_text())}
    assert [page for page in sorted((ROOT / "docs").rglob("*.md")) if page not in {*named, index}] == []


def test_everything_in_docs_is_shown_on_a_page() -> None:
    texts = [page.read_text() for page in pages()]
    shown = [path for path in (ROOT / "docs").rglob("*.*") if path.suffix not in (".md", ".json")]
    assert [path for path in shown if not any(f"{path.name})" in text for text in texts)] == []


def test_every_link_leads_somewhere() -> None:
    broken = []
    for page in pages():
        for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text()):
            if "://" in target or target.startswith("mailto:"):
                continue
            path = (page.parent / target).resolve() if target else page
            if not path.exists() or (anchor and anchor not in anchors(path)):
                broken.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert broken == []


def test_every_page_that_a_text_names_is_there() -> None:
    """In errors, in `--help`, in comments: they name pages by their paths from the root."""
    named = re.compile(r"(?<![\w/.-])docs/[\w/-]+\.(?:md|svg|json)\b")
    found = [(path, name) for path in files() for name in named.findall(path.read_text(errors="replace"))]
    assert len(found) > 30
    assert [(path, name) for path, name in found if not (ROOT / name).exists()] == []


BENCH = (ROOT / "bench" / "README.md").read_text()


def test_every_program_that_measures_is_in_the_table() -> None:
    programs = [path for path in (ROOT / "bench").rglob("*.py") if path.parent != ROOT / "bench"]
    assert len(programs) > 15
    assert [path for path in sorted(programs) if f"{path.name}`" not in BENCH] == []


@pytest.mark.parametrize("row", [row for row in BENCH.splitlines() if ".md |" in row])
def test_the_pages_name_the_programs_of_their_figures(row: str) -> None:
    _, _, programs, figures, _ = row.split("|")
    names = re.findall(r"`(\w+/\w+\.py)`", programs)
    texts = [(ROOT / name).read_text() for name in re.findall(r"[\w/-]+\.md", figures)]
    assert names
    assert texts
    assert [name for name in names if not any(f"bench/{name}" in text for text in texts)] == []
