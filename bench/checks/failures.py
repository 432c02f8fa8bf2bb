"""Throw exceptions into a running server's engine while alternatives stream, and measure the pause.

    .venv/bin/python bench/checks/failures.py
    .venv/bin/python bench/checks/failures.py --reproducible

Each round streams 16 alternatives, throws one exception at a random moment, and checks the events that the reader got:
ids without gaps, one `stop` for each alternative, all tokens. With `--reproducible` the texts must equal those of the
request without a failure. The last round throws into the event loop, where it takes the engine's events.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from typing import Any

N = 16

_SERVER = """
import signal, sys
from srb import cli
from srb.engine.engine import Engine
from srb.serving.request_registry import RequestRegistry

def break_once(owner, name, number):
    whole, due = getattr(owner, name), []
    def broken(*args):
        if due:
            due.clear()
            raise RuntimeError("thrown by a check")
        return whole(*args)
    setattr(owner, name, broken)
    signal.signal(number, lambda *_: due.append(1))

break_once(Engine, "step", signal.SIGUSR1)
break_once(RequestRegistry, "put", signal.SIGUSR2)
sys.exit(cli.main())
"""


class Server:
    """A server whose engine fails on SIGUSR1, and whose event loop fails on SIGUSR2."""

    def __init__(self, options: list[str]) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SRB_")}
        command = [sys.executable, "-c", _SERVER, "serve", "--port", "0", *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ
        )
        assert self.process.stdout is not None
        match = re.search(r"ready at (http://\S+)", self.process.stdout.readline())
        assert match, "the server doesn't start"
        self.url = match[1]

    def stream(self, body: dict[str, Any], number: signal.Signals | None, after: float) -> tuple[list[str], float]:
        """Return the texts of a completion, and the longest time between events after the first one, in seconds.

        Args:
            number: the signal to send after this many seconds of the stream.
        """
        texts, stops, ids, longest = [""] * N, dict[int, int](), list[int](), 0.0
        timer: threading.Timer | None = None
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=120) as answer:
            at = None
            for line in answer:
                if line.startswith(b"id: "):
                    ids.append(int(line[4:]))
                if not line.startswith(b"data: "):
                    continue
                event, now = json.loads(line[6:]), time.monotonic()
                if event["event"] == "stream":
                    if at is not None:
                        longest = max(longest, now - at)
                    elif number:
                        timer = threading.Timer(after, self.process.send_signal, [number])
                        timer.start()
                    at = now
                    texts[event["index"]] += event["text"]
                elif event["event"] == "stop":
                    assert event["index"] not in stops
                    stops[event["index"]] = event["length"]
                assert event["event"] != "error", event
        if timer:
            timer.join()
        assert ids == [*range(1, len(ids) + 1)], "the ids have a gap"
        assert stops == dict.fromkeys(range(N), body["max_tokens"]), stops
        return texts, longest

    def restarts(self) -> int:
        """Return how often the engine was restarted."""
        with urllib.request.urlopen(self.url + "/health") as answer:
            return int(json.load(answer)["engine_restarts"])

    def stop(self) -> None:
        """Stop the server."""
        self.process.terminate()
        assert self.process.wait(30) == 0


def main() -> None:
    """Run the rounds, and print what each measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of failures of the engine (%(default)s)")
    parser.add_argument("--tokens", type=int, default=100, help="of each alternative (%(default)s)")
    parser.add_argument("--reproducible", action="store_true")
    arguments, options = parser.parse_known_args()
    if arguments.reproducible:
        options.append("--reproducible")
    prompt = "The old lighthouse keeper had not spoken to anyone for eleven days when the boat came. " * 6
    body = {"prompt": prompt, "n": N, "max_tokens": arguments.tokens, "ignore_eos": True, "seed": 1}
    server = Server(options)
    began = time.monotonic()
    whole, longest = server.stream(body, None, 0.0)
    seconds = time.monotonic() - began
    server.stop()
    print(f"{N} alternatives of {arguments.tokens} tokens, undisturbed: {seconds:.1f} s, longest pause {longest:.2f} s")
    chance = random.Random(1)
    for number in [signal.SIGUSR1] * arguments.rounds + [signal.SIGUSR2]:
        server = Server(options)  # since the server exits after three failures in ten minutes
        after = chance.uniform(0.1, 0.8) * seconds
        texts, longest = server.stream(body, number, after)
        restarts = server.restarts()
        server.stop()
        assert restarts == (number == signal.SIGUSR1), restarts
        same = sum(a == b for a, b in zip(texts, whole, strict=True))
        assert same == N or not arguments.reproducible, f"{N - same} texts differ"
        where = "engine" if number == signal.SIGUSR1 else "event loop"
        print(f"{where} fails after {after:.1f} s: pause {longest:.2f} s, {same} of {N} texts as undisturbed")


if __name__ == "__main__":
    main()
