"""The page's modules without a browser: their own tests in Node, TypeScript's checks and ESLint.

`node --test tests/web/*.test.mjs` runs the tests of the modules, and `npm run check` in tests/web the checks.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NODE = shutil.which("node")
TOOLS = HERE / "node_modules" / ".bin"
BUNDLE = ROOT / "srb" / "web" / "vendor" / "codemirror.js"
LINTED = ("srb/web", "tests/web", "examples/promptfoo")


def run(command: list[str]) -> str:
    """Run a command of Node's, which must succeed. Skip the test if Node isn't there, unless this is CI."""
    if not NODE:
        assert not os.environ.get("CI"), "CI installs Node, but it isn't there"
        pytest.skip("the page's modules are checked in Node, which isn't installed: apt install nodejs")
    done = subprocess.run([NODE, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


def tool(name: str) -> str:
    """The path of a development tool, which `npm ci` installs."""
    if not (TOOLS / name).exists():
        assert not os.environ.get("CI"), f"CI installs {name}, but it isn't there"
        pytest.skip(f"{name} isn't installed: npm ci --prefix tests/web")
    return str(TOOLS / name)


def test_the_pages_modules_pass_their_own_tests() -> None:
    files = sorted(HERE.glob("*.test.mjs"))
    assert files
    # One process runs them all: with `--test`, each file would have one of its own.
    script = "for (const file of process.argv.slice(1)) await import(file)"
    assert "# fail 0" in run(["--input-type=module", "--eval", script, *map(str, files)])


@pytest.mark.starts
def test_typescript_finds_no_fault() -> None:
    run([tool("tsc"), "--project", "tests/web"])


def test_every_module_is_checked() -> None:
    modules = [path for path in (ROOT / "srb" / "web").rglob("*.js") if path != BUNDLE]
    assert modules
    assert [path for path in modules if not path.read_text().startswith("// @ts-check\n")] == []


@pytest.mark.starts
def test_eslint_finds_no_fault() -> None:
    run([tool("eslint"), "--config", "tests/web/eslint.config.js", "--max-warnings", "0", *LINTED])


@pytest.mark.starts
def test_the_bundled_editor_is_of_the_locked_versions() -> None:
    tool("esbuild")
    made = run(["tests/web/bundle.js"])
    assert made == BUNDLE.read_text(), "run: npm run bundle --prefix tests/web"
