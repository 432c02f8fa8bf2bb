"""The modules of the page that need no browser, tested in Node: `node --test tests/web/*.test.mjs`."""

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
    done = subprocess.run([NODE, "--test", *files], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
