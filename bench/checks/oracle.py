"""Run random traffic until a text differs from the text of the same request alone.

usage: python bench/checks/oracle.py [--minutes 30] [--kind window] [--seed N] [--model FILE] [--bits]

This is the long run of tests/support/alone.py. It runs programs of tests/support/traffic.py, one after another, on the
tiny model of each kind of memory in turn, or on a GGUF file, whose weights are converted to F32 first. The first
failure is shrunk to a small program and printed as text for tests/llama/engine/test_llama_traffic.py, and the exit
code is 1. A seed always gives the same program: `--seed N --minutes 0` runs only that one. With --bits the engines run
with `--reproducible`, and the answers must be bitwise identical.
"""

import argparse
import itertools
import logging
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from alone import BITS_KINDS, BITS_WINDOW, KINDS, Model, exact_copy, failure, report, tiny_model
from tiny_model import WINDOW
from traffic import Program, generate, shrink

_UNIT = 128  # tokens, for a model file; a program with Gemma's window of 512 as the unit would take minutes
_TELL_SECONDS = 60
_SHRINK_SECONDS = 600


Arguments = tuple[Path, int, bool, Path | None]
"""The arguments of a `Model`: its file, the unit, `bits`, and an adapter's file."""


class Sandbox:
    """Run programs in another process, because a failed assertion in C ends the process."""

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        # Spawned: a forked process would have ggml's state, but not its threads.
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, spawn, initializer=logging.disable, initargs=(logging.WARNING,))

    def failure(self, model: Arguments, program: Program) -> str | None:
        """Run a program on a `Model` with these arguments. Return what is wrong with the answers, or None."""
        try:
            return self._pool.submit(_failure, model, program).result()
        except BrokenProcessPool:
            self._start()
            return "the process ended; llama.cpp's reason stands above"

    def close(self) -> None:
        """End the process."""
        self._pool.shutdown()


@cache
def _model(path: Path, unit: int, bits: bool, adapter: Path | None) -> Model:
    return Model(path, unit, bits=bits, adapter=adapter)


def _failure(model: Arguments, program: Program) -> str | None:
    return failure(_model(*model), program)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30, help="how long to look; 0: one program of each kind")
    parser.add_argument("--kind", choices=KINDS, help="the kind of memory; all in turn without it")
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="of the first program; the next has the next"
    )
    parser.add_argument("--model", type=Path, help="a GGUF file to look at, instead of the tiny models")
    parser.add_argument("--bits", action="store_true", help="compare all bits, with --reproducible")
    options = parser.parse_args()
    sandbox = Sandbox()
    with tempfile.TemporaryDirectory() as folder:
        if options.model:
            path = options.model if options.bits else exact_copy(options.model, Path(folder))
            models: dict[str, Arguments] = {options.model.name: (path, _UNIT, options.bits, None)}
        else:
            kinds = [options.kind] if options.kind else BITS_KINDS if options.bits else KINDS
            window = BITS_WINDOW if options.bits else WINDOW
            models = {kind: (tiny_model(kind, Path(folder), window), 32, options.bits, None) for kind in kinds}
        try:
            return search(sandbox, models, options.seed, 60 * options.minutes, generate)
        finally:
            sandbox.close()


def search(
    sandbox: Sandbox,
    models: dict[str, Arguments],
    first_seed: int,
    seconds: float,
    make: Callable[[int, int], Program],
) -> int:
    """Run programs until one fails or the time is over. Return the exit code.

    Args:
        make: returns the program of a seed and a unit.
    """
    began = told = time.monotonic()
    print(f"{', '.join(models)}: programs from seed {first_seed} on", flush=True)
    for seed in itertools.count(first_seed):
        for name, model in models.items():
            program = make(seed, model[1])
            if sandbox.failure(model, program):
                print(f"{name}, seed {seed}, after {time.monotonic() - began:.0f} s: fails; shrinking it", flush=True)
                smallest = _smallest(sandbox, model, program)
                print(report(smallest, sandbox.failure(model, smallest)))
                return 1
        now, n_programs = time.monotonic(), seed + 1 - first_seed
        if now - told > _TELL_SECONDS or now - began >= seconds:
            told = now
            print(f"{now - began:.0f} s: {n_programs} programs of each, up to seed {seed}; all as alone", flush=True)
        if now - began >= seconds:
            return 0
    raise AssertionError


def _smallest(sandbox: Sandbox, model: Arguments, program: Program) -> Program:
    return shrink(program, lambda smaller: sandbox.failure(model, smaller) is not None, _SHRINK_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
