"""Queues a request with the engine, and answers with its events: for all routes that generate or read requests.

Bodies may name things to look up: images at URLs, stored requests and responses. Bodies are parsed in worker threads,
which must not wait for the event loop: it may need a worker thread itself. So parsing stops where a lookup is needed,
the event loop looks it up, and then the body is parsed again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from aiohttp import web

from srb.engine.events import Event
from srb.engine.media import Media
from srb.engine.request import CompletionRequest
from srb.errors import InvalidRequestError, SrbError
from srb.history.recorder import Submitted
from srb.server.access import owner_of, shared_within
from srb.server.http import sse
from srb.server.http.bodies import BODY, MAX_BODY_BYTES
from srb.server.http.errors import log_and_answer
from srb.server.run.history import HISTORY
from srb.serving.engine_client import EngineClient
from srb.serving.event_log import EventLog, RequestStream, memory_of
from srb.wire.limits import Limits
from srb.wire.native import reply as native
from srb.wire.reply import Reply, encode
from srb.wire.request.media import File, Part, Take

Name = TypeVar("Name", bound=Hashable)
Found = TypeVar("Found")
Result = TypeVar("Result")


class _LookupNeededError(Exception):
    """Has the function that looks up, the name, and where its result goes."""


def lookup(find: Callable[[Name], Awaitable[Found]]) -> Callable[[Name], Found]:
    """`find` as a function for worker threads, which never waits. Only functions that `with_lookups` calls may use it.

    It caches results, so make a new one for each body.
    """
    results: dict[Name, Found] = {}

    def get(name: Name) -> Found:
        if name not in results:
            raise _LookupNeededError(find, name, results)
        return results[name]

    return get


async def with_lookups(function: Callable[[], Result]) -> Result:
    """Calls a function in a worker thread, and again after each lookup that it needs.

    Raises what the function raises, and what the `find` of a `lookup` raises.
    """
    while True:
        try:
            return await asyncio.to_thread(function)
        except _LookupNeededError as error:
            find, name, results = error.args
        results[name] = await find(name)


_MAX_BODY_BYTES = 32 << 20
"""The largest body for a model that takes images: for example, two photographs in base64."""

Fetch = Callable[[tuple[str, ...]], Awaitable[list[bytes]]]

FETCH: web.AppKey[Fetch | None] = web.AppKey("fetch")
"""Downloads files by their URLs. None if this isn't allowed."""


def body_limit(app: web.Application) -> int:
    """The largest body of a request that generates, in bytes. Raises `UnavailableError`."""
    return _MAX_BODY_BYTES if app[ENGINE].model.media_kinds else MAX_BODY_BYTES


def media_taker(app: web.Application) -> Take:
    """A function that makes a prompt of texts and files. Only functions that `with_lookups` calls may use it."""
    engine, allowed = app[ENGINE], app[FETCH]
    fetch = lookup(allowed) if allowed else None

    def take(parts: Sequence[Part]) -> tuple[tuple[int, ...], tuple[Media, ...]]:
        fetched: dict[str, bytes] = {}
        if urls := tuple(dict.fromkeys(part.url for part in parts if isinstance(part, File) and part.url is not None)):
            if not engine.model.media_kinds:
                return engine.model.tokenize_parts(())  # raises the error
            if fetch is None:
                raise InvalidRequestError(
                    "this server downloads no images and sounds; send a URL that begins with data:, or start it with "
                    "--allow-remote-media",
                    code="unsupported_media",
                )
            fetched = dict(zip(urls, fetch(urls), strict=True))
        return engine.model.tokenize_parts(
            [part if isinstance(part, str) else part.data if part.url is None else fetched[part.url] for part in parts]
        )

    return take


MAX_HEADER_CHARS = 1_000

TITLE_TOKENS = 40
"""The title of a request in the history is this many tokens from the end of its prompt."""

ENGINE = web.AppKey("engine", EngineClient)
LIMITS = web.AppKey("limits", Limits)


REPLIES = web.AppKey("replies", WeakKeyDictionary[EventLog, Reply])
"""How the readers of each request are answered."""

RESTORE_REPLY: web.AppKey[Callable[[web.Request, EventLog], Awaitable[Reply]]] = web.AppKey("restore_reply")
"""Restores the reply of a request that was made before the server's last start."""

NATIVE = Reply(None, [], stream=True, make=None)
"""The reply of a request whose own reply isn't known: native events."""


async def submit(request: web.Request, reply: Reply, created: int) -> web.StreamResponse:
    """Queues a request that arrived at `created`, in seconds since 1970, and answers with its events."""
    assert reply.completion is not None
    kept = replace(reply, completion=None, blame=None)  # stored for long: without the body and its images
    engine, history_service = request.app[ENGINE], request.app[HISTORY]
    completion = _shared(reply.completion, await shared_within(request))
    completion, prefetched = engine.prefetcher.take(completion, owner_of(request))
    # In a thread, because many settings take a while.
    held = await asyncio.to_thread(memory_of, (kept.ignored, kept.payload, completion.branches))
    is_stored = history_service.is_on and completion.explore is None
    event_log = EventLog(
        completion,
        owner=owner_of(request),
        detach=reply.detach,
        lasts=is_stored,
        exact=kept.stored is not None,
        created=created,
        extra_bytes=held,
    )
    # Clients of other formats can't reconnect, and stop a request by closing the connection.
    linger = 0 if kept.make else request.app[LIMITS].linger
    try:
        if is_stored:
            engine.check(completion)  # before `_title`, which needs token ids of the vocabulary
            nodes = await history_service.begin(
                Submitted(
                    completion,
                    event_log.owner,
                    reply.detach,
                    created,
                    path=request.path,
                    model=request.app[LIMITS].model,
                    body=request[BODY],
                    title=_title(engine, completion),
                    story=reply.story,
                    node=reply.node,
                )
            )
            kept = replace(kept, nodes=nodes or None)
        # Set before the engine gets the request: a detached one goes on even if its client disconnects right now.
        request.app[REPLIES][event_log] = kept
        if reply.story is not None:
            history_service.feeds.add_writer(completion.id, reply.story)
        stream = await engine.submit(completion, event_log=event_log, linger=linger, prefetched=prefetched)
    except BaseException:  # the request was refused, or its client has disconnected
        if event_log not in engine.requests:
            history_service.forget(completion.id)
        raise
    async with stream:
        return await respond(request, stream, kept, is_first=True)


def _shared(completion: CompletionRequest, within: str) -> CompletionRequest:
    """The request, whose prefixes are shared only with requests of the same name `within`; empty: with all."""
    if not within:
        return completion
    # The encoded vectors of a medium are cached under its name.
    media = tuple(replace(each, name=f"{within}/{each.name}") for each in completion.media)
    return replace(completion, shared_within=within, media=media)


def _title(engine: EngineClient, completion: CompletionRequest) -> str:
    """The end of the last prompt, without control tokens."""
    tokens = completion.token_ids[-1][-TITLE_TOKENS:]
    return b"".join(map(engine.model.tokenizer.piece, tokens)).decode(errors="ignore").strip()


async def respond(
    request: web.Request, stream: RequestStream, reply: Reply, *, is_first: bool = False
) -> web.StreamResponse:
    """Answers a client that reads a request from its beginning, in the request's own format.

    The one that made it in the background gets its state at once.
    """
    if reply.make is None:
        return await respond_natively(request, stream, reply)
    headers = {"X-Request-Id": stream.request.id} | ignored_header(reply.ignored)
    if is_first and reply.in_background:
        assert reply.stored is not None
        return json_response(reply.stored().state([]), headers)
    builder = await asyncio.to_thread(reply.make)
    in_loop: Callable[..., object] = asyncio.get_running_loop().call_soon_threadsafe
    abort = partial(in_loop, request.app[ENGINE].abort)
    watching = reply.watch(stream.event_log.owner, abort) if reply.watch else nullcontext(len)
    with watching as on_events:

        def to_json(events: list[Event]) -> Any:
            on_events(events)
            return builder.chunks(events)

        if reply.stream:
            read = sse.chunks_of(stream.__anext__, to_json)
            return await sse.respond(request, read, headers=headers, frame=reply.frame)

        async def whole() -> web.Response:
            events = []
            async for batch in stream:
                on_events(batch)
                events += batch
            stream.raise_refusal()
            return await asyncio.to_thread(lambda: json_response(builder.object(events), headers))

        return await respond_whole(request, whole(), headers)


async def respond_natively(request: web.Request, stream: RequestStream, reply: Reply) -> web.StreamResponse:
    """Answers with the native events of a request."""
    event_log = stream.event_log
    model = reply.model or request.app[LIMITS].model

    def to_json(events: list[tuple[int, Event]]) -> Iterator[sse.Item]:
        for number, event in events:
            yield (
                number,
                native.to_json(event, model=model, created=event_log.created, ignored=reply.ignored, nodes=reply.nodes),
            )

    headers = {"X-Request-Id": event_log.request.id} | ignored_header(reply.ignored)
    return await sse.respond(request, sse.chunks_of(stream.numbered, to_json), headers=headers)


def json_response(value: Any, headers: Mapping[str, str] | None = None) -> web.Response:
    """A JSON response. Encoding a large value takes seconds: build and encode it in a worker thread."""
    return web.Response(body=encode(value), content_type="application/json", charset="utf-8", headers=headers)


FIRST_SPACE_SECONDS = 25.0
"""How long an object is awaited in silence. Many proxies give up after 30 s or 60 s."""


async def respond_whole(
    request: web.Request, whole: Coroutine[Any, Any, web.Response], headers: Mapping[str, str]
) -> web.StreamResponse:
    """Answers with a JSON object that may take long. Meanwhile spaces are sent, which may come before JSON.

    Once a space was sent the status is 200, also with an error.
    """
    task = asyncio.ensure_future(whole)
    try:
        await asyncio.wait({task}, timeout=FIRST_SPACE_SECONDS)
        if task.done():
            return task.result()
        response = web.StreamResponse(
            headers=sse.HEADERS | dict(headers) | {"Content-Type": "application/json; charset=utf-8"}
        )
        await response.prepare(request)
        while not task.done():
            async with sse.stall_timeout(request):
                await response.write(b" ")
            await asyncio.wait({task}, timeout=sse.PING_SECONDS)
        try:
            result = task.result()
        except SrbError as error:
            result = log_and_answer(request, error)
        assert isinstance(result.body, bytes)
        for start in range(0, len(result.body), sse.WRITE_BYTES):
            async with sse.stall_timeout(request):
                await response.write(result.body[start : start + sse.WRITE_BYTES])
        return response
    finally:
        task.cancel()
        await asyncio.wait({task})


def ignored_header(names: list[str]) -> dict[str, str]:
    """The header with the names of fields without effect, if there are any."""
    return {"x-srb-ignored": ", ".join(names)[:MAX_HEADER_CHARS].encode("unicode_escape").decode()} if names else {}
