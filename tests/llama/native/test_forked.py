"""A process that was forked after llama.cpp has run: its threads are gone, and it would wait for them for ever."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os, sys
import srb

def generate():
    return srb.generate("Once", n=1, max_tokens=2, model=sys.argv[1])

generate()
if child := os.fork():
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    generate()
except srb.ModelLoadError as error:
    print(error.message, flush=True)
os._exit(0)
"""


def test_the_error_says_how_to_start_a_process(tiny_model: Path) -> None:
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM, str(tiny_model)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "forked" in done.stdout
    assert "multiprocessing.get_context('spawn')" in done.stdout
