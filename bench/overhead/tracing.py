"""Measure what `--otlp-endpoint` costs a request, on the scripted backend: time from its body to its last event.

.venv/bin/python bench/overhead/tracing.py --requests 300 --n 8
"""

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import time
from contextlib import AsyncExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from fake_backend import FakeBackend

from srb.server.app import create_app
from srb.server.run.otlp import OtlpTelemetry
from srb.serving.async_engine import AsyncEngine
from srb.wire.limits import Limits

TOKENS = 20


class Collector(BaseHTTPRequestHandler):
    """Reads what it gets, and answers 200."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


async def ask(client: TestClient[web.Request, web.Application], n: int) -> float:
    """Return the seconds that a request takes."""
    began = time.perf_counter()
    body = {"prompt": "Once upon a time", "n": n, "max_tokens": TOKENS, "ignore_eos": True}
    async with client.post("/v1/completions", json=body) as response:
        assert '"event": "done"' in await response.text()
    return time.perf_counter() - began


async def measure(url: str, requests: int, n: int) -> None:
    """Print the medians without and with telemetry. The requests alternate."""
    telemetry = OtlpTelemetry(url)
    async with AsyncExitStack() as at_end:
        clients = []
        for observe in (None, telemetry.observe):
            engine = AsyncEngine(lambda _progress: FakeBackend(n_cells=4096))
            engine.start()
            at_end.push_async_callback(engine.stop)
            await engine.ready()
            app = create_app(engine, Limits("fake", n=n, max_n=n), observe=observe)
            clients.append(await at_end.enter_async_context(TestClient(TestServer(app))))
        times: list[list[float]] = [[], []]
        for _ in range(requests):
            for client, each in zip(clients, times, strict=True):
                each.append(await ask(client, n))
    await telemetry.close()
    off, on = (statistics.median(each) * 1e3 for each in times)
    print(f"{n} alternatives of {TOKENS} tokens: {off:.2f} ms without, {on:.2f} ms with --otlp-endpoint")


def main() -> None:
    """Read the options, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--n", type=int, default=8)
    options = parser.parse_args()
    server = HTTPServer(("127.0.0.1", 0), Collector)
    process = multiprocessing.get_context("fork").Process(target=server.serve_forever, daemon=True)
    process.start()
    try:
        asyncio.run(measure(f"http://127.0.0.1:{server.server_port}", options.requests, options.n))
    finally:
        process.terminate()


if __name__ == "__main__":
    main()
