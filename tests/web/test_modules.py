"""The modules of the page that need no browser, tested in Node: `node --test tests/web/*.test.mjs`.

Here one process runs them all: with `--test`, each file would have one of its own.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

NODE = shutil.which("node")


def test_the_pages_modules_pass_their_own_tests() -> None:
    if not NODE:
        assert not os.environ.get("CI"), "CI installs Node, but it isn't there"
        pytest.skip("the page's modules are tested in Node, which isn't installed: apt install nodejs")
    files = sorted(Path(__file__).parent.glob("*.test.mjs"))
    assert files
    run = "for (const file of process.argv.slice(1)) await import(file)"
    command = [NODE, "--input-type=module", "--eval", run, *map(str, files)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    assert "# fail 0" in done.stdout
