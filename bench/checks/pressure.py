"""Run random traffic in a cache that is too small, while its layout changes, and compare each text with that of alone.

usage: python bench/checks/pressure.py [--minutes 30] [--kind window] [--seed N]

It runs the programs of `press` in tests/support/traffic.py, one after another, on the tiny model of each kind of
memory in turn. Sequences are preempted all the time; their states are saved in memory, or there is no memory for them.
Where the model allows it, the layout of the cache changes at random moments. The first failure is shrunk to a small
program and printed as text, and the exit code is 1. `--seed N --minutes 0` runs the programs of one seed.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[2] / "tests" / "support")]

from alone import KINDS, tiny_adapter, tiny_model
from oracle import Arguments, Sandbox, search
from tiny_model import WINDOW
from traffic import press


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30, help="how long to look; 0: the programs of one seed")
    parser.add_argument("--kind", choices=KINDS, help="the kind of memory; all in turn without it")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="of the first program; the next has the next"
    )
    options = parser.parse_args()
    sandbox = Sandbox()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models: dict[str, Arguments] = {
            kind: (tiny_model(kind, folder), WINDOW, False, tiny_adapter(kind, folder))
            for kind in ([options.kind] if options.kind else KINDS)
        }
        try:
            return search(sandbox, models, options.seed, 60 * options.minutes, lambda seed, _unit: press(seed))
        finally:
            sandbox.close()


if __name__ == "__main__":
    sys.exit(main())
