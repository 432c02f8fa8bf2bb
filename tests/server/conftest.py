import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web, web_app
from aiohttp.test_utils import TestClient, TestServer
from fake_backend import FakeBackend

from srb.errors import HistoryError
from srb.history.history import History
from srb.server.access import Hosts
from srb.server.app import SERVER_OPTIONS, create_app
from srb.server.run.history import HistoryService
from srb.serving.async_engine import AsyncEngine
from srb.wire.limits import Limits

Client = TestClient[web.Request, web.Application]
Connect = Callable[..., Awaitable[Client]]


PROGRAM = """
import sys
from contextlib import nullcontext
from pathlib import Path
from srb import cli
from srb.serving.async_engine import AsyncEngine
from srb.server.run import serve
sys.path.insert(0, {support!r})
from fake_backend import FakeBackend, babble as script

serve.find_model = lambda _model: Path("fake.gguf")
cli.fetch_model = lambda settings: settings
cli._begin_loading = lambda _settings: nullcontext()
AsyncEngine.from_settings = lambda *arguments: AsyncEngine(lambda _: FakeBackend(script=script), record=arguments[2])
{changes}
sys.exit(cli.main(["serve", "--port", "0"]))
"""


@contextmanager
def server_process(
    changes: str = "", before: tuple[str, ...] = (), **options: Any
) -> Iterator[tuple["subprocess.Popen[str]", tuple[str, int]]]:
    """A server on the fake backend, in a process of its own, and its address. before: a command that starts it."""
    code = PROGRAM.format(support=str(Path(__file__).parents[1] / "support"), changes=changes)
    command = [*before, sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options) as process:
        try:
            assert process.stdout
            match = re.search(r"is ready at http://(\S+):(\d+)", process.stdout.readline())
            assert match
            yield process, (match[1], int(match[2]))
        finally:
            process.terminate()


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream."""
    return [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]


async def posted(client: Client, path: str, body: Any = None, status: int = 200, headers: Any = None) -> Any:
    """The JSON that a POST is answered with."""
    async with client.post(path, json=body, headers=headers) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


async def refused(client: Client, path: str, body: Any, param: str | None, message: str = "", status: int = 400) -> Any:
    """Checks that a POST is refused, and names a field. Returns the error."""
    error = (await posted(client, path, body, status))["error"]
    assert error["param"] == param, error
    assert message in error["message"]
    return error


@pytest.fixture
async def connect(aiohttp_client: Any) -> AsyncIterator[Connect]:
    """Makes a client of a server on a backend, which has one client; with options, for `AsyncEngine`, another one."""
    engines: list[AsyncEngine] = []
    clients: dict[int, Client] = {}

    async def make(
        backend: FakeBackend,
        *,
        show_prompts: bool = False,
        openai: bool = False,
        api_keys: tuple[bytes, ...] = (),
        cors_origins: str = "localhost",
        allowed_hosts: Hosts | None = None,
        linger: float = 0,
        model: str = "fake",
        history: History | HistoryError | None = None,
        reopen: Callable[[], History] | None = None,
        slot_folder: Path | None = None,
        fetch: Any = None,
        shares_prompts: bool = False,
        **options: Any,
    ) -> Client:
        history_service = HistoryService(history, reopen)
        engine = AsyncEngine(lambda _progress: backend, record=history_service.record, **options)
        engine.start()
        engines.append(engine)
        await engine.ready()
        limits = Limits(
            model,
            n=4,
            max_n=8,
            show_prompts=show_prompts,
            openai=openai,
            linger=linger,
            saved_slots=backend.n_parallel if slot_folder else 0,
        )
        app = create_app(
            engine,
            limits,
            api_keys=api_keys,
            cors_origins=cors_origins,
            allowed_hosts=allowed_hosts or Hosts(),
            history_service=history_service,
            slot_folder=slot_folder,
            fetch=fetch,
            shares_prompts=shares_prompts,
        )
        server = TestServer(app)
        # It has handler_cancellation anyway, and can't be told twice.
        await server.start_server(
            **{name: SERVER_OPTIONS[name] for name in SERVER_OPTIONS.keys() - {"handler_cancellation"}}
        )
        client: Client = await aiohttp_client(server)
        return client

    async def make_once(backend: FakeBackend, **options: Any) -> Client:
        if options or id(backend) not in clients:
            clients[id(backend)] = await make(backend, **options)
        return clients[id(backend)]

    yield make_once
    for engine in engines:
        await engine.stop()
    web_app._cached_build_middleware.cache_clear()  # it holds a thousand servers, which the collector would walk
