"""Inject random machine faults into an engine under random requests, for some minutes.

    .venv/bin/python bench/checks/random_faults.py --minutes 10 --seed 1

tests/support/faults.py lists the faults and the checks.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from pathlib import Path

sys.path += [str(Path(__file__).parents[2] / "tests" / "support")]

import faults


def main() -> None:
    """Run one seed after another, and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1, help="of the first run (%(default)s)")
    parser.add_argument("--every", type=int, default=60, help="calls without a fault, in the mean (%(default)s)")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    end, seed, n_thrown = time.monotonic() + arguments.minutes * 60, arguments.seed, 0
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory() as folder:
            try:
                n_thrown += asyncio.run(
                    faults.run(seed, Path(folder) / "history.db", n_requests=10, every=arguments.every)
                )
            except Exception as error:
                sys.exit(f"seed {seed}: {type(error).__name__}: {error}")
        seed += 1
    print(f"seeds {arguments.seed} to {seed - 1}: {n_thrown} faults, every stream ended, and nothing was left over")


if __name__ == "__main__":
    main()
