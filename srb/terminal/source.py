"""Sends requests to an engine in this process or to a server, and yields native events from either.

Requests are bodies of `POST /v1/completions`, or of `POST /v1/chat/completions` if they have `messages`. Both sources
read them in the same way, so names, aliases, ranges and errors are those of the server.
"""

import asyncio
import dataclasses
import json
import os
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Self

import aiohttp

from srb.errors import (
    AuthenticationError,
    InvalidRequestError,
    QueueFullError,
    SettingsError,
    SrbError,
    UnavailableError,
)
from srb.files.download import fetch_model, show_loading
from srb.llama.model.model_file import find_model
from srb.options.settings import CHAT_OPTIONS, SERVER_OPTIONS, Settings, read_keys
from srb.serving.async_engine import AsyncEngine
from srb.serving.score_tables import TableRun
from srb.wire.limits import Limits
from srb.wire.native import reply as native
from srb.wire.native.explore import ExploreFields, explore_reply
from srb.wire.native.score import ScoreBuilder, parse_score
from srb.wire.reply import Reply
from srb.wire.request.body import parse
from srb.wire.request.fields import CompletionFields
from srb.wire.request.read import validate

Body = dict[str, Any]
Events = AsyncIterator[dict[str, Any]]

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
EXPLORE, SCORE = "/v1/explore", "/v1/score"

SILENCE_SECONDS = 60
"""Without a byte for this long, the connection counts as lost. A server sends a ping every 15 s."""

MAX_LINE_BYTES = 1 << 20

ERRORS = {
    400: InvalidRequestError,
    401: AuthenticationError,
    429: QueueFullError,
    503: UnavailableError,
}


class Source(ABC):
    """Answers requests with native events. Use it as a context manager.

    The methods queue a request, and leaving their context early cancels it. They raise `SrbError`.
    """

    model = ""
    """The model's name."""

    @property
    def identity(self) -> str:
        """What results depend on: the model, and of an engine in this process its weights and settings."""
        return self.model

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(self, *_error: object) -> None: ...

    def submit(self, body: Body) -> AbstractAsyncContextManager[Events]:
        """Queue a body of `POST /v1/completions`, or of `POST /v1/chat/completions`."""
        return self._post(CHAT if "messages" in body else COMPLETIONS, body | {"stream": "events"})

    def explore(self, body: Body) -> AbstractAsyncContextManager[Events]:
        """Queue a body of `POST /v1/explore`."""
        return self._post(EXPLORE, body)

    def score(self, body: Body) -> AbstractAsyncContextManager[Events]:
        """Queue a body of `POST /v1/score`."""
        return self._post(SCORE, body)

    @abstractmethod
    def _post(self, path: str, body: Body) -> AbstractAsyncContextManager[Events]: ...


def open_source(settings: Settings) -> Source:
    """Return the server at `--url`, or else an engine in this process, after downloading its model if needed.

    Call it outside the event loop: a download takes long. Raises `SettingsError` and `ModelLoadError`.
    """
    return InProcess(settings) if settings.url is None else Server(settings)


def sampling_defaults(settings: Settings) -> dict[str, Any]:
    """Return the sampling defaults in the model file. Raises `ModelLoadError`."""
    from srb.llama.model.metadata import sampling_of

    return sampling_of(settings)


class InProcess(Source):
    """An engine in this process. Entering the context loads the model and shows the progress."""

    def __init__(self, settings: Settings) -> None:
        settings = fetch_model(settings)
        # SRB_ variables may be meant for a server, so options of a server are ignored.
        defaults = {name: getattr(Settings(), name) for name in SERVER_OPTIONS - CHAT_OPTIONS}
        settings = dataclasses.replace(settings, **defaults)
        self.model = settings.alias or find_model(settings.model).stem
        self._limits = Limits(self.model, settings.n, settings.max_n, sampling=sampling_defaults(settings))
        self._engine = AsyncEngine.from_settings(settings)

    async def __aenter__(self) -> Self:
        self._engine.start()
        try:
            with show_loading(lambda: self._engine.health.progress):
                await self._engine.ready()
            self._limits = self._limits.of_model(self._engine.model)
        except BaseException:
            await self._engine.stop()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._engine.stop()

    @property
    def identity(self) -> str:
        return f"{self.model}/{self._engine.model.identity}"

    @asynccontextmanager
    async def _post(self, path: str, body: Body) -> AsyncIterator[Events]:
        now = int(time.time())
        if path == SCORE:
            parsed = await asyncio.to_thread(parse_score, json.dumps(body).encode(), self.model)
            async with TableRun(self._engine, parsed.table) as table:
                await table.start()
                fingerprint = self._engine.fingerprint
                answer = ScoreBuilder(parsed, table.id, model=self.model, created=now, fingerprint=fingerprint)
                yield (event async for events in answer.events(table) for event in events)
            return
        reply = await asyncio.to_thread(self._reply, path, body, now)
        assert reply.completion
        try:
            stream = await self._engine.submit(reply.completion)
        except InvalidRequestError as error:
            raise (reply.blame(error) if reply.blame else error) from None
        async with stream:
            if reply.make:
                to_json = reply.make().chunks
                yield (event async for batch in stream for event in to_json(batch))
            else:
                to_json = partial(native.to_json, model=self.model, created=now, ignored=reply.ignored)
                yield (to_json(event) async for batch in stream for event in batch)

    def _reply(self, path: str, body: Body, now: int) -> Reply:
        if path == EXPLORE:
            return explore_reply(validate(body, ExploreFields), self._limits, now)
        fields = validate(body, CompletionFields)
        return Reply.of(parse(fields, self._limits, chat=path == CHAT), make=None)


class Server(Source):
    """The server at `--url`, with the first API key of `--api-key` or `--api-key-file`."""

    def __init__(self, settings: Settings) -> None:
        url = settings.url or ""
        if not url.startswith(("http://", "https://")):
            raise SettingsError(f"--url must begin with http:// or https://, got {url!r}")
        self._url = url.rstrip("/").removesuffix("/v1")
        keys = read_keys(settings)
        self._headers = {"Authorization": f"Bearer {keys[0].decode(errors='surrogateescape')}"} if keys else {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_SECONDS, sock_read=SILENCE_SECONDS),
            connector=aiohttp.TCPConnector(limit=0),
            read_bufsize=MAX_LINE_BYTES,
        )
        try:
            async with self._answer("GET", "/v1/models") as reply:
                self.model = str((await reply.json())["data"][0]["id"])
        except (ValueError, LookupError, TypeError, aiohttp.ContentTypeError):
            await self._session.close()
            raise UnavailableError(f"{self._url} isn't an srb server; check --url") from None
        except BaseException:
            await self._session.close()
            raise
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._session.close()

    @asynccontextmanager
    async def _post(self, path: str, body: Body) -> AsyncIterator[Events]:
        async with self._answer("POST", path, body) as reply:
            yield self._events(reply)

    async def _events(self, reply: aiohttp.ClientResponse) -> Events:
        async for line in reply.content:
            if line.startswith(b"data: "):
                event = json.loads(line.removeprefix(b"data: "))
                yield event
                if event["event"] == "done":
                    return
        raise UnavailableError(f"{self._url} closed the connection before the last event")

    @asynccontextmanager
    async def _answer(self, method: str, path: str, body: Body | None = None) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._session.request(method, self._url + path, json=body) as reply:
                if reply.status != 200:
                    raise await _error(reply)
                yield reply
        except aiohttp.ContentTypeError:
            raise
        except TimeoutError:
            raise UnavailableError(f"{self._url} sent nothing for {SILENCE_SECONDS} s; try again") from None
        except aiohttp.ClientError as error:
            raise UnavailableError(f"can't reach {self._url}: {_reason(error)}; is the server running?") from None


def _reason(error: aiohttp.ClientError) -> str:
    """Return the system's message for a failed connection; aiohttp's own also names connector settings."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno and cause.errno > 0 and not isinstance(cause, ssl.SSLError):
        return os.strerror(cause.errno)
    return str(cause or error) or type(error).__name__


async def _error(reply: aiohttp.ClientResponse) -> SrbError:
    """Return the error in a server's response."""
    try:
        error = (await reply.json())["error"]
        return ERRORS.get(reply.status, SrbError)(error["message"], param=error["param"], code=error["code"])
    except (ValueError, LookupError, TypeError, aiohttp.ContentTypeError):
        return SrbError(f"{reply.url} answered {reply.status} {reply.reason}; check --url")
