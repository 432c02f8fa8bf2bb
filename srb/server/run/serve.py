"""`srb serve`: starts the server from its settings, and stops it."""

import asyncio
import faulthandler
import logging
import os
import signal
import socket
import threading
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
from srb.llama.model.metadata import sampling_of
from srb.llama.model.model_file import find_model
from srb.options.arguments import pip_install
from srb.options.settings import Settings, read_keys
from srb.server.access import read_hosts
from srb.server.app import SERVER_OPTIONS, create_app
from srb.server.http.connections import read_limits
from srb.server.http.remote_media import fetch
from srb.server.http.runner import Runner
from srb.server.routes.metrics import Metrics
from srb.server.routes.slots import check_folder
from srb.server.run.keeper import Keeper
from srb.server.run.listen import describe, is_exposed, listening, urls_of
from srb.serving.async_engine import AsyncEngine
from srb.serving.early_loading import Load
from srb.serving.engine_client import EngineClient
from srb.wire.limits import Limits
from srb.wire.openai.routes import OPENAI

# `stop_signal`: how SIGTERM and SIGINT stop the server, whatever its event loop does.

STOP_SECONDS = 60.0
"""So long after the first signal the process ends, also if a thread hangs, and says on stderr where each of them is."""

_STOPPING = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_signal() -> Iterator[asyncio.Future[None]]:
    """A future that the first SIGTERM or SIGINT completes. The second one ends the process, and so do STOP_SECONDS.

    The signals come to a thread of their own: the event loop may be what hangs. If none has come until the end, they
    mean again what they meant before.
    """
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[None] = loop.create_future()
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    handlers = {}
    for number in _STOPPING:
        # Without a function of Python's, nothing would come to the socket.
        handlers[number] = signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)
    came = threading.Event()

    def watch() -> None:
        with reader:
            numbers = (byte[0] for byte in iter(lambda: reader.recv(1), b"") if byte[0] in _STOPPING)
            if next(numbers, None) is None:
                return
            came.set()
            faulthandler.dump_traceback_later(STOP_SECONDS, exit=True)
            with suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(stop.set_result, None)
            os._exit(128 + next(numbers))

    watcher = threading.Thread(target=watch, name="srb-signals", daemon=True)
    watcher.start()
    try:
        yield stop
    finally:
        if not came.is_set():
            signal.set_wakeup_fd(wakeup)
            for number, handler in handlers.items():
                signal.signal(number, handler)
            writer.close()
            watcher.join()
        else:
            writer.detach()  # the watcher reads on until the process ends


# The HTTP side of `srb serve`: opens the server's address, and says where it is. `serve.py` has the engine's side.

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


# Makes the server ready (it loads the model and evaluates `--preload`), and tells `--ready-fd` and systemd then.


NOTIFY_SOCKET = "NOTIFY_SOCKET"
"""The environment variable with the socket where systemd listens; see sd_notify(3)."""


def read_preload(settings: Settings) -> str | None:
    """The text of `--preload`. Raises `SettingsError`."""
    if settings.preload is None:
        return None
    if not settings.cache_ram:
        raise SettingsError("--preload keeps a prompt in --cache-ram, which is 0: raise it, or leave --preload out")
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
    """Returns when the model is loaded, and this prompt is evaluated and kept for the prompts that begin with it.

    Raises what loading the model raises, `SettingsError` if the prompt is too long, and `SrbError` for a fault.
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


def tell_ready(settings: Settings, url: str, environ: Mapping[str, str] = os.environ) -> None:
    """Writes the server's address and a newline to `--ready-fd`, closes it, and tells systemd."""
    if settings.ready_fd is not None:
        try:
            os.write(settings.ready_fd, f"{url}\n".encode())
            os.close(settings.ready_fd)
        except OSError as error:  # the program that wanted to know has ended
            logger.warning("--ready-fd %d can't be written: %s", settings.ready_fd, error.strerror)
    tell_systemd("READY=1", environ)


def tell_systemd(state: str, environ: Mapping[str, str] = os.environ) -> None:
    """Sends a line of sd_notify(3) to systemd, if systemd has started the server and waits for such lines."""
    if not (path := environ.get(NOTIFY_SOCKET)):
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(state.encode(), address)
    except OSError as error:
        logger.warning("%s %s can't be reached: %s", NOTIFY_SOCKET, path, error.strerror or error)


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
