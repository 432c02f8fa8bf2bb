"""Makes the server ready (it loads the model and evaluates `--preload`), and tells `--ready-fd` and systemd then."""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping

from srb.engine.asking.request import CompletionRequest
from srb.engine.asking.sampling_params import SamplingParams
from srb.engine.telling.events import ErrorEvent
from srb.errors import InvalidRequestError, SettingsError
from srb.options.settings import Settings
from srb.serving.engine_client import EngineClient

logger = logging.getLogger("srb")

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
