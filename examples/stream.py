"""Show each alternative on its own line as it grows. Start the server first: ./build.sh serve

usage: python examples/stream.py [PROMPT] [N]
"""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

URL = f"http://{os.environ.get('SRB_HOST', '127.0.0.1')}:{os.environ.get('SRB_PORT', 9090)}"


async def events(prompt: str, n: int) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a request as dicts."""
    body = {"prompt": prompt, "n": n, "max_tokens": 40}
    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(f"{URL}/v1/completions", json=body) as reply,
    ):
        if reply.status != 200:
            sys.exit((await reply.json())["error"]["message"])
        async for line in reply.content:
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))


async def main(prompt: str, n: int) -> None:
    """Redraw the lines in place on a terminal, or print them once at the end."""
    lines = [""] * n
    live = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns - 1
    if live:
        print("\n" * n, end="")
    async for event in events(prompt, n):
        if event["event"] == "stream":
            lines[event["index"]] += event["text"]
            if live:
                shown = (f"{k}: {' '.join(text.split())}"[-width:] for k, text in enumerate(lines))
                print(f"\x1b[{n}F" + "".join(f"\x1b[2K{line}\n" for line in shown), end="", flush=True)
        elif event["event"] == "error":
            print(event["error"]["message"], file=sys.stderr)
    if not live:
        for k, text in enumerate(lines):
            print(f"{k}: {' '.join(text.split())}")


if __name__ == "__main__":
    arguments = dict(enumerate(sys.argv))
    try:
        asyncio.run(main(arguments.get(1, "Once upon a time,"), int(arguments.get(2, 8))))
    except aiohttp.ClientError as error:
        sys.exit(f"{error}. Start the server first: ./build.sh serve")
