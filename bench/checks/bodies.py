"""Send all requests that the tests send, and mutated ones, to a server on a scripted model.

    .venv/bin/python bench/checks/bodies.py --seed 1
    .venv/bin/python bench/checks/bodies.py --against ../srb-before

The server's tests run once, and their requests are recorded. Then some fields of each body are replaced by values of
other types. All of these requests are sent one after the other, and again by several clients at once, some of which
leave early. This is repeated with models that forget, small caches and small batches.

No answer may have the status 500, no engine may fail, and no text may depend on the load. With --against, another
checkout answers the same requests in turn, and the requests with other answers are printed.
"""

import argparse
import asyncio
import base64
import collections
import copy
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

HERE = Path(__file__).parents[2]
SERVERS: list[dict[str, Any]] = [
    {},
    {"window": 0},
    {"window": 8, "n_cells": 150},
    {"n_cells": 150, "n_batch": 16, "n_outputs": 4},
    {"n_parallel": 3, "cache_bytes": 0},
    {"block_size": 4},
]
"""Options of `FakeBackend`, and of the engine."""

VALUES: list[Any] = [
    *(None, True, -1, 0, 1.5, 10**12, 1e308, "", "text", "1", "a\x00b", "x" * 300, "\ud83d", "é"),
    *([], {}, [1], ["a", 2], {"a": 1}, [["x"]], [None], {"": None}, {"type": ["x"]}, {"name": []}),
]
NOT_SENT = ("/shutdown", "/sleep", "/metrics", "/api/extra/perf", "/api/extra/generate/check")
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}>"
)

SENT: dict[tuple[str, str, str], None] = {}

Request = tuple[str, str, bytes]
Answer = tuple[int | str, str]


# The requests


def pytest_configure() -> None:
    """Records what the tests send: this module is a plugin of pytest."""
    from aiohttp import ClientSession
    from yarl import URL

    send = ClientSession._request

    async def record(self: Any, method: str, url: Any, **options: Any) -> Any:
        body = options.get("data") if options.get("json") is None else json.dumps(options["json"])
        data = body.encode() if isinstance(body, str) else body or b""
        if isinstance(data, bytes) and len(data) < 200_000:
            SENT[method, URL(url).raw_path_qs, base64.b64encode(data).decode()] = None
        return await send(self, method, url, **options)

    mock.patch.object(ClientSession, "_request", record).start()


def pytest_unconfigure() -> None:
    """Writes what was recorded."""
    Path(os.environ["BODIES_FILE"]).write_text(json.dumps([*SENT]))


def recorded() -> list[Request]:
    """Returns what the tests of the server send."""
    with tempfile.NamedTemporaryFile() as file:
        marks = "not (llama or e2e or web or ray or nightly or starts)"
        tests = ["-q", "-p", "bodies", "-p", "without_llama", "-m", marks, "tests/server"]
        paths = os.pathsep.join([str(Path(__file__).parent), str(HERE)])
        environment = os.environ | {"BODIES_FILE": file.name, "PYTHONPATH": paths}
        subprocess.run([sys.executable, "-m", "pytest", *tests], cwd=HERE, env=environment, check=False)
        rows = json.loads(Path(file.name).read_bytes())
    found = [(method, path, base64.b64decode(data)) for method, path, data in rows]
    return [each for each in found if not each[1].startswith(NOT_SENT)]


def mutated(requests: list[Request], rng: random.Random) -> Iterator[Request]:
    """Yields each body with other values in some places."""
    bodies = []
    for method, path, data in requests:
        with suppress(ValueError, RecursionError):
            body = json.loads(data)
            if method == "POST" and isinstance(body, dict) and len(data) < 5000:
                bodies.append((path, body))
    names = sorted({name for _, body in bodies for name in body})
    for path, body in bodies:
        for is_deep in (True, True, True, False):
            changed = copy.deepcopy(body)
            if is_deep:
                change(changed, rng)
            else:
                changed[rng.choice(names)] = rng.choice(VALUES)
            yield "POST", path, json.dumps(changed).encode()


def change(node: Any, rng: random.Random) -> None:
    """Replaces one value somewhere in a body."""
    while node and isinstance(node, dict | list):
        key = rng.choice(sorted(node)) if isinstance(node, dict) else rng.randrange(len(node))
        if rng.random() < 0.4 or not isinstance(node[key], dict | list):
            node[key] = copy.deepcopy(rng.choice(VALUES))
            return
        node = node[key]


# The answers


async def answers(requests: list[Request], options: dict[str, Any], n_clients: int = 1) -> list[Answer]:
    """Returns what a server answers. With several clients, some leave before they send a request again."""
    from aiohttp import ClientSession, ClientTimeout
    from aiohttp.test_utils import TestServer
    from fake_backend import FakeBackend, babble
    from yarl import URL

    from srb.engine.engine import Engine
    from srb.llama.model.chat_template import ChatTemplate
    from srb.server.access import Hosts
    from srb.server.app import SERVER_OPTIONS, create_app
    from srb.server.run.history import HistoryService
    from srb.serving.async_engine import AsyncEngine
    from srb.wire.limits import Limits

    own = {name: options[name] for name in options.keys() - {"cache_bytes"}}
    of_engine = {name: options[name] for name in options.keys() & {"cache_bytes"}}
    template = ChatTemplate(TEMPLATE)
    make = partial(Engine, **of_engine)
    engine = AsyncEngine(
        lambda _: FakeBackend(script=babble, shifts=True, chat_template=template, **own), make=make, record=None
    )
    engine.start()
    await engine.ready()
    limits = Limits("fake", n=4, max_n=8, show_prompts=True, openai=False, linger=0, saved_slots=0)
    app = create_app(engine, limits, allowed_hosts=Hosts(), history_service=HistoryService(None, None))
    server = TestServer(app)
    await server.start_server(
        **{name: SERVER_OPTIONS[name] for name in SERVER_OPTIONS.keys() - {"handler_cancellation"}}
    )
    found: dict[int, Answer] = {}
    rng, left = random.Random(0), iter(enumerate(requests))

    async def send(session: ClientSession, request: Request) -> Answer:
        method, path, data = request
        url = server.make_url("/").join(URL(path, encoded=True))
        async with session.request(
            method, url, data=data or None, headers={"Content-Type": "application/json"}
        ) as answer:
            return answer.status, (await answer.read()).decode(errors="replace")

    async def client(session: ClientSession) -> None:
        for number, request in left:
            if n_clients > 1 and rng.random() < 0.15:
                with suppress(TimeoutError):
                    async with asyncio.timeout(rng.random() / 20):
                        await send(session, request)
            try:
                found[number] = await send(session, request)
            except TimeoutError:
                found[number] = "timeout", ""

    async with ClientSession(timeout=ClientTimeout(total=30)) as session:
        await asyncio.gather(*(client(session) for _ in range(n_clients)))
    n_failures = engine.health.engine_restarts
    await server.close()
    await engine.stop()
    if n_failures:
        sys.exit(f"{options}: the engine has failed {n_failures} times; the log has the tracebacks")
    return [found[number] for number in range(len(requests))]


def text_of(answer: Answer) -> Any:
    """Returns the texts of an answer by field and index, however they came in events."""
    status, body = answer
    texts: dict[tuple[str, int], str] = collections.defaultdict(str)

    def read(node: Any, index: int = 0) -> None:
        if isinstance(node, dict):
            index = node["index"] if isinstance(node.get("index"), int) else index
            for name, value in node.items():
                if name in ("text", "content", "token", "response", "delta", "arguments", "thinking", "finish_reason"):
                    texts[name, index] += value if isinstance(value, str) else ""
                if name not in ("usage", "timings"):
                    read(value, index)
        for each in node if isinstance(node, list) else ():
            read(each, index)

    for line in [body, *body.splitlines()]:
        with suppress(ValueError, RecursionError):
            read(json.loads(line.removeprefix("data: ")))
    return status, dict(texts)


def without_times(answer: Answer) -> Any:
    """Returns an answer without ids and times. Events are sorted, because their order may depend on time."""
    status, body = answer
    body = re.sub(r'"[a-z_]*id": ?"[^"]*"', "", body)
    body = re.sub(r"\b[a-z]+[-_][0-9a-f]{20,}|[0-9a-f]{24,}", "", body)
    body = re.sub(r'"[a-z_/]*(_ms|seconds|per_second|created|created_at|modified_at|_duration)": ?[^,}]*', "", body)
    return status, sorted(body.splitlines())


# The checks


def differ(name: str, requests: list[Request], before: list[Any], after: list[Any]) -> int:
    """Prints the requests whose answers differ; returns how many these are."""
    found = [k for k, request in enumerate(requests) if request[0] == "POST" and before[k] != after[k]]
    for k in found[:10]:
        method, path, data = requests[k]
        print(
            f"{name}: {method} {path} {data.decode(errors='replace'):.500}\n  {before[k]!s:.400}\n  {after[k]!s:.400}"
        )
    return len(found)


def main() -> None:
    if sys.argv[1:2] == ["answers"]:  # of another checkout
        requests = [(method, path, base64.b64decode(data)) for method, path, data in json.load(sys.stdin)]
        print(json.dumps(asyncio.run(answers(requests, {}))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1, help="of the mutated bodies (%(default)s)")
    parser.add_argument("--clients", type=int, default=12, help="how many at once (%(default)s)")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="another checkout, to compare answers with")
    arguments = parser.parse_args()
    own = recorded()
    requests = list(dict.fromkeys([*own, *mutated(own, random.Random(arguments.seed))]))
    print(f"{len(own)} requests recorded, {len(requests)} with mutated ones")
    n_faults = 0
    for options in SERVERS:
        alone = asyncio.run(answers(requests, options))
        together = asyncio.run(answers(requests, options, arguments.clients))
        failed = [k for k in range(len(requests)) if 500 in (alone[k][0], together[k][0])]
        for k in failed[:10]:
            print(f"status 500: {requests[k]!s:.500}")
        # An identical request takes over the text that was prefetched, which has another seed.
        own_text = [k for k, (_, _, data) in enumerate(requests) if b'"ahead"' not in data]
        n_differ = differ(
            f"under load, {options}",
            [requests[k] for k in own_text],
            [text_of(alone[k]) for k in own_text],
            [text_of(together[k]) for k in own_text],
        )
        print(f"{options}: {len(failed)} failed, {n_differ} texts differ under load")
        n_faults += len(failed) + n_differ
    if arguments.against:
        rows = json.dumps([(method, path, base64.b64encode(data).decode()) for method, path, data in requests])
        paths = os.pathsep.join(str(arguments.against.resolve() / each) for each in ("", "tests/support"))
        command = [sys.executable, __file__, "answers"]
        environment = os.environ | {"PYTHONPATH": paths}
        said = subprocess.run(command, input=rows, capture_output=True, text=True, env=environment, check=True).stdout
        before = [without_times((status, body)) for status, body in json.loads(said)]
        after = [without_times(each) for each in asyncio.run(answers(requests, {}))]
        print(f"{differ('against', requests, before, after)} answers differ from those of {arguments.against}")
    sys.exit(n_faults > 0)


if __name__ == "__main__":
    if "answers" not in sys.argv[1:2]:
        sys.path += [str(HERE / "tests" / "support")]
    with mock.patch("secrets.randbelow", return_value=7):  # the seed of a request without one
        main()
