"""Kill a server with SIGKILL at random moments while it writes stories, and check the history file.

    .venv/bin/python bench/checks/crashes.py --rounds 100 [--ctx-size 512 ...]

Further options are passed to the server. A small `--ctx-size` and `--parallel` cause constant preemption.

Four writers add nodes, and let the model continue some of them in detached requests. After each kill, the file must
pass SQLite's integrity check and contain each acknowledged node. After the next start the requests continue. At the
end each text must begin with the part that a reader received, and must be complete. Exempt are requests that three
servers had started when they were killed, and that got no further token from any of them.
"""

import argparse
import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

WRITERS = 4
MOST_LOSSES = 3


class Round:
    """A server from its start to its kill, and what its clients have received by then."""

    def __init__(self, path: Path, known: dict[int, str], seen: dict[tuple[str, int], str], options: list[str]) -> None:
        self.known = known  # the texts of the acknowledged nodes, by id
        self.seen = seen  # the texts that readers received, by request and index
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SRB_")}
        command = [sys.executable, "-m", "srb", "serve", "--port", "0", "--history", str(path), *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ
        )
        assert self.process.stdout is not None
        match = re.search(r"ready at (http://\S+)", self.process.stdout.readline())
        assert match, "the server doesn't start"
        self.url = match[1]

    def send(self, path: str, body: Any = None) -> Any:
        """Send a request, and return the server's answer."""
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(urllib.request.Request(self.url + path, data=data), timeout=60) as answer:
            return json.load(answer)

    def write(self, story: str, number: int) -> None:
        """Write nodes until the server is gone."""
        chance, parent = random.Random(), None
        try:
            while True:
                text = f"Writer {number} says {chance.random()}. "
                node = self.send(f"/v1/stories/{story}/nodes", {"text": text, "parent": parent})
                self.known[node["id"]] = text
                parent = node["id"]
                if chance.random() < 0.3:
                    self.generate(story, parent, chance.randrange(1, 40))
        except (OSError, ValueError):
            pass

    def generate(self, story: str, node: int, max_tokens: int) -> None:
        """Let the model continue a node, and read its texts."""
        body = {"story": story, "node": node, "n": 4, "max_tokens": max_tokens, "detach": True, "stream": "events"}
        request = urllib.request.Request(f"{self.url}/v1/completions", data=json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            request_id = answer.headers["X-Request-Id"]
            for line in answer:
                if line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if event["event"] == "stream":
                        key = (request_id, event["index"])
                        self.seen[key] = self.seen.get(key, "") + event["text"]

    def kill(self) -> None:
        """End the server like a crash."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def check(path: Path, known: dict[int, str]) -> None:
    """Check that the file is undamaged, and has all acknowledged nodes."""
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    db.execute("INSERT INTO search(search) VALUES ('integrity-check')")
    db.rollback()
    texts = dict(db.execute("SELECT nodes.id, texts.text FROM nodes JOIN texts ON texts.id = nodes.text"))
    db.close()
    missing = [node for node, text in known.items() if texts.get(node) != text]
    assert not missing, f"of {len(known)} acknowledged nodes these are missing: {missing}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--longest", type=float, default=3.0, help="seconds until a kill at most")
    arguments, options = parser.parse_known_args()
    known: dict[int, str] = {}
    seen: dict[tuple[str, int], str] = {}
    story = ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.db"
        for number in range(arguments.rounds):
            server = Round(path, known, seen, options)
            story = story or server.send("/v1/stories", {"title": "Crashes"})["id"]
            writers = [threading.Thread(target=server.write, args=(story, each)) for each in range(WRITERS)]
            for writer in writers:
                writer.start()
            time.sleep(random.uniform(0, arguments.longest))
            health = server.send("/health")
            server.kill()
            for writer in writers:
                writer.join()
            check(path, known)
            swaps = f"{health['preemptions']} preemptions, {health['layout_changes']} changes of the layout"
            print(f"round {number + 1}: {len(known)} nodes, {len(seen)} texts that were seen; {swaps}", flush=True)
        server = Round(path, known, seen, options)
        while any(each["status"] == "running" for each in server.send("/v1/history?limit=1000")["data"]):
            time.sleep(0.2)
        requests = {request_id: server.send(f"/v1/history/{request_id}") for request_id, _ in seen}
        server.kill()
        with closing(sqlite3.connect(path)) as db:
            losses = dict(db.execute("SELECT id, losses FROM requests"))
    for (request_id, index), text in seen.items():
        choice = requests[request_id]["choices"][index]
        assert choice["text"].startswith(text), f"{request_id} {index}: {text!r} was seen, {choice['text']!r} is there"
        assert choice["finish_reason"] in ("stop", "length") or losses[request_id] >= MOST_LOSSES, choice
    n_lost = sum(each["status"] == "interrupted" for each in requests.values())
    print(f"all {len(known)} nodes and {len(seen)} texts are there, of {len(requests)} requests; {n_lost} interrupted")


if __name__ == "__main__":
    main()
