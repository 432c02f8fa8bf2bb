"""The HTTP side of `srb serve`: opens the server's address, and says where it is. `serve.py` has the engine's side."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from srb.options.settings import Settings, read_keys
from srb.server.app import SERVER_OPTIONS, create_app
from srb.server.guards.hosts import read_hosts
from srb.server.http.connections import read_limits
from srb.server.http.remote_media import fetch
from srb.server.http.runner import Runner
from srb.server.routes.metrics import Metrics
from srb.server.routes.slots import check_folder
from srb.server.run.keeper import Keeper
from srb.server.run.listen import describe, is_exposed, listening, urls_of
from srb.server.run.ready import tell_ready
from srb.serving.engine_client import EngineClient
from srb.wire.limits import Limits
from srb.wire.openai.routes import OPENAI

logger = logging.getLogger("srb")

LINGER_SECONDS = 2.0
"""How long a reader has, after its request has ended with the server, to take its last events."""


@asynccontextmanager
async def open_site(
    settings: Settings, engine: EngineClient, limits: Limits, metrics: Metrics, keeper: Keeper
) -> AsyncIterator[Runner]:
    """Answers requests at the server's address until the block ends. Raises `SettingsError` if it can't."""
    api_keys = read_keys(settings)
    app = create_app(
        engine,
        limits,
        metrics,
        api_keys=api_keys,
        cors_origins=settings.cors_origins,
        allowed_hosts=read_hosts(settings),
        keeper=keeper,
        slot_folder=check_folder(settings.slot_save_path),
        fetch=fetch if settings.allow_remote_media else None,
        shares_prompts=settings.share_prompts == "all",
        connections=read_limits(settings),
    )
    runner = Runner(app, shutdown_timeout=LINGER_SECONDS, **SERVER_OPTIONS)
    await runner.setup()
    try:
        async with listening(runner, settings):
            if is_exposed(runner) and not api_keys:
                logger.warning("whoever reaches %s can use this server; --api-key asks for a key", settings.host)
            yield runner
    finally:
        await runner.cleanup()


def say_ready(runner: Runner, settings: Settings, engine: EngineClient, model: str) -> None:
    """Says on stdout, to `--ready-fd` and to systemd that the server is ready, and where."""
    place, url, curl = describe(runner, settings)
    engine.urls = urls_of(runner, settings)
    print(f"srb: {model} is ready at {place} (OpenAI's clients: {url}{OPENAI})\n", flush=True)
    body = '{"prompt": "Once upon a time,", "n": 3, "max_tokens": 24}'
    print(f"{curl}/v1/completions -d '{body}'\n", flush=True)
    tell_ready(settings, url)
