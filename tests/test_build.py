"""What build.sh installs: which wheel of llama-cpp-python it takes, and when it compiles one."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAME = "llama_cpp_python-0.3.36-py3-none-any.whl"
BUILD = (ROOT / "build.sh").read_text()

pytestmark = pytest.mark.starts


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a space in its name, whose .venv has this environment's pip."""
    checkout = tmp_path / "a checkout"
    (checkout / ".venv/bin").mkdir(parents=True)
    (checkout / "srb").mkdir()
    for name in ("build.sh", "pyproject.toml", "srb/__init__.py"):
        shutil.copy(ROOT / name, checkout / name)
    shutil.copytree(ROOT / "deploy", checkout / "deploy")
    pip = checkout / ".venv/bin/pip"
    pip.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pip "$@"\n')
    pip.chmod(0o755)
    return checkout


def run(checkout: Path, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a function of build.sh, called from another folder."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("CMAKE_ARGS", "SRB_WHEELS")}
    return subprocess.run(
        ["bash", "-c", f'source "{checkout}/build.sh" help >/dev/null; {command}'],
        cwd=checkout.parent,
        env=inherited | {"XDG_CACHE_HOME": str(checkout.parent / "cache"), "PIP_NO_INPUT": "1"} | variables,
        capture_output=True,
        text=True,
        timeout=60,
    )


def printed(checkout: Path, command: str, **variables: str) -> str:
    done = run(checkout, command, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def make_wheel(folder: Path) -> str:
    """Makes an empty wheel of llama-cpp-python, and returns its line for deploy/wheels.txt."""
    folder.mkdir()
    info = "llama_cpp_python-0.3.36.dist-info"
    with zipfile.ZipFile(folder / NAME, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: 0.3.36\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return f"--hash=sha256:{hashlib.sha256((folder / NAME).read_bytes()).hexdigest()}"


def pin(checkout: Path, line: str) -> None:
    (checkout / "deploy/wheels.txt").write_text(f"llama-cpp-python==0.3.36 {line}\n")


def test_all_files_name_the_same_llama_cpp_python() -> None:
    version = re.search(r"^readonly LLAMA_CPP_PYTHON=(\S+)$", BUILD, re.MULTILINE)
    assert version
    wanted = f"llama-cpp-python=={version[1]}"
    assert wanted in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    lines = [line for line in (ROOT / "deploy/wheels.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines[0].removesuffix("\\").strip() == wanted
    assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}\s*\\?", line.strip()) for line in lines[1:])


@pytest.mark.parametrize("source", ["a folder", "a package index", "a page"])
def test_a_wheel_whose_hash_is_pinned_is_taken(checkout: Path, source: str) -> None:
    folder = checkout.parent
    pin(checkout, make_wheel(folder / "wheels"))
    pages = {"a package index": folder / "simple/llama-cpp-python/index.html", "a page": folder / "release.html"}
    address = "wheels"
    if page := pages.get(source):
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f'<a href="{(folder / "wheels" / NAME).as_uri()}">{NAME}</a>')
        address = page.as_uri() if source == "a page" else f"{page.parents[1].as_uri()}/"  # pip asks for the package
    assert printed(checkout, "fetch_wheel; find_wheel", SRB_WHEELS=address).endswith(f"/{NAME}")


def test_a_wheel_with_another_hash_is_refused(checkout: Path) -> None:
    make_wheel(checkout.parent / "wheels")
    pin(checkout, f"--hash=sha256:{'0' * 64}")
    done = run(checkout, "fetch_wheel", SRB_WHEELS="wheels")
    assert done.returncode == 1
    assert "it can't be used: ERROR: THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr
    assert printed(checkout, "find_wheel", SRB_WHEELS="wheels") == ""


def test_without_hashes_no_wheel_is_looked_for(checkout: Path) -> None:
    make_wheel(checkout.parent / "wheels")
    pin(checkout, "")
    done = run(checkout, "fetch_wheel", SRB_WHEELS="wheels")
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no prebuilt wheel" in done.stderr


@pytest.mark.parametrize("variables", [{"SRB_WHEELS": ""}, {"CMAKE_ARGS": "-DGGML_CUDA=on", "SRB_WHEELS": "wheels"}])
def test_llama_cpp_is_compiled_if_that_is_asked_for(checkout: Path, variables: dict[str, str]) -> None:
    pin(checkout, make_wheel(checkout.parent / "wheels"))
    printed(checkout, "fetch_wheel", SRB_WHEELS="wheels")
    done = run(checkout, "fetch_wheel", **variables)
    assert (done.returncode, done.stderr) == (1, "")
    assert printed(checkout, "find_wheel", **variables) == ""


def test_a_wheel_compiled_for_this_machine_comes_first(checkout: Path) -> None:
    pin(checkout, make_wheel(checkout.parent / "wheels"))
    command = (
        'fetch_wheel; mkdir -p "$(wheel_folder)"; touch "$(wheel_folder)/llama_cpp_python-compiled.whl"; find_wheel'
    )
    assert printed(checkout, command, SRB_WHEELS="wheels").endswith("/llama_cpp_python-compiled.whl")


def test_wheels_come_from_the_page_of_this_release(checkout: Path) -> None:
    path = checkout / "pyproject.toml"
    path.write_text(re.sub(r"(?m)^(Repository|Source) = .*\n", "", path.read_text()))
    assert printed(checkout, "wheels_source") == ""
    with path.open("a") as file:
        file.write('[project.urls]\nRepository = "https://example.com/someone/srb"\n')
    page = printed(checkout, "wheels_source")
    assert re.fullmatch(r"https://example\.com/someone/srb/releases/expanded_assets/v\d+\.\d+\.\d+\S*", page)


@pytest.mark.parametrize("file", ["deploy/llama.cmake", "deploy/wheels.txt"])
def test_another_build_is_another_installation(checkout: Path, file: str) -> None:
    command = "cp pyproject.toml constraints.txt; stamp_of setup; wheel_folder; prebuilt_folder"
    before = printed(checkout, command, SRB_WHEELS="wheels").splitlines()
    with (checkout / file).open("a") as text:
        text.write("# changed\n")
    after = printed(checkout, command, SRB_WHEELS="wheels").splitlines()
    assert before[0] != after[0]
    assert (before[1] != after[1]) is (file == "deploy/llama.cmake")
    assert (before[2] != after[2]) is (file == "deploy/wheels.txt")


def test_srb_does_not_see_the_variable(checkout: Path) -> None:
    """srb refuses a variable SRB_... that isn't an option."""
    assert printed(checkout, "env | grep -c SRB_WHEELS || true", SRB_WHEELS="wheels") == "0"
