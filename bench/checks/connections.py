"""Hold a thousand useless connections open during four streams, and check that the streams aren't affected.

    .venv/bin/python bench/checks/connections.py --seconds 60

The server may open 256 files. Each kind of connection is tried on a server of its own:

    idle      never sends anything
    headers   begins a request, then sends one byte of its headers every 20 s
    bodies    sends half a body, then one byte of it every 20 s
    readers   requests large answers, or the events of one of the streams, and never reads

A connection that the server closes is reopened 5 s later. The streams must have the same texts as without these
connections, at 0.8 times their speed or more; the log must stay below 100 KB; after the connections close, a new
request must be answered within a second. The program prints a table, and exits with 1 if a check fails.
"""

import argparse
import asyncio
import http.client
import json
import os
import re
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = ("idle", "headers", "bodies", "readers")
STREAMS = 4
MOST_TOKENS = 3_500
DRIP_SECONDS = 20.0
REOPEN_SECONDS = 5.0
LEAST_PACE = 0.8
MOST_LOG_BYTES = 100_000
MOST_ANSWER_SECONDS = 1.0

SERVE = [
    *(sys.executable, "-m", "srb", "serve", "--port", "0"),
    *("--reproducible", "--parallel", str(STREAMS), "--ctx-size", str(STREAMS * 4_096)),
]


class Server:
    """A server with a limit on open files. Its log is a file."""

    def __init__(self, folder: Path, n_files: int, options: list[str]) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SRB_")}
        self.log = folder / "server.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                ["sh", "-c", f'ulimit -n {n_files}; exec "$@"', "sh", *SERVE, *options],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environ,
            )
        assert self.process.stdout is not None
        match = re.search(r"ready at http://(\S+):(\d+)", self.process.stdout.readline())
        assert match, self.log.read_text()
        self.address = match[1], int(match[2])

    @property
    def n_files(self) -> int:
        """The number of files and sockets that the server has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    @contextmanager
    def ask(self, path: str, body: Any = None, timeout: float = 600) -> Iterator[http.client.HTTPResponse]:
        """Send a request over a new connection."""
        connection = http.client.HTTPConnection(*self.address, timeout=timeout)
        try:
            connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
            yield connection.getresponse()
        finally:
            connection.close()

    def seconds_until_answer(self, path: str, body: Any = None) -> float:
        """Return how long an answer takes; infinite without a 200 within 10 s."""
        began = time.perf_counter()
        with suppress(OSError, http.client.HTTPException), self.ask(path, body, timeout=10) as answer:
            answer.read()
            if answer.status == 200:
                return time.perf_counter() - began
        return float("inf")

    def stop(self) -> None:
        """Stop the server."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Stream(threading.Thread):
    """A thread that reads the stream of a request, which starts at once."""

    def __init__(self, server: Server, number: int, n_tokens: int) -> None:
        super().__init__()
        self._server = server
        self._body = {"prompt": f"Story {number}. Once upon a time,", "n": 1, "seed": number, "max_tokens": n_tokens}
        self._body |= {"ignore_eos": True, "stream": "events"}
        self.text, self.request_id, self.is_whole = "", "", False
        self.begun = threading.Event()
        self.first = self.last = 0.0
        self.start()

    def run(self) -> None:
        try:
            with (
                suppress(OSError, http.client.HTTPException),
                self._server.ask("/v1/completions", self._body) as answer,
            ):
                self.request_id = answer.headers["X-Request-Id"] or ""
                for line in answer:
                    if line.startswith(b"data: "):
                        self._take(json.loads(line[6:]))
        finally:
            self.begun.set()

    def _take(self, event: dict[str, Any]) -> None:
        self.last = time.perf_counter()
        if event["event"] == "stream":
            self.first = self.first or self.last
            self.text += event["text"]
            self.begun.set()
        elif event["event"] == "stop":
            self.is_whole = event["finish_reason"] == "length"


@dataclass
class Seen:
    """Observations of a server while connections of one kind were open."""

    texts: list[str]
    is_whole: bool
    seconds: float
    n_files: int = 0
    log_bytes: int = 0
    n_health: int = 0
    n_asked: int = 0
    answer_seconds: float = 0.0


def look(server: Server, n_tokens: int, kind: str | None, n_connections: int, seconds: float) -> Seen:
    """Read the streams for this time, with connections of a kind open, or without any."""
    streams = [Stream(server, number, n_tokens) for number in range(STREAMS)]
    for each in streams:
        each.begun.wait()
    log_bytes, n_files, answers, crowd = server.log.stat().st_size, 0, [], None
    if kind is not None:
        arguments = [kind, *map(str, server.address), str(n_connections), *(each.request_id for each in streams)]
        crowd = subprocess.Popen([sys.executable, __file__, "--crowd", *arguments])
    end = time.perf_counter() + seconds
    while any(each.is_alive() for each in streams) or (crowd and time.perf_counter() < end):
        time.sleep(1)
        n_files = max(n_files, server.n_files)
        if crowd and int(end - time.perf_counter()) % 5 == 0:
            answers.append(server.seconds_until_answer("/health"))
    if crowd:
        crowd.terminate()
        crowd.wait()
    answer_seconds = server.seconds_until_answer("/v1/completions", {"prompt": "One", "n": 1, "max_tokens": 1})
    return Seen(
        [each.text for each in streams],
        all(each.is_whole for each in streams),
        max(each.last - each.first for each in streams),
        n_files,
        server.log.stat().st_size - log_bytes,
        sum(each < 10 for each in answers),
        len(answers),
        answer_seconds,
    )


async def crowd(kind: str, host: str, port: int, n_connections: int, requests: list[str]) -> None:
    """Hold connections of a kind open until this process ends."""
    loop = asyncio.get_running_loop()

    async def hold(number: int) -> None:
        with socket.socket() as connection:
            connection.setblocking(False)
            if kind == "readers":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            await loop.sock_connect(connection, (host, port))
            head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            if kind == "headers":
                await loop.sock_sendall(connection, f"{head}X-Padding: ".encode())
            elif kind == "bodies":
                await loop.sock_sendall(connection, f'{head}Content-Length: 2000\r\n\r\n{{"prompt": "'.encode())
                await loop.sock_sendall(connection, b"a" * 1_000)
            elif kind == "readers":
                path = "/docs" if number % 10 else f"/v1/completions/{requests[number // 10 % len(requests)]}/events"
                await loop.sock_sendall(connection, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 8)
            while kind != "readers":
                with suppress(TimeoutError):
                    async with asyncio.timeout(DRIP_SECONDS):
                        await loop.sock_recv(connection, 1)
                        return  # the server closed the connection, perhaps with an answer
                if kind != "idle":
                    await loop.sock_sendall(connection, b"a")
            while True:  # the system reports a reset connection, though nothing was read
                await asyncio.sleep(DRIP_SECONDS)
                connection.recv(1, socket.MSG_PEEK)

    async def keep(number: int) -> None:
        while True:
            with suppress(OSError):
                await hold(number)
            await asyncio.sleep(REOPEN_SECONDS)

    await asyncio.gather(*map(keep, range(n_connections)))


def main() -> int:
    """Try all kinds, and print the table. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="how long the connections of each kind are open")
    parser.add_argument("--connections", type=int, default=1_000, help="how many of each kind")
    parser.add_argument("--files", type=int, default=256, help="how many files the server may open")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--crowd", nargs="+", help=argparse.SUPPRESS)
    arguments, options = parser.parse_known_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if arguments.crowd:
        kind, host, port, n_connections, *requests = arguments.crowd
        asyncio.run(crowd(kind, host, int(port), int(n_connections), requests))
    with tempfile.TemporaryDirectory() as folder:

        def see(n_tokens: int, kind: str | None = None) -> Seen:
            server = Server(Path(folder), arguments.files, options)
            try:
                return look(server, n_tokens, kind, arguments.connections, arguments.seconds)
            finally:
                server.stop()

        n_tokens = min(MOST_TOKENS, int(arguments.seconds * 64 / see(64).seconds))
        alone = see(n_tokens)
        assert alone.is_whole
        print(f"{STREAMS} streams of {n_tokens} tokens take {alone.seconds:.1f} s alone\n", flush=True)
        print("| connections | texts equal | pace | most files open | /health answered | log KB | answer after, s |")
        print("|---|---|---|---|---|---|---|", flush=True)
        is_good = True
        for kind in arguments.kinds:
            seen = see(n_tokens, kind)
            same, pace = seen.is_whole and seen.texts == alone.texts, alone.seconds / max(seen.seconds, 1e-9)
            print(
                f"| {kind} | {'yes' if same else 'NO'} | {pace if same else float('nan'):.2f} | {seen.n_files} | "
                f"{seen.n_health} of {seen.n_asked} | {seen.log_bytes / 1e3:.1f} | {seen.answer_seconds:.2f} |",
                flush=True,
            )
            is_good &= same and pace >= LEAST_PACE and seen.log_bytes < MOST_LOG_BYTES
            is_good &= seen.answer_seconds < MOST_ANSWER_SECONDS
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
