"""`srb serve`: from settings to a listening server, and to its end."""

import asyncio
import logging
import os
import signal
from contextlib import suppress

from aiohttp import web

from srb.async_engine import AsyncEngine
from srb.errors import SettingsError
from srb.llama.model_file import find_model
from srb.server.app import create_app
from srb.server.body import Limits
from srb.settings import Settings

logger = logging.getLogger("srb")

GRACE_SECONDS = 5.0
"""How long running requests may go on after the first SIGTERM or SIGINT."""

LINGER_SECONDS = 2.0
"""How long a reader then has to take its last events."""


async def serve(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT; a second one ends the process at once.

    Raises `ModelLoadError` or `SettingsError` if it can't start.
    """
    path = find_model(settings.model)
    model = settings.alias or path.stem
    engine = AsyncEngine.from_settings(settings)
    app = create_app(engine, Limits(model, settings.n, settings.max_n, str(path), settings.slots))
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=LINGER_SECONDS)
    stop = _stop_signal()
    await runner.setup()
    try:
        await _listen(runner, settings)
        logger.info("loading %s", path)
        engine.start()
        try:
            ready = asyncio.ensure_future(engine.ready())
            await asyncio.wait({ready, stop}, return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                ready.result()
                _announce(model, runner)
            await stop
            logger.info("stopping; running requests have %g seconds", GRACE_SECONDS)
        finally:
            await engine.stop(GRACE_SECONDS)
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, settings: Settings) -> None:
    try:
        await web.TCPSite(runner, settings.host, settings.port).start()
    except OSError as error:
        raise SettingsError(
            f"can't listen on {settings.host}:{settings.port}: {error.strerror or error}; try another --port"
        ) from None


def _announce(model: str, runner: web.AppRunner) -> None:
    host, port = runner.addresses[0][:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print(f"srb: {model} is ready at {url}\n", flush=True)
    print(
        f"curl -X POST -H 'Content-type: application/json' {url}/v1/completions "
        """-d '{"prompt": "Once upon a time,"}'\n""",
        flush=True,
    )


def _stop_signal() -> asyncio.Future[None]:
    """A future that the first SIGTERM or SIGINT completes. The second ends the process."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()

    def on_signal(number: int) -> None:
        if stop.done():
            os._exit(128 + number)
        stop.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError):  # where there are no such signals, Ctrl-C still raises
            loop.add_signal_handler(number, on_signal, number)
    return stop
