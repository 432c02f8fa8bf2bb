"""Makes the handlers of routes: for what queues a request, what tells something, and what embeds."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import hdrs, web

import srb
from srb.engine.events import Event
from srb.engine.request import CompletionRequest
from srb.errors import GoneError, InvalidRequestError, NotFoundError, SrbError
from srb.history.stories import prompt_at
from srb.history.unfinished import find_sent
from srb.server.access import API_KEYS, owner_of
from srb.server.http import sse
from srb.server.http.bodies import read_body
from srb.server.http.exchange import (
    ANSWERS,
    ANSWERS_OF_OLD,
    ENGINE,
    LIMITS,
    Answers,
    body_limit,
    ignored_header,
    json_response,
    known,
    media_taker,
    read,
    submit,
)
from srb.server.http.sse import Batches
from srb.server.routes.embeddings import embeddings
from srb.server.routes.requests import find_kept
from srb.server.routes.responses import events_so_far, find_response
from srb.server.run.keeper import KEEPER, read_file
from srb.serving.event_log import EventLog, RequestStream
from srb.wire.reply import Frame, Reply
from srb.wire.request.messages import Message
from srb.wire.request.read import depth_refused
from srb.wire.route import Embeds, Generates, Route, Tells
from srb.wire.serving import Serving, Told
from srb.wire.vendors import ROUTES as VENDORS

_LASTING = {
    path: route.does
    for route in VENDORS
    if isinstance(route.does, Generates) and route.does.lasts
    for path in route.paths
}
"""By path, the formats whose answers can be made again from the history."""

CREATED = web.AppKey("created", float)
"""When the server began, in seconds since 1970."""

MEMORY: web.AppKey[dict[Callable[[], Any], Any]] = web.AppKey("memory")
"""What formats remember of this server; see `Serving.recall`."""


def resources_of(routes: tuple[Route, ...]) -> tuple[web.AbstractResource, ...]:
    """What a router needs of the routes. It can be given to any number of applications."""
    router = web.UrlDispatcher()
    for route in routes:
        add = router.add_get if route.method == "GET" else partial(router.add_route, route.method)
        for path in route.paths:
            add(path, _handler_of(route))
    return tuple(router.resources())


def begin(app: web.Application) -> None:
    """Gives the application what the handlers need of it."""
    app[ANSWERS_OF_OLD] = _answers_of_old
    app[CREATED], app[MEMORY] = time.time(), {}


def _handler_of(route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """What answers requests to a route."""
    match route.does:
        case Generates() as form:
            return _generating(form)
        case Tells(function=tell):
            return _telling(tell)
        case Embeds(style):
            return partial(embeddings, style)
        case handler:
            return handler


def _telling(tell: Callable[[bytes, Serving], Told]) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The handler of a path that only tells something."""

    def respond(data: bytes, serving: Serving) -> web.Response:
        with depth_refused():
            value, ignored = tell(data, serving)
        return json_response(value, ignored_header(ignored))

    async def handle(request: web.Request) -> web.Response:
        serving = _serving(request, time.time())
        if request.method in (hdrs.METH_GET, hdrs.METH_HEAD):
            return respond(b"", serving)
        return await read(partial(respond, await read_body(request), serving))

    return handle


def _generating(form: Generates) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The handler of a path. It queues a request, and answers with its events in this format."""

    async def handle(request: web.Request) -> web.StreamResponse:
        now = time.time()
        request.app[ENGINE].check_ready()
        request.app[ENGINE].check_queue()
        serving = _serving(request, now)
        body = await read_body(request, body_limit(request.app))
        reply = await read(partial(form.function, body, serving))
        if reply.completion is None:
            assert reply.make is not None
            return json_response(reply.make().object([]), ignored_header(reply.ignored))
        first = partial(_answer_at_once, reply) if reply.at_once else None
        answers = _answers(reply, form.frame)
        try:
            return await submit(
                request,
                reply.completion,
                answers,
                detach=reply.detach,
                created=now,  # the answer has this time; an answer that is made again later must have it, too
                first=first,
                story=reply.story,
                node=reply.node,
            )
        except InvalidRequestError as error:
            raise reply.blame(error) if reply.blame else error from None

    return handle


def _serving(request: web.Request, now: float, made: CompletionRequest | None = None) -> Serving:
    """What formats may know. now: when the request was made. made: see `Serving.made`."""
    return Serving(
        request.app[LIMITS],
        request.app[ENGINE],
        now=now,
        created=request.app[CREATED],
        version=srb.__version__,
        owner=owner_of(request),
        has_keys=bool(request.app[API_KEYS]),
        names=request.match_info,
        memory=request.app[MEMORY],
        in_loop=known(partial(_call, request)),
        path_to=partial(_path_to, request),
        texts_of=known(partial(_texts_of, request)),
        take=media_taker(request.app) if made is None else lambda _parts: (made.token_ids[0], ()),
        before=known(partial(_before, request)),
        made=made,
    )


async def _answers_of_old(request: web.Request, journal: EventLog) -> Answers:
    """How the readers of a request in the history are answered: natively, unless its format can be made again."""
    answers, made = Answers([]), journal.request
    if request.app[KEEPER].is_on and (sent := await read_file(request, find_sent, made.id)):
        form = _LASTING.get(sent.path)
        if form:
            serving = _serving(request, journal.created, made)
            serving = replace(serving, limits=replace(serving.limits, model=sent.model))
            with suppress(SrbError):  # for example, the story that the request went on from is gone
                reply = await read(partial(form.function, sent.body, serving))
                answers = _answers(reply, form.frame)
        answers = replace(answers, model=sent.model, nodes=sent.nodes or None)
    request.app[ANSWERS][journal] = answers
    return answers


def _answers(reply: Reply, frame: Frame) -> Answers:
    """How the readers of a request are answered. This is kept for long, and holds neither the body nor its images."""
    kept = replace(reply, completion=None, blame=None)
    own = partial(_answer, kept, frame) if reply.make else None
    return Answers(reply.ignored, own, again=reply.again, keeps=reply.keeps)


async def _call(request: web.Request, call: tuple[Any, ...]) -> Any:
    function, *arguments = call
    return function(request.app[ENGINE].abort, *arguments)


def _path_to(request: web.Request, story: str, node: int | None, is_needed: bool) -> list[int | str]:
    """The prompt that goes on from a node of a story. Call this in a thread, because it reads the file."""
    history = request.app[KEEPER].history
    return history.read(prompt_at, owner_of(request), story, node, is_needed)


async def _texts_of(request: web.Request, request_ids: tuple[str, ...]) -> dict[str, list[str]]:
    """The texts of the alternatives of each of these requests."""
    texts = {}
    for request_id in request_ids:
        try:
            journal, _ = await find_kept(request, request_id)
        except (NotFoundError, GoneError):
            raise InvalidRequestError(
                f"avoid: request {request_id:.100} is not kept, or no longer (--keep-finished); send its texts",
                param="avoid",
            ) from None
        if journal.request.echo:
            raise InvalidRequestError(
                f"avoid: the texts of request {request_id:.100} begin with its prompt (echo); send them without it",
                param="avoid",
            )
        texts[request_id] = journal.texts
    return texts


async def _before(request: web.Request, response_id: str) -> list[Message]:
    """The conversation that ends with a response."""
    try:
        journal, again = find_response(request, response_id)
    except (NotFoundError, GoneError):
        raise InvalidRequestError(
            f"response {response_id:.100} is not kept, or no longer (--keep-finished); leave previous_response_id "
            "out, and send the whole conversation as input",
            param="previous_response_id",
            code="previous_response_not_found",
        ) from None
    return await asyncio.to_thread(again.conversation, events_so_far(journal))


async def _answer_at_once(reply: Reply, _request: web.Request, stream: RequestStream) -> web.StreamResponse:
    """Answers with the state of a request that has just been queued, and doesn't wait for its events."""
    assert reply.again is not None
    headers = {"X-Request-Id": stream.request.id} | ignored_header(reply.ignored)
    return json_response(reply.again().state([]), headers)


async def _answer(reply: Reply, frame: Frame, request: web.Request, stream: RequestStream) -> web.StreamResponse:
    """Answers a client that reads a request from its beginning."""
    assert reply.make is not None
    made = await asyncio.to_thread(reply.make)
    headers = {"X-Request-Id": stream.request.id} | ignored_header(reply.ignored)
    watching = reply.watch(stream.journal.owner, request.app[ENGINE].abort) if reply.watch else nullcontext(len)
    with watching as watch:

        def to_json(events: list[Event]) -> Any:
            watch(events)
            return made.chunks(events)

        if reply.stream:
            return await sse.respond(request, Batches(stream.__anext__, to_json), headers=headers, frame=frame)
        events = []
        async for batch in stream:
            watch(batch)
            events += batch
        stream.raise_refusal()
    return await asyncio.to_thread(lambda: json_response(made.object(events), headers))
