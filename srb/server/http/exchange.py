"""What all routes share: the keys of the app, queueing a request, and answering with its events."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from aiohttp import web

from srb.engine.events import Event
from srb.engine.media import Media
from srb.engine.request import CompletionRequest
from srb.engine.stats import EngineStats
from srb.errors import InvalidRequestError
from srb.history.recorder import Submitted
from srb.server.access import owner_of, shared_within
from srb.server.http import sse
from srb.server.http.bodies import BODY, MAX_BODY_BYTES
from srb.server.http.sse import Batches
from srb.server.run.keeper import KEEPER
from srb.serving.engine_client import EngineClient
from srb.serving.event_log import EventLog, RequestStream, rollback_of
from srb.wire.limits import Limits
from srb.wire.native import reply as native
from srb.wire.reply import Answering, encode
from srb.wire.request.media import File, Part, Take

# Brings the images and sounds in the bodies of requests into prompts.

_MAX_BODY_BYTES = 32 << 20
"""The largest body for a model that takes images: two photographs in base64, for example."""

Fetch = Callable[[tuple[str, ...]], Awaitable[list[bytes]]]

FETCH: web.AppKey[Fetch | None] = web.AppKey("fetch")
"""Fetches the files at the addresses that requests name; None if this isn't allowed."""


def body_limit(app: web.Application) -> int:
    """How many bytes the body of a request that generates may have. Raises `UnavailableError`."""
    return _MAX_BODY_BYTES if app[ENGINE].media_kinds else MAX_BODY_BYTES


def media_taker(app: web.Application) -> Take:
    """A function that makes a prompt of texts and files. Only functions that `lookups.read` calls may use it."""
    engine, allowed = app[ENGINE], app[FETCH]
    fetch = known(allowed) if allowed else None

    def take(parts: Sequence[Part]) -> tuple[tuple[int, ...], tuple[Media, ...]]:
        fetched: dict[str, bytes] = {}
        if urls := tuple(dict.fromkeys(part.url for part in parts if isinstance(part, File) and part.url is not None)):
            if not engine.media_kinds:
                return engine.tokenize_parts(())  # raises the error that says why the model takes no files
            if fetch is None:
                raise InvalidRequestError(
                    "this server fetches no images and sounds from elsewhere; send a URL that begins with data:, or "
                    "start it with --allow-remote-media",
                    code="unsupported_media",
                )
            fetched = dict(zip(urls, fetch(urls), strict=True))
        return engine.tokenize_parts(
            [part if isinstance(part, str) else part.data if part.url is None else fetched[part.url] for part in parts]
        )

    return take


# Looks up what bodies name: kept requests, earlier responses, and files at other addresses. Bodies are read in
# worker threads, of which there are few. A thread that waited there for the event loop might wait for ever: what the
# loop does may need a worker thread itself, and all of them might wait. So reading a body stops where something
# isn't known yet. The event loop looks it up, and then the body is read again.

Name = TypeVar("Name", bound=Hashable)
Found = TypeVar("Found")
Result = TypeVar("Result")


class _UnknownError(Exception):
    def __init__(self, look_up: Callable[[], Awaitable[None]]) -> None:
        self.look_up = look_up


def known(find: Callable[[Name], Awaitable[Found]]) -> Callable[[Name], Found]:
    """What `find` returns for a name, as a function for worker threads, which waits for nothing.

    Only functions that are called by `read` may use it. It remembers what was found, so it is for one body.
    """
    there: dict[Name, Found] = {}

    async def look_up(name: Name) -> None:
        there[name] = await find(name)

    def get(name: Name) -> Found:
        if name not in there:
            raise _UnknownError(lambda: look_up(name))
        return there[name]

    return get


async def read(function: Callable[[], Result]) -> Result:
    """Calls a function that reads a body in a worker thread, and again whenever something was looked up for it.

    Raises what the function raises, and what the `find` of a `known` raises.
    """
    while True:
        try:
            return await asyncio.to_thread(function)
        except _UnknownError as unknown:
            look_up = unknown.look_up
        await look_up()


MAX_HEADER_CHARS = 1_000

TITLE_TOKENS = 40
"""How many tokens at the end of a prompt become the title of its request in the history."""

ENGINE = web.AppKey("engine", EngineClient)
LIMITS = web.AppKey("limits", Limits)


Answer = Callable[[web.Request, RequestStream], Awaitable[web.StreamResponse]]
"""Answers a client that reads a request's events."""


@dataclass(frozen=True)
class Answers:
    """How the readers of a request are answered.

    ignored: the names of the fields in its body that have no effect.
    own: answers in the format of the request, from its beginning; None if this format is native events.
    model: the name of the model that answered it; None: that of today.
    nodes: the ids of its alternatives' nodes, if the request writes a story.
    again: makes what answers later GETs of the format's own routes, such as /v1/responses/{id}, if it has such routes.
    keeps: what of the body `own` and `again` hold. They hold nothing else of it, since that counts (`RequestRegistry`).
    """

    ignored: list[str]
    own: Answer | None = None
    model: str | None = None
    nodes: list[int] | None = None
    again: Callable[[], Answering] | None = None
    keeps: Any = ()


ANSWERS = web.AppKey("answers", WeakKeyDictionary[EventLog, Answers])

ANSWERS_OF_OLD: web.AppKey[Callable[[web.Request, EventLog], Awaitable[Answers]]] = web.AppKey("answers_of_old")
"""Finds how the readers of a request are answered, if the request was made before the server's last start."""


async def submit(
    request: web.Request,
    completion: CompletionRequest,
    answers: Answers,
    *,
    detach: bool,
    created: float | None = None,
    first: Answer | None = None,
    story: str | None = None,
    node: int | None = None,
) -> web.StreamResponse:
    """Queues a request, and answers with its events.

    created: when the request was made, in seconds since 1970, if its answer has this time already; left out: now.
    first: answers the client that made the request, if it isn't answered like all other readers.
    story, node: the story that the alternatives belong to, and the node in it that they go on from.
    """
    engine, keeper = request.app[ENGINE], request.app[KEEPER]
    completion = _shared(completion, await shared_within(request))
    with engine.ahead.paused():
        completion, said, take_back = engine.ahead.give(completion, owner_of(request))
        created, exact = int(time.time() if created is None else created), answers.again is not None
        # In a thread, because looking at many settings takes a while.
        held = await asyncio.to_thread(rollback_of, (answers.ignored, answers.keeps, completion.branches))
        is_kept = keeper.is_on and completion.explore is None
        journal = EventLog(
            completion,
            owner=owner_of(request),
            detach=detach,
            lasts=is_kept,
            exact=exact,
            created=created,
            held=held,
        )
        # Clients of other formats don't know how to come back, and they stop a request by closing the connection.
        linger = 0 if answers.own else request.app[LIMITS].linger
        try:
            if is_kept:
                engine.check(completion)  # first: `_title` needs token ids that the vocabulary has
                nodes = await keeper.begin(
                    Submitted(
                        completion,
                        journal.owner,
                        detach,
                        journal.created,
                        path=request.path,
                        model=request.app[LIMITS].model,
                        body=request[BODY],
                        title=_title(engine, completion),
                        story=story,
                        node=node,
                    )
                )
                answers = replace(answers, nodes=nodes or None)
            # Set before the engine has the request: a detached one lives on even if its client leaves right now.
            request.app[ANSWERS][journal] = answers
            if story is not None:
                keeper.feeds.add_writer(completion.id, story)
            stream = await engine.submit(completion, journal=journal, linger=linger, said=said)
        except BaseException:  # the request was refused, or its client has left
            if journal not in engine.requests:
                keeper.forget(completion.id)
                take_back()
            raise
    async with stream:
        return await (first or answers.own or answer_natively)(request, stream)


def _shared(completion: CompletionRequest, within: str) -> CompletionRequest:
    """The request, of which only those evaluate less later that have the same name `within`; empty: all."""
    if not within:
        return completion
    # A media's name says under which name the vectors are kept that it is encoded as.
    media = tuple(replace(each, name=f"{within}/{each.name}") for each in completion.media)
    return replace(completion, shared_within=within, media=media)


def _title(engine: EngineClient, completion: CompletionRequest) -> str:
    """The end of the last prompt, without control tokens."""
    tokens = completion.token_ids[-1][-TITLE_TOKENS:]
    return b"".join(map(engine.tokenizer.piece, tokens)).decode(errors="ignore").strip()


def answers_of(app: web.Application, journal: EventLog) -> Answers:
    """How the readers of a request are answered: natively, unless it was made in another format."""
    return app[ANSWERS].get(journal) or Answers([])


async def answer_natively(request: web.Request, stream: RequestStream) -> web.StreamResponse:
    """Answers with a request's native events."""
    journal = stream.journal
    answers = answers_of(request.app, journal)
    model = answers.model or request.app[LIMITS].model

    def to_json(events: list[tuple[int, Event]]) -> Iterator[sse.Item]:
        for number, event in events:
            yield (
                number,
                native.to_json(
                    event, model=model, created=journal.created, ignored=answers.ignored, nodes=answers.nodes
                ),
            )

    headers = {"X-Request-Id": journal.request.id} | ignored_header(answers.ignored)
    return await sse.respond(request, Batches(stream.numbered, to_json), headers=headers)


def stats_of(engine: EngineClient) -> EngineStats:
    """The state of a loaded engine."""
    stats = engine.health.stats
    assert stats is not None, "there are some as soon as the model is loaded"
    return stats


def json_response(value: Any, headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer in JSON. Encoding a large value takes seconds: then make it and call this in a worker thread."""
    return web.Response(body=encode(value), content_type="application/json", charset="utf-8", headers=headers)


def ignored_header(names: list[str]) -> dict[str, str]:
    """The header that names the fields without effect, if there are any."""
    return {"x-srb-ignored": ", ".join(names)[:MAX_HEADER_CHARS].encode("unicode_escape").decode()} if names else {}
