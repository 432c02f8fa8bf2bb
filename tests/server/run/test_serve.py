"""The server from its start to its end, on the fake backend."""

import asyncio
import logging
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from aiohttp import ClientSession
from fake_backend import FakeBackend
from server.conftest import server_process
from server.run.conftest import Prepare
from waiting import until

import srb.cli as cli
from srb.errors import EngineDeadError, SettingsError
from srb.options.settings import Settings
from srb.server.app import SERVER_OPTIONS, create_app
from srb.server.run import serve as serve_module
from srb.server.run.listen import Runner
from srb.server.run.serve import stop_signal
from srb.serving.async_engine import AsyncEngine
from srb.serving.logs import LogFormatter
from srb.wire.limits import Limits

pytestmark = pytest.mark.llama  # `serve` reads the sampling defaults in the model file


@pytest.mark.parametrize("exit_on_fatal", [False, True])
async def test_an_engine_that_fails_ends_its_requests_and_the_process_only_if_asked(
    serve_engine: Prepare, capsys: pytest.CaptureFixture[str], exit_on_fatal: bool
) -> None:
    go_on = threading.Event()

    def script(_params: object, _tokens: object) -> int:
        assert go_on.wait(10)
        return 1 // 0

    engine = AsyncEngine(lambda _progress: FakeBackend(script=script))
    stop = serve_engine(lambda *_: engine)
    serving = asyncio.create_task(serve_module.serve(Settings(port=0, exit_on_fatal=exit_on_fatal)))
    output = ""
    while not (match := re.search(r"is ready at (http://\S+)", output)):
        await asyncio.sleep(0.001)
        output += capsys.readouterr().out
    assert f"(OpenAI's clients: {match[1]}/openai/v1)" in output
    async with ClientSession(match[1]) as session:
        responses = [await session.post("/v1/completions", json={"prompt": "p", "n": n}) for n in (5, 6, 7)]
        go_on.set()
        for response, n in zip(responses, (5, 6, 7), strict=True):
            text = await response.text()
            assert text.count("ZeroDivisionError") == 1
            assert text.count('"finish_reason": "error"') == n
            assert text.count('"event": "done"') == 1
        if exit_on_fatal:
            with pytest.raises(EngineDeadError, match="ZeroDivisionError"):
                await serving
            return
        while (await session.get("/health")).status != 500:  # the last request ends before the engine does
            pass
        assert (await session.post("/v1/completions", json={"prompt": "p"})).status == 503
    assert not serving.done()
    stop.set_result(None)
    await serving


async def test_it_is_ready_when_interrupted_requests_can_be_read_on(
    monkeypatch: pytest.MonkeyPatch, serve_engine: Prepare, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def wait(_db: sqlite3.Connection) -> None:
        asked.set()
        assert go_on.wait(10)

    monkeypatch.setattr("srb.server.run.history.interrupt_unreadable", wait)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    stop = serve_engine(lambda *arguments: AsyncEngine(lambda _: FakeBackend(), record=arguments[2]))
    serving = asyncio.create_task(serve_module.serve(Settings(port=port, history=tmp_path / "history.db")))
    await until(asked.is_set)
    assert "is ready" not in capsys.readouterr().out
    async with ClientSession(f"http://127.0.0.1:{port}") as session:
        async with session.get("/health") as answer:
            assert (answer.status, (await answer.json())["status"]) == (503, "loading model")
        go_on.set()
        while "is ready at http://" not in capsys.readouterr().out:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert (await session.get("/health")).status == 200
    stop.set_result(None)
    await serving


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nAuthorization\x00: Bearer sk-secret\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sk-secret\x01\r\n\r\n",
        b"sk-secret /health\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nsk-secret\r\n",
    ],
)
async def test_what_is_not_http_is_neither_quoted_nor_logged(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    caplog.handler.setFormatter(LogFormatter())
    async with AsyncEngine(lambda _progress: FakeBackend()) as engine:
        runner = Runner(create_app(engine, Limits("fake", n=4, max_n=8)), **SERVER_OPTIONS)
        await runner.setup()
        runner.listen(socket.create_server(("127.0.0.1", 0)))
        reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
        writer.write(sent)
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
        writer.close()
        await runner.cleanup()
    assert b" 400 " in head.splitlines()[0]
    assert b"secret" not in head + body
    assert "secret" not in "\n".join(map(caplog.handler.format, caplog.records))
    assert [(record.name, record.exc_info) for record in caplog.records] == [("srb", None)]


BEGINNING = """
import sys
import srb.cli as cli
from srb.options.settings import Settings
from srb.serving import early_loading
early_loading.EarlyLoading = lambda _load: print(
    {"aiohttp", "asyncio", "llguidance", "pydantic"} & {*sys.modules}
)
cli._begin_loading(Settings())
"""


@pytest.mark.starts
def test_a_server_begins_to_load_its_model_before_it_imports_what_else_it_needs() -> None:
    assert subprocess.check_output([sys.executable, "-c", BEGINNING], text=True) == "set()\n"


@pytest.mark.parametrize("option", ["--port", "--uds"])
def test_an_address_in_use_is_said_before_a_model_is_looked_for(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "fetch_model", pytest.fail)
    family, address = (socket.AF_INET, ("127.0.0.1", 0)) if option == "--port" else (socket.AF_UNIX, f"{tmp_path}/s")
    with socket.create_server(address, family=family) as taken:
        name = taken.getsockname()
        assert cli.main(["serve", option, name if option == "--uds" else str(name[1])]) == 2
    assert f"Address already in use; try another {option}" in capsys.readouterr().err


DYING = """
import os, signal
from srb import cli
cli._serve = lambda *_: os.kill(os.getpid(), signal.SIGBUS)
cli.main(["serve"])
"""


@pytest.mark.starts
def test_a_signal_that_ends_the_process_is_named() -> None:
    """As when the model's file becomes shorter while it is mapped."""
    ended = subprocess.run([sys.executable, "-c", DYING], capture_output=True, text=True, timeout=60)
    assert ended.returncode == -signal.SIGBUS
    assert ended.stderr.startswith("Fatal Python error: Bus error\n")


async def test_a_wrong_option_is_said_before_the_model_is_loaded(serve_engine: Prepare) -> None:
    serve_engine(lambda *_: AsyncEngine(lambda _progress: pytest.fail("loaded")))
    with pytest.raises(SettingsError, match="--cors-origins"):
        await serve_module.serve(Settings(port=0, cors_origins="nonsense"))


HANGING = """
import threading
from srb.server.routes import about

async def hang(_request):
    print("it hangs", flush=True)
    while True:
        pass

def script(_params, _tokens):
    print("it hangs", flush=True)
    threading.Event().wait()

serve.STOP_SECONDS = {seconds}
about.docs.__code__ = hang.__code__
"""


@pytest.mark.starts
@pytest.mark.parametrize("path", ["/v1/completions", "/docs"])
@pytest.mark.parametrize("asks_again", [False, True])
def test_a_thread_that_hangs_keeps_no_server_from_ending(path: str, asks_again: bool) -> None:
    """The engine's thread hangs, or that of the event loop."""
    changes = HANGING.format(seconds=60 if asks_again else 0.2)
    with server_process(changes, stderr=subprocess.PIPE) as (process, address):
        assert process.stdout
        assert process.stderr
        body = b'{"prompt": "p"}'
        method = b"GET" if path == "/docs" else b"POST"
        head = b"%s %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (method, path.encode(), len(body))
        with socket.create_connection(address) as client:
            client.sendall(head + body)
            while "it hangs" not in process.stdout.readline():
                pass
            process.terminate()
            if asks_again:
                while process.poll() is None:  # the system makes one signal of two that nobody has taken yet
                    process.terminate()
                    time.sleep(0.01)
                assert process.returncode == 128 + signal.SIGTERM
            else:
                assert process.wait(10) == 1
                assert "in script" in (said := process.stderr.read()) or "in hang" in said


@pytest.fixture
def begin_loading(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Settings], object]], None]:
    """Sets what happens when a server begins to load its model."""
    return lambda function: monkeypatch.setattr(cli, "_begin_loading", function)


def test_the_exit_code_of_a_server_whose_engine_failed(
    begin_loading: Callable[[Callable[[Settings], object]], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def serve(_settings: Settings, _load: None, _sockets: object) -> None:
        raise EngineDeadError("the engine has failed: no luck")

    begin_loading(lambda _settings: nullcontext())
    monkeypatch.setattr("srb.server.run.serve.serve", serve)
    assert cli.main(["serve", "--exit-on-fatal"]) == 1
    assert capsys.readouterr().err == "srb: the engine has failed: no luck\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_exit_code_of_a_server_that_is_stopped_while_it_starts(
    begin_loading: Callable[[Callable[[Settings], object]], None], number: signal.Signals, code: int
) -> None:
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    begin_loading(lambda _settings: signal.raise_signal(number))
    try:
        assert cli.main(["serve"]) == code
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)


async def test_signals_mean_what_they_meant_when_a_server_has_ended_by_itself() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with stop_signal() as stop:
        assert signal.getsignal(signal.SIGINT) not in before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert not stop.done()
