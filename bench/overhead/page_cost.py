"""Measure Chromium's CPU time while the page streams 8 x 400 tokens.

usage: PYTHONPATH=.:tests:tests/support python bench/overhead/page_cost.py [STEPS_PER_SECOND]

The tokens come from a small server of this program, at a fixed rate of 20 steps per second. So a slow model or a busy
machine doesn't make the page look cheap. The program prints the share of one core, and how long the page took to show
everything.
"""

import asyncio
import json
import os
import random
import sys
import time
from pathlib import Path

from aiohttp import web
from playwright.async_api import async_playwright, expect
from web.conftest import ARGUMENTS, CHROMIUM

from srb.server import openapi
from srb.server.app import ROUTES
from srb.server.routes import about
from srb.server.routes.mount import resources_of
from srb.wire.limits import Limits

N, STEPS = 8, 400
TICKS = os.sysconf("SC_CLK_TCK")
WORDS = ["the", "of", "and", "lighthouse", "keeper", "rule", "night", "lamp", "sea", "it", "was", "burned"]


def step(k: int, *, logprobs: bool) -> bytes:
    """Return the events of one step, as srb sends them."""
    lines = []
    for index in range(N):
        event: dict[str, object] = {
            "event": "stream",
            "index": index,
            "text": f" {random.choice(WORDS)}",
            "tokens": [k],
        }
        if logprobs:
            top = [
                {"id": i, "token": f" {word}", "bytes": [*word.encode()], "logprob": -i - 0.5}
                for i, word in enumerate(WORDS[:8])
            ]
            event |= {"id": k, "logprob": -random.random() * 4, "top_logprobs": top}
        lines.append(f"data: {json.dumps(event)}\n\n")
    return "".join(lines).encode()


async def completions(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", "X-Request-Id": "cmpl-1"}
    )
    await response.prepare(request)

    async def send(**event: object) -> None:
        await response.write(f"data: {json.dumps(event)}\n\n".encode())

    await send(event="start", seeds=[*range(N)], ignored=[])
    if body.get("max_tokens") == 0:
        await send(event="stream", index=0, text=body["prompt"], tokens=[1])
    else:
        start = time.perf_counter()
        for k in range(STEPS):
            await asyncio.sleep(max(0.0, start + k / request.app[STEPS_PER_SECOND] - time.perf_counter()))
            await response.write(step(k, logprobs="logprobs" in body))
        for index in range(N):
            await send(event="stop", index=index, finish_reason="length", stop_reason=None)
    usage, timings = {"completion_tokens": N * STEPS}, {"predicted_ms": 1000 * STEPS / request.app[STEPS_PER_SECOND]}
    await send(event="done", usage=usage, timings=timings)
    return response


async def describe(request: web.Request) -> web.Response:
    return web.json_response(openapi.describe(ROUTES, Limits("stand-in", n=8, max_n=32), keyed=False))


async def health(request: web.Request) -> web.Response:
    return web.json_response({"model": "stand-in"})


STEPS_PER_SECOND = web.AppKey("steps_per_second", float)


def children(pid: int) -> list[int]:
    """Return the ids of all processes below a process, on Linux."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    below = [int(each) for task in tasks for each in (task / "children").read_text().split()]
    return below + [other for each in below for other in children(each)]


def browser_seconds() -> float:
    """Return the CPU time of Chromium's processes so far, in seconds, without Playwright's own process."""
    total = 0
    for pid in children(os.getpid()):
        name, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        if "chrom" in name:
            total += sum(map(int, fields.split()[11:13]))
    return total / TICKS


async def main() -> None:
    app = web.Application()
    app[STEPS_PER_SECOND] = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    app.router.add_post("/v1/completions", completions)
    app.router.add_get("/openapi.json", describe)
    app.router.add_get("/health", health)
    for each in resources_of(tuple(each for each in about.ROUTES if each.handler in (about.index, about.page_file))):
        app.router.register_resource(each)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for probabilities in (True, False):
            reader = await browser.new_page(viewport={"width": 1400, "height": 900})
            await reader.goto(url)
            await expect(reader.locator("body[data-ready]")).to_be_visible()
            await reader.locator("#open-options").click()
            await reader.locator("#shades").set_checked(probabilities)
            await reader.locator("#open-options").click()
            await reader.locator("#story").fill("The old lighthouse keeper")
            await reader.locator("#generate").click()
            await expect(reader.locator(".card")).to_have_count(N)
            start, before = time.perf_counter(), browser_seconds()
            await expect(reader.locator(".running")).to_have_count(0, timeout=600_000)
            took, used = time.perf_counter() - start, browser_seconds() - before
            name = "on" if probabilities else "off"
            print(f"probabilities {name}: {used:.1f} s in {took:.1f} s, {used / took:.0%} of a core", flush=True)
            await reader.close()
        await browser.close()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
