"""`srb serve`: starts the server from its settings, and stops it."""

import asyncio
import faulthandler
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any

from srb.engine.events import ErrorEvent
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import HistoryError, InvalidRequestError, SettingsError
from srb.files.download import show_loading
from srb.history.database import UnusableError
from srb.history.history import History
from srb.llama.model.model_file import find_model
from srb.options.arguments import pip_install
from srb.options.settings import Settings, read_keys
from srb.server.access import read_hosts
from srb.server.app import SERVER_OPTIONS, create_app
from srb.server.http.connections import read_limits
from srb.server.http.remote_media import fetch
from srb.server.routes.metrics import Metrics
from srb.server.routes.slots import check_folder
from srb.server.run.bind import bound
from srb.server.run.history import HistoryService
from srb.server.run.listen import Runner, describe_address, is_exposed, tls_context, urls_of
from srb.serving.async_engine import AsyncEngine
from srb.serving.early_loading import Load
from srb.serving.engine_client import EngineClient
from srb.wire.limits import Limits
from srb.wire.openai.routes import OPENAI

logger = logging.getLogger("srb")

STOP_SECONDS = 60.0
"""How long after the first signal the process ends even if a thread hangs. It then prints all stacks to stderr."""

GRACE_SECONDS = 5.0
"""How long running requests may go on after the first SIGTERM or SIGINT."""

LINGER_SECONDS = 2.0
"""How long readers may take their last events after the server has ended their requests."""

NOTIFY_SOCKET = "NOTIFY_SOCKET"
"""The environment variable with systemd's socket; see sd_notify(3)."""


@contextmanager
def stop_signal() -> Iterator[asyncio.Future[None]]:
    """A future that the first SIGTERM or SIGINT completes. A second one, or STOP_SECONDS, end the process.

    Python runs its own handlers between two instructions, also where the event loop hangs; asyncio's handlers wait for
    the loop. If no signal was received, the previous handlers are restored at the end.
    """
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()
    is_received = False

    def receive(number: int, _frame: object) -> None:
        nonlocal is_received
        if is_received:
            os._exit(128 + number)
        is_received = True
        faulthandler.dump_traceback_later(STOP_SECONDS, exit=True)
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(stop.set_result, None)

    handlers = {number: signal.signal(number, receive) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        if not is_received:
            for number, handler in handlers.items():
                signal.signal(number, handler)


@asynccontextmanager
async def open_site(
    settings: Settings,
    engine: EngineClient,
    limits: Limits,
    metrics: Metrics,
    history_service: HistoryService,
    sockets: list[socket.socket],
) -> AsyncIterator[Runner]:
    """Serves HTTP on these sockets while the block runs. Raises `SettingsError` if it can't."""
    api_keys = read_keys(settings)
    app = create_app(
        engine,
        limits,
        metrics,
        api_keys=api_keys,
        cors_origins=settings.cors_origins,
        allowed_hosts=read_hosts(settings),
        history_service=history_service,
        slot_folder=check_folder(settings.slot_save_path),
        fetch=fetch if settings.allow_remote_media else None,
        shares_prompts=settings.share_prompts == "all",
        connections=read_limits(settings),
    )
    runner = Runner(app, shutdown_timeout=LINGER_SECONDS, **SERVER_OPTIONS)
    await runner.setup()
    try:
        context = tls_context(settings)
        for sock in sockets:
            runner.listen(sock, context)
        if is_exposed(runner) and not api_keys:
            logger.warning("anyone who can reach %s can use this server; set --api-key to require a key", settings.host)
        yield runner
    finally:
        await runner.cleanup()


def announce(runner: Runner, settings: Settings, engine: EngineClient, model: str) -> None:
    """Prints the server's address, and reports it to `--ready-fd` and systemd."""
    place, url, curl = describe_address(runner, settings)
    engine.urls = urls_of(runner, settings)
    print(f"srb: {model} is ready at {place} (OpenAI's clients: {url}{OPENAI})\n", flush=True)
    body = '{"prompt": "Once upon a time,", "n": 3, "max_tokens": 24}'
    print(f"{curl}/v1/completions -d '{body}'\n", flush=True)
    notify_ready(settings, url)


def read_preload(settings: Settings) -> str | None:
    """The text of `--preload`. Raises `SettingsError`."""
    if settings.preload is None:
        return None
    if not settings.cache_ram:
        raise SettingsError(
            "--preload needs memory for its prompt, but --cache-ram is 0: raise it, or leave --preload out"
        )
    try:
        return settings.preload.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it isn't UTF-8"
        raise SettingsError(f"--preload {settings.preload} can't be read: {reason}") from None


def check_fd(settings: Settings) -> None:
    """Raises `SettingsError` if `--ready-fd` isn't open."""
    if settings.ready_fd is not None:
        try:
            os.fstat(settings.ready_fd)
        except OSError as error:
            raise SettingsError(f"--ready-fd {settings.ready_fd}: {error.strerror}") from None


async def make_ready(engine: EngineClient, preload: str | None) -> None:
    """Waits until the model is loaded, and the preloaded prompt is in the prefix cache.

    Raises `ModelLoadError`, `SettingsError` if the prompt is too long, and `SrbError` if it can't be evaluated.
    """
    await engine.ready()
    if preload is None:
        return
    try:
        prompt = await asyncio.to_thread(engine.tokenize, preload)
        async for event in engine.generate(CompletionRequest((prompt,), (SamplingParams(max_tokens=0),))):
            if isinstance(event, ErrorEvent):
                raise event.error
    except InvalidRequestError as error:
        raise SettingsError(f"--preload: {error.message}") from None
    logger.info("preloaded %d tokens", len(prompt))


def notify_ready(settings: Settings, url: str, environ: Mapping[str, str] = os.environ) -> None:
    """Writes the server's address and a newline to `--ready-fd`, closes it, and notifies systemd."""
    if settings.ready_fd is not None:
        try:
            os.write(settings.ready_fd, f"{url}\n".encode())
            os.close(settings.ready_fd)
        except OSError as error:  # the program at the other end has exited
            logger.warning("--ready-fd %d can't be written: %s", settings.ready_fd, error.strerror)
    notify_systemd("READY=1", environ)


def notify_systemd(state: str, environ: Mapping[str, str] = os.environ) -> None:
    """Sends a line of sd_notify(3) to systemd, if systemd started the server and expects it."""
    if not (path := environ.get(NOTIFY_SOCKET)):
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(state.encode(), address)
    except OSError as error:
        logger.warning("%s %s can't be reached: %s", NOTIFY_SOCKET, path, error.strerror or error)


async def serve(settings: Settings, load: Load | None = None, sockets: list[socket.socket] | None = None) -> None:
    """Serves until SIGTERM or SIGINT. A second such signal ends the process at once, and so do STOP_SECONDS.

    The model may be loading already, and the sockets be bound. Raises `ModelLoadError`, `SettingsError`, and with
    `exit_on_fatal` `EngineDeadError`, when readers had LINGER_SECONDS to take their last events.
    """
    from srb.llama.model.metadata import sampling_of

    path = find_model(settings.model)
    model = settings.alias or path.stem
    metrics = Metrics()
    history_service = _open_history(settings)
    engine = _make_engine(settings, metrics, history_service, load)
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
            at_end.push_async_callback(history_service.close)
            history_service.is_resuming = history_service.is_on
            if sockets is None:
                sockets = at_end.enter_context(bound(settings))
            site = open_site(settings, engine, limits, metrics, history_service, sockets)
            runner = await at_end.enter_async_context(site)
            engine.start()
            try:
                logger.info("loading %s", path)
                ready = asyncio.ensure_future(
                    _make_ready(engine, preload, history_service, model, resume=settings.resume)
                )
                with show_loading(lambda: engine.health.progress):
                    await asyncio.wait({ready, stop}, return_when=asyncio.FIRST_COMPLETED)
                if not ready.done():
                    ready.cancel()
                else:
                    ready.result()
                    announce(runner, settings, engine, model)
                await _wait_for_end(engine, stop, settings.exit_on_fatal)
                notify_systemd("STOPPING=1")
                logger.info("stopping; running requests have %g seconds", GRACE_SECONDS)
            finally:
                await engine.stop(GRACE_SECONDS)


async def _make_ready(
    engine: EngineClient, preload: str | None, history_service: HistoryService, model: str, *, resume: bool
) -> None:
    """Waits until requests are accepted, and those that were interrupted have resumed."""
    await make_ready(engine, preload)
    await history_service.resume_all(engine, model, enabled=resume)
    history_service.is_resuming = False


def _make_engine(
    settings: Settings, metrics: Metrics, history_service: HistoryService, load: Load | None
) -> EngineClient:
    """An engine in this process, or one with replicas. Raises `SettingsError` if Ray isn't installed."""
    if not settings.is_cluster:
        return AsyncEngine.from_settings(settings, metrics.observe, history_service.record, load)
    try:
        from srb.cluster.ray_replicas import make_engine
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"--replicas and --ray-address need Ray ({error.name} is missing): " + pip_install("'llama-srb[cluster]'")
        ) from None
    return make_engine(settings, history_service.record)


def _open_history(settings: Settings) -> HistoryService:
    """Opens the history, if one was asked for.

    With a damaged file or a full disk the server still starts. A wrong path raises `SettingsError`, because the user
    can correct it at once.
    """
    if settings.history is None:
        return HistoryService()
    open_file = partial(History, settings.history, settings.keep_finished)
    try:
        history = open_file()
    except HistoryError as error:
        nothing = "Nothing" if isinstance(error, UnusableError) else "Until then nothing"
        logger.error("%s. %s is stored; requests are still served", error.message, nothing)
        return HistoryService(error, open_file)
    logger.info("requests, their texts and stories are stored in %s", settings.history.absolute())
    return HistoryService(history)


async def _wait_for_end(engine: EngineClient, stop: asyncio.Future[None], exit_on_fatal: bool) -> None:
    """Waits until the server should stop. With exit_on_fatal, raises `EngineDeadError` when the engine has failed."""
    died: asyncio.Future[Any] = asyncio.ensure_future(engine.died())
    await asyncio.wait({died, stop} if exit_on_fatal else {stop}, return_when=asyncio.FIRST_COMPLETED)
    if exit_on_fatal and died.done():
        raise died.result()
    died.cancel()
