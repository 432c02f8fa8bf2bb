"""The public names, and the import rules between packages."""

import ast
import inspect
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import srb

pytestmark = pytest.mark.xdist_group("sources")  # one process reads them all
ROOT = Path(srb.__file__).parent


def test_the_tests_of_a_group_run_in_one_process(request: pytest.FixtureRequest) -> None:
    """pytest-xdist knows a group by what it adds to a test's name. With pytest 9.2 its addition was lost."""
    if request.config.getoption("loadgroup", default=False):
        assert request.node.nodeid.endswith("@sources")


@pytest.mark.llama  # it imports LlamaBackend
def test_public_names_have_docstrings() -> None:
    for name in srb.__all__:
        value = getattr(srb, name)
        if inspect.isclass(value):
            assert value.__doc__, name
            for member, function in inspect.getmembers(value, inspect.isfunction):
                assert member.startswith("_") or inspect.getdoc(function), f"{name}.{member}"


@pytest.mark.starts
def test_the_public_names_are_known_before_they_are_imported() -> None:
    code = "import srb, sys; print({*dir(srb)} >= {*srb.__all__}, srb.engine.__name__, hasattr(srb, 'generat'))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "True srb.engine False\n"


FILES = sorted(ROOT.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def statements(path: Path) -> list[tuple[ast.Import | ast.ImportFrom, bool]]:
    """A file's imports wherever they stand, and whether they are run: a type checker alone sees the others."""
    found: list[tuple[ast.Import | ast.ImportFrom, bool]] = []

    def look(node: ast.AST, is_run: bool) -> None:
        for each in ast.iter_child_nodes(node):
            if isinstance(each, (ast.Import, ast.ImportFrom)):
                found.append((each, is_run))
            elif isinstance(each, (ast.stmt, ast.ExceptHandler, ast.match_case)):
                look(each, is_run and not (isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING"))

    look(parsed(path), True)
    return found


def imports(path: Path, *, is_run: bool = False) -> set[str]:
    """The modules that a file imports, and their names. is_run: without what only a type checker imports."""
    names: set[str] = set()
    for node, runs in statements(path):
        if is_run and not runs:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


WIRE_SEES = (
    "srb.engine.backend",
    "srb.engine.events",
    "srb.engine.validation.exclusions",
    "srb.engine.validation.fields",
    "srb.engine.media",
    "srb.engine.score_table",
    "srb.engine.validation.fields",
    "srb.engine.model",
    "srb.engine.validation.patterns",
    "srb.engine.request",
    "srb.engine.samplers",
    "srb.engine.sampling_params",
    "srb.engine.stats",
    "srb.errors",
    "srb.llama.grammar.enforceable",
    "srb.llama.grammar.json_schema",
    "srb.llama.grammar.limits",
    "srb.serving.health",
    "srb.wire",
)
"""Of the engine, what a request asks, what it answers, and the protocols of what reads a text; not the engine."""


HISTORY_SEES = (
    "srb.engine.events",
    "srb.engine.request",
    "srb.engine.resume",
    "srb.engine.sampling_params",
    "srb.errors",
    "srb.history",
)


ENGINE = ROOT / "engine"
FEATURES = ("srb.engine.decoding.", "srb.engine.constraints.", "srb.engine.spec_decode.")
"""Packages that the core reaches through the interfaces in their `base.py` alone."""

ASSEMBLE = ("engine", "input_processor", "limits", "resume")
"""Modules of the core that choose features, and put the parts of an engine together."""


def test_the_core_of_the_engine_knows_no_feature() -> None:
    core = [path for path in ENGINE.glob("*.py") if path.stem not in ASSEMBLE]
    core += [*ENGINE.glob("kv_cache/*.py"), *ENGINE.glob("output/*.py")]
    for path in core:
        named = {name for name in imports(path) if name.startswith(FEATURES)}
        assert not {name for name in named if ".base" not in name}, path


def test_no_packages_of_the_engine_import_each_other() -> None:
    needs: dict[str, set[str]] = {}
    for path in ENGINE.glob("*/*.py"):
        for name in imports(path):
            parts = name.split(".")
            if parts[:2] == ["srb", "engine"] and (ENGINE / parts[2]).is_dir() and parts[2] != path.parent.name:
                needs.setdefault(path.parent.name, set()).add(parts[2])
    tuple(TopologicalSorter(needs).static_order())  # raises CycleError


def test_the_import_rules() -> None:
    for path in FILES:
        check_rules(path)


def check_rules(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    found = imports(path)
    roots = {name.split(".")[0] for name in found}
    if package != "llama":
        assert not roots & {"ctypes", "llama_cpp"}
    if package not in ("server", "wire"):
        assert "pydantic" not in roots
    if package != "cluster" or path.stem == "placement":
        assert "ray" not in roots
    if package not in ("server", "terminal"):
        assert "aiohttp" not in roots
    if package not in ("server", "terminal", "wire"):
        assert not any(name.startswith("srb.wire") for name in found)
    if package == "wire":
        assert "asyncio" not in roots
        assert all(name.startswith(WIRE_SEES) for name in found if name.startswith("srb"))
    if package == "history":
        assert "asyncio" not in roots
        assert all(name.startswith(HISTORY_SEES) for name in found if name.startswith("srb"))
    if package == "terminal":
        assert not any(name.startswith("srb.server") for name in found)
    if path.relative_to(ROOT) == Path("cluster", "placement.py"):
        assert "asyncio" not in roots
    if package == "engine":
        assert not roots & {"asyncio", "json"}
        assert all(name.startswith(("srb.engine", "srb.errors")) for name in found if name.startswith("srb"))


def test_the_packages_say_what_they_are_for() -> None:
    for path in ROOT.glob("*/__init__.py"):
        assert ast.get_docstring(parsed(path)), path


SHARED = ("native", "openai")
"""Formats that others write their answers with."""


def test_only_the_list_of_vendors_knows_a_vendor() -> None:
    """So a vendor is removed with its folder, its import and its name in the list."""
    vendors = [path.parent for path in ROOT.glob("wire/*/routes.py") if path.parent.name not in SHARED]
    assert vendors
    for vendor in vendors:
        knows = [
            path for path in ROOT.rglob("*.py") if any(f".wire.{vendor.name}." in f"{name}." for name in imports(path))
        ]
        assert {path for path in knows if path.parent != vendor} == {ROOT / "wire" / "vendors.py"}


def test_no_modules_import_each_other_in_a_circle() -> None:
    paths = {
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES
    }
    needs = {name: {each for each in imports(path, is_run=True) if each in paths} for name, path in paths.items()}
    for name, found in needs.items():  # the packages around an imported module are run before it
        around = {each.rsplit(".", n)[0] for each in found for n in range(1, each.count(".") + 1)} & paths.keys()
        found |= {each for each in around if not f"{name}.".startswith(f"{each}.")}
    tuple(TopologicalSorter(needs).static_order())  # raises CycleError


HEAVY = {"argcomplete", "jsonschema", "matplotlib", "pandas", "sacrebleu", "scipy"}


def test_what_takes_long_to_import_or_may_be_missing_is_imported_where_it_is_used() -> None:
    for path in FILES:
        check_head(path)


def check_head(path: Path) -> None:
    found = [node for node in parsed(path).body if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {alias.name for node in found if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in found if isinstance(node, ast.ImportFrom)}
    assert not {name.partition(".")[0] for name in names} & HEAVY
