"""The server from its start to its end, on the fake backend."""

import asyncio
import re
import threading
from pathlib import Path

import pytest
from aiohttp import ClientSession
from fake_backend import FakeBackend

from srb import cli
from srb.async_engine import AsyncEngine
from srb.errors import EngineDeadError
from srb.server import serve as serve_module
from srb.settings import Settings


@pytest.mark.parametrize("exit_on_fatal", [False, True])
async def test_an_engine_that_fails_ends_its_requests_and_the_process_only_if_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], exit_on_fatal: bool
) -> None:
    go_on = threading.Event()

    def script(_params: object, _tokens: object) -> int:
        assert go_on.wait(10)
        return 1 // 0

    engine = AsyncEngine(lambda _progress: FakeBackend(script=script))
    stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(AsyncEngine, "from_settings", lambda _settings, _observe, _record: engine)
    monkeypatch.setattr(serve_module, "find_model", lambda _model: Path("fake.gguf"))
    monkeypatch.setattr(serve_module, "_stop_signal", lambda: stop)
    serving = asyncio.create_task(serve_module.serve(Settings(port=0, exit_on_fatal=exit_on_fatal)))
    output = ""
    while not (match := re.search(r"is ready at (http://\S+)", output)):
        await asyncio.sleep(0.001)
        output += capsys.readouterr().out
    assert f"(OpenAI's clients: {match[1]}/openai/v1)" in output
    async with ClientSession(match[1]) as session:
        responses = [await session.post("/v1/completions", json={"prompt": "p", "n": n}) for n in (5, 6)]
        go_on.set()
        for response, n in zip(responses, (5, 6), strict=True):
            text = await response.text()
            assert text.count("ZeroDivisionError") == 1
            assert text.count('"finish_reason": "error"') == n
            assert text.count('"event": "done"') == 1
        if exit_on_fatal:
            with pytest.raises(EngineDeadError, match="ZeroDivisionError"):
                await serving
            return
        assert (await session.get("/health")).status == 500
        assert (await session.post("/v1/completions", json={"prompt": "p"})).status == 503
    assert not serving.done()
    stop.set_result(None)
    await serving


def test_the_exit_code_of_a_server_whose_engine_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def serve(_settings: Settings) -> None:
        raise EngineDeadError("the engine has failed: no luck")

    monkeypatch.setattr("srb.server.serve.serve", serve)
    assert cli.main(["serve", "--exit-on-fatal"]) == 1
    assert capsys.readouterr().err == "srb: the engine has failed: no luck\n"
