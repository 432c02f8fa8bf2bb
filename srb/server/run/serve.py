"""`srb serve`: starts the server from its settings, and stops it."""

import asyncio
import logging
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from srb.errors import HistoryError, SettingsError
from srb.files.progress import show_loading
from srb.history.database import UnusableError
from srb.history.history import History
from srb.llama.files.model_file import find_model
from srb.llama.files.model_sampling import sampling_of
from srb.options.extras import pip_install
from srb.options.settings import Settings
from srb.server.routes.metrics import Metrics
from srb.server.run.keeper import Keeper
from srb.server.run.ready import check_fd, make_ready, read_preload, tell_systemd
from srb.server.run.site import open_site, say_ready
from srb.server.run.stopping import stop_signal
from srb.serving.async_engine import AsyncEngine
from srb.serving.early_loading import Load
from srb.serving.engine_client import EngineClient
from srb.wire.limits import Limits

logger = logging.getLogger("srb")

GRACE_SECONDS = 5.0
"""How long running requests may go on after the first SIGTERM or SIGINT."""


async def serve(settings: Settings, load: Load | None = None) -> None:
    """Serves until SIGTERM or SIGINT. A second such signal ends the process at once, and so do STOP_SECONDS.

    load: gives the model if it is already being loaded.

    Raises `ModelLoadError` or `SettingsError` if the server can't start. With `exit_on_fatal`, it raises
    `EngineDeadError` when the engine has failed and readers have had `site.LINGER_SECONDS` to take their last events.
    """
    path = find_model(settings.model)
    model = settings.alias or path.stem
    metrics = Metrics()
    keeper = _open_history(settings)
    engine = _make_engine(settings, metrics, keeper, load)
    limits = Limits(
        model,
        settings.n,
        settings.max_n,
        show_prompts=settings.show_prompts,
        model_path=str(path),
        slots=settings.slots,
        saved_slots=settings.parallel if settings.slot_save_path else 0,
        max_tokens=settings.max_tokens,
        openai=settings.default_format == "openai",
        linger=settings.linger,
        context_shift=settings.context_shift,
        n_keep=settings.keep,
        ahead=settings.ahead,
        sampling=sampling_of(settings),
    )
    check_fd(settings)
    preload = read_preload(settings)
    with stop_signal() as stop:
        async with AsyncExitStack() as at_end:
            at_end.push_async_callback(keeper.close)
            keeper.is_resuming = keeper.is_on
            engine.start()
            try:
                runner = await at_end.enter_async_context(open_site(settings, engine, limits, metrics, keeper))
                logger.info("loading %s", path)
                ready = asyncio.ensure_future(_make_ready(engine, preload, keeper, model, goes_on=settings.resume))
                with show_loading(lambda: engine.health.progress):
                    await asyncio.wait({ready, stop}, return_when=asyncio.FIRST_COMPLETED)
                if not ready.done():
                    ready.cancel()
                else:
                    ready.result()
                    say_ready(runner, settings, engine, model)
                await _end(engine, stop, settings.exit_on_fatal)
                tell_systemd("STOPPING=1")
                logger.info("stopping; running requests have %g seconds", GRACE_SECONDS)
            finally:
                await engine.stop(GRACE_SECONDS)


async def _make_ready(engine: EngineClient, preload: str | None, keeper: Keeper, model: str, *, goes_on: bool) -> None:
    """Returns when requests are taken, and those that were interrupted can be read on. See `make_ready`."""
    await make_ready(engine, preload)
    await keeper.resume_all(engine, model, goes_on=goes_on)
    keeper.is_resuming = False


def _make_engine(settings: Settings, metrics: Metrics, keeper: Keeper, load: Load | None) -> EngineClient:
    """An engine in this process, or one that uses replicas. Raises `SettingsError` if Ray isn't installed."""
    if not settings.is_cluster:
        return AsyncEngine.from_settings(settings, metrics.observe, keeper.record, load)
    try:
        from srb.cluster.ray_replicas import make_engine
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"--replicas and --ray-address need Ray ({error.name} is missing): " + pip_install("'llama-srb[cluster]'")
        ) from None
    return make_engine(settings, keeper.record)


def _open_history(settings: Settings) -> Keeper:
    """The keeper of the history, if one was asked for.

    With a damaged file or a full disk the server still starts and generates. A wrong path raises `SettingsError`,
    because a person can correct it at once.
    """
    if settings.history is None:
        return Keeper()
    open_file = partial(History, settings.history, settings.keep_finished)
    try:
        history = open_file()
    except HistoryError as error:
        until = "Nothing" if isinstance(error, UnusableError) else "Until then nothing"
        logger.error("%s. %s is kept; generating goes on", error.message, until)
        return Keeper(error, open_file)
    logger.info("requests, their texts and stories are kept in %s", settings.history.absolute())
    return Keeper(history)


async def _end(engine: EngineClient, stop: asyncio.Future[None], exit_on_fatal: bool) -> None:
    """Returns when the server should stop. With exit_on_fatal, raises `EngineDeadError` when the engine has failed."""
    died: asyncio.Future[Any] = asyncio.ensure_future(engine.died())
    await asyncio.wait({died, stop} if exit_on_fatal else {stop}, return_when=asyncio.FIRST_COMPLETED)
    if exit_on_fatal and died.done():
        raise died.result()
    died.cancel()
