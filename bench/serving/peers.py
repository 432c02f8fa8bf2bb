"""Start the servers that bench/serving/compare.py measures, and send the same requests to all of them."""

import asyncio
import itertools
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp


@dataclass(frozen=True)
class Peer:
    """A server under test.

    Attributes:
        flags: its flags besides the model, the port, the context and the threads, which all servers get.
    """

    name: str
    is_srb: bool
    flags: tuple[str, ...]

    def command(self, model: Path, port: int, cells: int, threads: int, binaries: Path) -> list[str]:
        program = [sys.executable, "-m", "srb", "serve"] if self.is_srb else [str(binaries / "llama-server")]
        common = ["-m", str(model), "--port", str(port), "-c", str(cells), "-t", str(threads)]
        return [*program, *common, *self.flags]

    def request(self, prompt: Any, n: int, max_tokens: int, **fields: Any) -> tuple[str, dict[str, Any]]:
        """Return the path and the body of a streamed completion that never ends by itself."""
        body = {"prompt": prompt, "ignore_eos": True, "stream": True, "seed": 1} | fields
        if self.is_srb:
            return "/v1/completions", body | {"n": n, "max_tokens": max_tokens, "stream": "events"}
        return "/completion", body | {"n_cmpl": n, "n_predict": max_tokens}


@dataclass
class Answer:
    """The answer to one request. Times are in seconds since the request was sent.

    Attributes:
        sent: when the request was sent, by `time.perf_counter`.
        times: when the texts of each index came.
    """

    sent: float
    end: float = 0.0
    prompt_tokens: int = 0
    tokens: int = 0
    times: dict[int, list[float]] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)

    @property
    def first(self) -> dict[int, float]:
        """The time of the first text of each index."""
        return {index: times[0] for index, times in self.times.items()}

    @property
    def gaps(self) -> list[float]:
        """The times between consecutive texts of the same index."""
        return [after - before for times in self.times.values() for before, after in itertools.pairwise(times)]


class Server:
    """A running peer."""

    def __init__(
        self, peer: Peer, process: asyncio.subprocess.Process, url: str, session: aiohttp.ClientSession
    ) -> None:
        self.peer = peer
        self.process = process
        self.url = url
        self._session = session

    async def ask(self, prompt: Any, n: int = 1, max_tokens: int = 64, **fields: Any) -> Answer:
        """Send a completion and read it to its end."""
        path, body = self.peer.request(prompt, n, max_tokens, **fields)
        answer = Answer(time.perf_counter())
        async with self._session.post(self.url + path, json=body) as response:
            if response.status != 200:
                raise RuntimeError(f"{self.peer.name}: {response.status} {await response.text()}")
            # The texts are parsed later: with few cores, work of the client now would slow the servers.
            pieces = [(time.perf_counter() - answer.sent, piece) async for piece in response.content.iter_any()]
        answer.end = time.perf_counter() - answer.sent
        rest = b""
        for now, piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    self._read(answer, now, json.loads(line[6:]))
        return answer

    def _read(self, answer: Answer, now: float, event: dict[str, Any]) -> None:
        if "error" in event:
            raise RuntimeError(f"{self.peer.name}: {event}")
        text, index = event.get("text", event.get("content")), event.get("index", 0)
        if event.get("event") == "stop" or event.get("stop") is True:
            answer.tokens += event.get("length", event.get("tokens_predicted", 0))
        elif text:
            answer.texts[index] = answer.texts.get(index, "") + text
            answer.times.setdefault(index, []).append(now)
        elif "usage" in event:
            answer.prompt_tokens = event["usage"]["prompt_tokens"]

    def forget_peak(self) -> None:
        """Reset the peak of the resident memory. Linux only."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def peak_memory(self) -> int:
        """Return the peak resident memory since `forget_peak`, in MiB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+)", status)
        return int(found[1]) >> 10 if found else 0


@asynccontextmanager
async def running(peer: Peer, model: Path, cells: int, threads: int, binaries: Path) -> AsyncIterator[Server]:
    """Start a peer, wait until it is ready, and end it by its process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *peer.command(model, port, cells, threads, binaries), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    timeout = aiohttp.ClientTimeout(total=600)
    # llama-server may close a keep-alive connection just when it is reused, so connections aren't reused.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, read_bufsize=1 << 20) as session:
        server = Server(peer, process, f"http://127.0.0.1:{port}", session)
        try:
            await _ready(server, session)
            yield server
        finally:
            process.terminate()
            await asyncio.wait_for(process.wait(), 30)


async def _ready(server: Server, session: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(300):
        while server.process.returncode is None:
            try:
                async with session.get(f"{server.url}/health") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.01)
    raise RuntimeError(f"{server.peer.name} ended with {server.process.returncode}")
