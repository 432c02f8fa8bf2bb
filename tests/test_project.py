"""What belongs to the project beside its code: workflows, release notes, addresses, and the policy files."""

import re
import runpy
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import srb

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
URLS = PYPROJECT["project"]["urls"]
RELEASE = runpy.run_path(str(ROOT / "deploy" / "release_notes.py"))

notes: Callable[[str, str], str] = RELEASE["notes"]
main: Callable[[str], None] = RELEASE["main"]


CHANGELOG = """# Changelog

## [Unreleased]

## [0.2.0] - 2027-01-02

### Added

- One.

## [0.1.0]

- Zero.
"""


def test_the_notes_of_a_release_are_its_section_of_the_changelog() -> None:
    assert notes(CHANGELOG, "0.2.0") == "### Added\n\n- One."
    assert notes(CHANGELOG, "0.1.0") == "- Zero."


@pytest.mark.parametrize("version", ["Unreleased", "0.3.0", "0.2"])
def test_a_release_needs_notes(version: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"no text below ## [{version}]; move what [Unreleased] has there")):
        notes(CHANGELOG, version)


def test_a_tag_has_the_version_of_srb() -> None:
    with pytest.raises(SystemExit, match=re.escape(f"must be v{srb.__version__}")):
        main("v99.0")


def workflows() -> Iterator[Path]:
    yield from (ROOT / ".github" / "workflows").glob("*.yml")


def test_actions_are_pinned_to_commits() -> None:
    used = [line for path in workflows() for line in re.findall(r"uses: (.*)", path.read_text())]
    actions = [each for each in used if not each.startswith("./")]
    assert len(actions) > 10
    assert [each for each in actions if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


def test_every_file_that_a_workflow_runs_is_there() -> None:
    texts = "\n".join(path.read_text() for path in workflows())
    named = set(re.findall(r"(?:(?<!\.)\./|python3 )([\w/.-]+)", texts)) - {"-m"}
    assert {"build.sh", "deploy/release_notes.py", ".github/workflows/wheels.yml"} <= named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_quick_tests_run_on_every_python_that_is_supported() -> None:
    supported = re.findall(r"Python :: (3\.\d+)", str(PYPROJECT["project"]["classifiers"]))
    (tested,) = re.findall(r"python: \[(.*)\]", (ROOT / ".github/workflows/ci.yml").read_text())
    assert re.findall(r'"(.*?)"', tested) == supported
    assert f">={supported[0]}" == PYPROJECT["project"]["requires-python"]


def test_texts_have_the_address_of_the_repository() -> None:
    """It is named in `[project.urls]`; if it moves, this test lists the other files that have it."""
    names = ("README.md", "SECURITY.md", "CITATION.cff", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "pyproject.toml")
    files = [*(ROOT / name for name in names), *(ROOT / ".github").rglob("*.y*ml")]
    owner = re.compile(r"https://github\.com/[\w-]+/llama-srb")
    found = {path.name: set(owner.findall(path.read_text())) - {URLS["Repository"]} for path in files}
    assert {name: other for name, other in found.items() if other} == {}
    assert all(url.startswith(URLS["Repository"]) for url in URLS.values())
    assert URLS["Repository"] in (ROOT / "CITATION.cff").read_text()


def test_the_citation_has_the_version() -> None:
    (version,) = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert version == srb.__version__
