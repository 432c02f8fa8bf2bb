"""A real server, a process on a free port of 127.0.0.1, stopped by its process id."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any


class Asked:
    """What is asked of a server, wherever it runs."""

    url: str

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    def request(self, path: str, body: Any = None, method: str | None = None) -> tuple[int, str]:
        """The status and the text of an answer. A dict is sent as JSON, bytes as they are."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def events(self, **body: Any) -> list[dict[str, Any]]:
        """The events of a completion."""
        status, text = self.request("/v1/completions", {"prompt": "Once upon a time,"} | body)
        assert status == 200, text
        return [json.loads(line.removeprefix("data: ")) for line in text.split("\n") if line.startswith("data: ")]

    def texts(self, **body: Any) -> list[str]:
        """The text of each index of a completion."""
        events = self.events(**body)
        texts = [""] * events[0]["count"]
        for event in events:
            if event["event"] == "stream":
                texts[event["index"]] += event["text"]
        return texts

    def health(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.request("/health")[1])
        return answer

    def wait_until_idle(self, seconds: float = 60) -> dict[str, Any]:
        """The health of the server, once nothing runs and no cell is held: a moment after the last `done`."""
        deadline = time.monotonic() + seconds
        while True:
            health = self.health()
            if not (health["running"] or health["waiting"] or health["sequences"] or health["cells"]):
                return health
            assert time.monotonic() < deadline, health
            time.sleep(0.02)


@dataclass
class Server(Asked):
    """A running `srb serve`."""

    process: "subprocess.Popen[str]"
    url: str

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(30)

    def close(self) -> None:
        """Closes the pipe to a server that has ended."""
        assert self.process.stdout is not None
        self.process.stdout.close()


def free_port() -> int:
    """A free port that the system gives to nobody by itself, so that it is still free when a program takes it."""
    for port in range(10_000, 20_000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def command(*options: str) -> list[str]:
    """The command line of a server on a free port."""
    return [sys.executable, "-m", "srb", "serve", "--port", "0", *options]


def start(*options: str) -> Server:
    """Starts a server and waits until it is ready."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SRB_")}
    process = subprocess.Popen(command(*options), stdout=subprocess.PIPE, text=True, env=environ)
    assert process.stdout is not None
    line = process.stdout.readline()
    match = re.search(r"is ready at (http://\S+)", line)
    assert match, f"the server said {line!r} and ended with {process.wait(30)}"
    return Server(process, match[1])


@contextmanager
def starting(*common: str) -> Iterator[Callable[..., Server]]:
    """A function that starts servers with these options and others. Those that still run are killed at the end."""
    servers: list[Server] = []

    def make(*options: str) -> Server:
        servers.append(start(*common, *options))
        return servers[-1]

    yield make
    for server in servers:
        if server.process.poll() is None:
            server.stop(signal.SIGKILL)
        server.close()
