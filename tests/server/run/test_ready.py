"""What happens before a server is ready, and who is told then."""

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from aiohttp import ClientSession
from fake_backend import FakeBackend
from server.run.conftest import Prepare

from srb.engine.engine import Engine
from srb.errors import SettingsError
from srb.options.settings import Settings
from srb.server.run import serve as serve_module
from srb.server.run.serve import check_fd, notify_ready, read_preload
from srb.serving.async_engine import AsyncEngine

pytestmark = pytest.mark.llama  # `serve` reads the sampling defaults in the model file

MAKE = partial(Engine, cache_bytes=1 << 20)


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket that systemd listens to."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield sock


async def test_a_server_that_is_ready(serve_engine: Prepare, systemd: socket.socket, tmp_path: Path) -> None:
    stop = serve_engine(lambda *_: AsyncEngine(lambda _progress: FakeBackend(), make=MAKE))
    (tmp_path / "begin").write_text("Once upon a time, ")
    got, tells = os.pipe()
    settings = Settings(port=0, ready_fd=tells, preload=tmp_path / "begin", host="127.0.0.1,::1")
    running = asyncio.create_task(serve_module.serve(settings))
    with os.fdopen(got) as pipe:
        url = (await asyncio.to_thread(pipe.read)).strip()  # to its end, as it is closed
    assert await asyncio.to_thread(systemd.recv, 100) == b"READY=1"
    port = url.rpartition(":")[2]
    async with ClientSession() as session:
        for address in (url, f"http://[::1]:{port}"):
            body = {"prompt": "Once upon a time, there", "n": 1, "max_tokens": 1}
            async with session.post(f"{address}/v1/completions", json=body) as response:
                events = [json.loads(line[6:]) for line in (await response.text()).splitlines() if line[:5] == "data:"]
            assert events[0]["cached_tokens"] >= len("Once upon a time, ")
    stop.set_result(None)
    await running
    assert systemd.recv(100) == b"STOPPING=1"


async def test_a_preloaded_prompt_that_is_too_long(
    serve_engine: Prepare, systemd: socket.socket, tmp_path: Path
) -> None:
    serve_engine(lambda *_: AsyncEngine(lambda _progress: FakeBackend(n_cells=16)))
    (tmp_path / "begin").write_text("x" * 100)
    with pytest.raises(SettingsError, match=r"--preload: prompt has (at least )?[0-9]+ tokens, more than the 16 cells"):
        await serve_module.serve(Settings(port=0, preload=tmp_path / "begin"))
    systemd.setblocking(False)
    with pytest.raises(BlockingIOError):  # nobody was told
        systemd.recv(100)


def test_what_cant_be_is_reported_before_the_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff")
    for settings, message in (
        (Settings(preload=tmp_path / "none"), "none can't be read: No such file"),
        (Settings(preload=tmp_path / "bytes"), "bytes can't be read: it isn't UTF-8"),
        (
            Settings(preload=tmp_path / "bytes", cache_ram=0),
            "--preload needs memory for its prompt",
        ),
    ):
        with pytest.raises(SettingsError, match=message):
            read_preload(settings)
    with pytest.raises(SettingsError, match="--ready-fd 999999: Bad file descriptor"):
        check_fd(Settings(ready_fd=999_999))


def test_who_wanted_to_know_has_gone(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    got, tells = os.pipe()
    os.close(got)
    try:
        notify_ready(Settings(ready_fd=tells), "http://x", {"NOTIFY_SOCKET": str(tmp_path / "nobody")})
    finally:
        os.close(tells)
    assert f"--ready-fd {tells} can't be written: Broken pipe" in caplog.text
    assert f"NOTIFY_SOCKET {tmp_path / 'nobody'} can't be reached: No such file or directory" in caplog.text


def test_an_abstract_socket() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0srb-test-{os.getpid()}")
        sock.settimeout(10)
        notify_ready(Settings(), "http://x", {"NOTIFY_SOCKET": f"@srb-test-{os.getpid()}"})
        assert sock.recv(100) == b"READY=1"
