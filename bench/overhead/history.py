"""Measure the cost of the history, in a step of 32 alternatives, and in a file with many requests.

.venv/bin/python bench/overhead/history.py --requests 100000
"""

import argparse
import random
import statistics
import tempfile
import threading
import time
from pathlib import Path

from srb.engine.events import DoneEvent, Event, StartEvent, StopEvent, StreamEvent, Timings, Usage
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.history import queries as find
from srb.history.history import History
from srb.history.recorder import Submitted

N = 32
STEPS = 300
STEP_SECONDS = 0.02
WORDS = [f"{a}{b}{c}" for a in "bdfglmnprst" for b in "aeiou" for c in ("n", "rk", "ll", "st", "v")]


def submitted(n: int, prompt: int) -> Submitted:
    branches = SamplingParams(seed=1).alternatives(n)
    request = CompletionRequest((tuple(range(prompt)),), branches)
    return Submitted(request, None, True, int(time.time()), "/v1/completions", "model", b'{"prompt": "..."}', "a title")


def texts(count: int) -> str:
    """Return a text of random words. As in any language, a few words are frequent."""
    return " ".join(WORDS[int(random.paretovariate(0.7)) % len(WORDS)] for _ in range(count))


def finished(each: Submitted, length: int) -> list[Event]:
    """Return all events of a request with this many tokens per alternative, all in one step."""
    request_id, count = each.request.id, each.request.count
    sampled = tuple(range(length))
    events: list[Event] = [StartEvent(request_id, count, 10, 0, length, (1,) * count, (None,) * count)]
    events += [StreamEvent(request_id, index, texts(length), sampled=sampled) for index in range(count)]
    events += [StopEvent(request_id, index, length, "length", None) for index in range(count)]
    return [*events, DoneEvent(request_id, count, Usage(10, count * length, 0), Timings(0.0, 10, 1.0, length, 1.0))]


def measure_steps(path: Path) -> None:
    """Print the time from a step's end until its events may be sent, and the writer's CPU time."""
    with History(path, keep_seconds=900) as history:
        each = submitted(N, 2_000)
        history.begin(each).result()
        waits: list[float] = []
        used = time.process_time()
        for step in range(STEPS):
            events: list[Event] = [StreamEvent(each.request.id, k, " word", sampled=(step,)) for k in range(N)]
            done = threading.Event()
            began = time.perf_counter()
            history.take(events, done.set)
            done.wait()
            waits.append(time.perf_counter() - began)
            time.sleep(STEP_SECONDS)
        used = time.process_time() - used
        history.take(finished(each, 100)[-1:])
    waits.sort()
    print(
        f"a step of {N} alternatives: {statistics.median(waits) * 1e3:.2f} ms until it may be sent, "
        f"{waits[int(0.99 * STEPS)] * 1e3:.2f} ms at the 99th percentile; {used / STEPS * 1e3:.2f} ms of a processor"
    )


def measure_size(path: Path, count: int) -> None:
    """Print the time of a start, a list and a search in a file with many requests."""
    with History(path) as history:
        for number in range(count):
            each = submitted(random.choice((1, 2, 4, 8)), 10)
            history.begin(each)
            history.take(finished(each, random.randrange(20, 120)))
            if number % 1_000 == 999:
                history.write(lambda _db: None).result()
    print(f"{count} requests: {path.stat().st_size / 2**20:.0f} MiB")

    def show(what: str, times: list[float]) -> None:
        print(f"{what}: {statistics.median(times) * 1e3:.1f} ms, {max(times) * 1e3:.1f} at most")

    times = []
    for _ in range(5):
        began = time.perf_counter()
        history = History(path, keep_seconds=900)
        history.write(lambda _db: None).result()
        times.append(time.perf_counter() - began)
        history.close()
    show("start", times)
    with History(path) as history:
        for what, run in (
            ("list", lambda: history.read(find.list_requests, None)),
            ("search for a frequent word", lambda: history.read(find.search, None, WORDS[1])),
            ("for a rare one", lambda: history.read(find.search, None, WORDS[-7])),
            ("for two", lambda: history.read(find.search, None, f"{WORDS[1]} {WORDS[40]}")),
            ("for a phrase", lambda: history.read(find.search, None, f'"{WORDS[1]} {WORDS[2]} {WORDS[3]}"')),
            ("for the beginning of one", lambda: history.read(find.search, None, f"{WORDS[9][:2]}*")),
            ("for one that isn't there", lambda: history.read(find.search, None, "xyzzy")),
        ):
            times = []
            for _ in range(5):
                began = time.perf_counter()
                run()
                times.append(time.perf_counter() - began)
            show(what, times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure_steps(Path(folder) / "steps.db")
        measure_size(Path(folder) / "many.db", arguments.requests)


if __name__ == "__main__":
    main()
