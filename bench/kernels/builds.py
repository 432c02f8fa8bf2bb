"""Compare the speed of two builds of llama-cpp-python, such as a portable wheel and one compiled for this machine.

usage: python bench/kernels/builds.py PYTHON PYTHON [--rounds 8] [--model MODEL.gguf ...]

Each Python has one of the builds and what srb needs, as `./build.sh into` installs. A process of each loads the model,
and they work in turn, so a machine that slows down affects both alike. One evaluates a prompt or decodes, without srb's
code, while the other waits. For each kind of work the program prints the tokens per second of both, and the median of
the ratios of the rounds: above 1, the first build is faster. Without `--model`, it measures the default model as its
file has it, and with the weights that `srb tune` has chosen.

While other programs run, set OMP_WAIT_POLICY=passive: otherwise threads spin while they wait for one without a core.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROMPT = 512  # tokens
STEPS = 24
WORK = {"prompt": 0, "n = 1": 1, "n = 8": 8, "n = 32": 32}
"""How many alternatives are decoded; 0: only a prompt is evaluated."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pythons", nargs="*", type=Path, metavar="PYTHON", help="two of them")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--model", type=Path, action="append", help="default: the default model, and its tuned weights")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(arguments.worker)
        return
    if len(arguments.pythons) != 2:
        parser.error("name two Pythons")
    for model in arguments.model or default_models():
        compare(arguments.pythons, model, arguments.rounds)


def default_models() -> list[Path]:
    from srb import Settings
    from srb.llama.model.model_file import find_model
    from srb.llama.tune.result import choose

    path = find_model(None)
    return list(dict.fromkeys((path, choose(path, Settings()).weights)))


def compare(pythons: list[Path], model: Path, rounds: int) -> None:
    """Print a table for one model."""
    builds = [Build(python, model) for python in pythons]
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in WORK}
    for round_ in range(rounds + 1):
        for name, n in WORK.items():
            order = builds if round_ % 2 else builds[::-1]
            speeds = {build: build.speed(n) for build in order}
            if round_:  # the first one warms up
                found[name].append(tuple(speeds[build] for build in builds))
    print(model.name, *(build.name for build in builds), "ratio", sep="\t")
    for name, rows in found.items():
        first, second = (statistics.median(each) for each in zip(*rows, strict=True))
        ratio = statistics.median(one / other for one, other in rows)
        print(name, f"{first:.1f}", f"{second:.1f}", f"{ratio:.3f}", sep="\t")
    for build in builds:
        build.close()


class Build:
    """A process with one build."""

    def __init__(self, python: Path, model: Path) -> None:
        command = [str(python.absolute()), __file__, "--worker", str(model)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
        self.name: str = self._read()

    def speed(self, n: int) -> float:
        """Return how many tokens a second n alternatives get, or a prompt if n is 0."""
        assert self._process.stdin
        print(n, file=self._process.stdin, flush=True)
        return float(self._read())

    def _read(self) -> Any:
        assert self._process.stdout
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """Let the process end."""
        self._process.communicate()


def work(model: Path) -> None:
    """Measure what comes from standard input."""
    from bare import Bare

    from srb import Settings
    from srb.engine.kv_cache.allocator import Layout
    from srb.llama.model.loader import load_model
    from srb.llama.native.library import build
    from srb.llama.native.params import engine_params, physical_cores, start

    n_max = max(WORK.values())
    settings = Settings(threads=physical_cores(), parallel=n_max)
    start(settings)
    loaded = load_model(model, settings)
    layout = Layout(True, PROMPT + n_max * STEPS, n_max, "off")
    bare = Bare(loaded, engine_params(loaded, settings, layout, n_outputs=n_max))
    print(json.dumps(build()), flush=True)
    for line in sys.stdin:
        n = int(line)
        begin = time.perf_counter()
        bare.begin(PROMPT, max(1, n))
        tokens = PROMPT
        if n:
            begin, tokens = time.perf_counter(), n * STEPS
            for position in range(PROMPT, PROMPT + STEPS):
                bare.decode(range(position, position + 1), range(n))
        print(json.dumps(tokens / (time.perf_counter() - begin)), flush=True)


if __name__ == "__main__":
    main()
