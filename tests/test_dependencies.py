"""What pyproject.toml publishes, what it keeps for who works on srb, and what constraints.txt pins of both."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
PINS = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text().lower(), re.MULTILINE))


def packages(group: str) -> Iterator[str]:
    """The packages of a dependency group and of those that it includes."""
    for each in PYPROJECT["dependency-groups"][group]:
        if isinstance(each, str):
            yield each
        else:
            yield from packages(each["include-group"])


GROUPS = {group: list(packages(group)) for group in PYPROJECT["dependency-groups"]}


def test_all_has_every_extra() -> None:
    (named,) = EXTRAS["all"]
    assert re.findall(r"[\w-]+", named) == ["llama-srb", *sorted(EXTRAS.keys() - {"all"})]


def test_the_tools_of_who_works_on_srb_are_not_published() -> None:
    assert not {"bench", "dev", "docs"} & EXTRAS.keys()
    assert {"bench", "dev", "docs"} == GROUPS.keys()


def test_build_sh_installs_exact_versions_of_both() -> None:
    pins = {name.replace("_", "-") for name in PINS}
    wanted = {re.split(r"[\[<>=]", each)[0] for each in (*GROUPS["dev"], *GROUPS["bench"], *EXTRAS["compare"])}
    assert sorted(wanted - pins) == []
    assert tuple(map(int, PINS["pip"].split(".")[:2])) >= (25, 1)  # older ones know no groups


def test_constraints_are_in_step_with_pyproject() -> None:
    """The line that uv has written at the top of constraints.txt makes it again."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [(Requirement(line.partition("#")[0]), line) for line in lines if not line.startswith("#")]
    published = (*PYPROJECT["project"]["dependencies"], *(each for extra in EXTRAS.values() for each in extra))
    grouped = [each for group in GROUPS.values() for each in group if isinstance(each, str)]  # else it includes another
    wanted = [Requirement(each) for each in (*published, *grouped)]
    wanted = [each for each in wanted if each.name != "llama-srb"]
    for each in wanted:
        versions = [next(iter(pin.specifier)).version for pin, _ in pins if pin.name == canonicalize_name(each.name)]
        assert versions, f"{each} isn't in constraints.txt"
        assert all(map(each.specifier.contains, versions)), f"{each}: constraints.txt has {versions}"
    named = {canonicalize_name(each.name) for each in wanted}
    assert {pin.name for pin, line in pins if "(pyproject.toml" in line} - named == set(), (
        "these aren't in pyproject.toml"
    )


def test_every_extra_that_a_text_names_is_there() -> None:
    files = [ROOT / "README.md", ROOT / "build.sh", *(ROOT / "docs").rglob("*.md"), *(ROOT / "srb").rglob("*.py")]
    texts = "".join(path.read_text() for path in files)
    named = re.findall(r"(?:llama-srb|\.whl\)|')\.?\[([a-z,]+)\]", texts)
    assert len(named) > 8
    assert {extra for each in named for extra in each.split(",")} - EXTRAS.keys() == set()


def test_llguidance_is_pinned_to_its_minor_version() -> None:
    """srb reads the texts of its errors."""
    major, minor, _ = map(int, PINS["llguidance"].split("."))
    assert f"llguidance>={major}.{minor},<{major}.{minor + 1}" in PYPROJECT["project"]["dependencies"]


@pytest.mark.starts
def test_schemas_are_checked_without_llama_cpp() -> None:
    """As in `./build.sh quick`, which doesn't install it: requests with tools need this."""
    check = "from srb.llama.grammar.enforceable import refusal; print(refusal({}))"
    program = f"import sys; sys.modules['llama_cpp'] = None; {check}"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True).stdout == "None\n"
