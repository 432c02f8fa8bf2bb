"""Measure decoding while other programs use the cores: `python bench/kernels/busy.py [MODEL.gguf]`.

Each printed line is a process that runs 8 alternatives next to 0 to 2 busy loops. Its threads wait for each
other by spinning, by sleeping, or as srb chooses. The program prints tokens per second, and milliseconds per step.
"""

import itertools
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROMPT = "The quick brown fox jumps over the lazy dog. " * 10
STEPS = 60
WAITING: dict[str, dict[str, str]] = {
    "spinning": {"GOMP_SPINCOUNT": "300000"},
    "sleeping": {"GOMP_SPINCOUNT": "0"},
    "as srb chooses": {},
}
"""How threads wait. The first is libgomp's default."""


def measure(model: Path | None, busy_loops: int) -> str:
    """Measure in this process, whose environment sets how threads wait. Return columns of the table."""
    from srb import CompletionRequest, Engine, LlamaBackend, SamplingParams, Settings
    from srb.engine.events import StreamEvent

    with LlamaBackend(Settings(model=model)) as backend:
        engine = Engine(backend)

        def steps(n: int) -> list[float]:
            branches = SamplingParams(seed=1, ignore_eos=True, max_tokens=n).alternatives(8)
            engine.add_request(CompletionRequest((engine.tokenize(PROMPT),), branches))
            ends = []
            while engine.has_work:
                if any(isinstance(event, StreamEvent) for event in engine.step()):
                    ends.append(time.perf_counter())
            return [after - before for before, after in itertools.pairwise(ends)]

        steps(8)
        loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy_loops)]
        try:
            took = steps(STEPS)
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()
    each = f"{1000 * statistics.median(took):.0f} | {1000 * max(took):.0f}"
    return f"{8 * len(took) / sum(took):.0f} | {each}"


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(measure(Path(sys.argv[3]) if sys.argv[3:] else None, int(sys.argv[2])))
        return
    print("| busy loops | threads wait | tokens/s | step, ms | longest |\n|---|---|---|---|---|")
    for busy_loops in (0, 1, 2):
        for name, variables in WAITING.items():
            command = [sys.executable, __file__, "--one", str(busy_loops), *sys.argv[1:]]
            found = subprocess.run(command, env=os.environ | variables, stdout=subprocess.PIPE, check=True, text=True)
            print(f"| {busy_loops} | {name} | {found.stdout.strip()} |", flush=True)


if __name__ == "__main__":
    main()
