"""Mounts routes: makes aiohttp handlers of `GenerateHandler`, `JsonHandler` and `EmbeddingFormat`."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import hdrs, web
from pydantic import BaseModel

import srb
from srb.engine.request import CompletionRequest
from srb.errors import GoneError, InvalidRequestError, NotFoundError, SrbError, UnavailableError
from srb.history.queries import find_sent
from srb.history.stories import prompt_at
from srb.server.access import API_KEYS, owner_of
from srb.server.http.bodies import read_body
from srb.server.http.exchange import (
    ENGINE,
    LIMITS,
    NATIVE,
    REPLIES,
    RESTORE_REPLY,
    body_limit,
    ignored_header,
    json_response,
    lookup,
    media_taker,
    submit,
    with_lookups,
)
from srb.server.routes.pooling import embeddings
from srb.server.routes.requests import find_response, find_stored
from srb.server.run.history import HISTORY, read_file
from srb.serving.event_log import EventLog
from srb.wire.context import RequestContext
from srb.wire.embeddings import EmbeddingFormat
from srb.wire.reply import Reply
from srb.wire.request.messages import Message
from srb.wire.request.read import BodyFields, depth_refused, read_fields, read_json, sent_names, validate
from srb.wire.route import GenerateHandler, JsonHandler, Route
from srb.wire.vendors import ROUTES as VENDORS

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_REPLAYABLE = {
    path: (route.handler.parse, route.body)
    for route in VENDORS
    if isinstance(route.handler, GenerateHandler) and route.handler.replayable and route.body
    for path in route.paths
}
"""How the responses are built again that can be, from the history: the parser and the body's model, by path."""

CREATED = web.AppKey("created", float)
"""When the server started, in seconds since 1970."""

STATES: web.AppKey[dict[Callable[[], Any], Any]] = web.AppKey("states")
"""`RequestContext.states`."""


def resources_of(routes: tuple[Route, ...]) -> tuple[web.AbstractResource, ...]:
    """The routes as resources for the routers of any number of applications."""
    router = web.UrlDispatcher()
    for route in routes:
        add = router.add_get if route.method == "GET" else partial(router.add_route, route.method)
        for path in route.paths:
            add(path, _handler_of(route))
    return tuple(router.resources())


def setup(app: web.Application) -> None:
    """Sets the keys of the application that the handlers need."""
    app[RESTORE_REPLY] = _restore_reply
    app[CREATED], app[STATES] = time.time(), {}


def _handler_of(route: Route) -> Handler:
    match route.handler:
        case GenerateHandler() as handler:
            assert route.body
            return partial(_generate, handler, route.body)
        case JsonHandler() as handler:
            return partial(_answer_with_json, handler, route.body)
        case EmbeddingFormat() as form:
            return partial(embeddings, form)
        case handler:
            return handler


async def _answer_with_json(handler: JsonHandler, kind: type[BaseModel] | None, request: web.Request) -> web.Response:
    context = _context(request, time.time())
    if request.method in (hdrs.METH_GET, hdrs.METH_HEAD):
        return json_response(handler.function(None, context))
    assert kind
    assert issubclass(kind, BodyFields)
    body = (await read_body(request)).strip() or b"{}"

    def respond() -> web.Response:
        with depth_refused():
            fields = read_fields(body, kind)
            value = handler.function(fields, context)
        return json_response(value, ignored_header(fields.unread(context.limits.model)))

    return await with_lookups(respond)


async def _generate(handler: GenerateHandler, kind: type[BaseModel], request: web.Request) -> web.StreamResponse:
    now = time.time()
    request.app[ENGINE].check_ready()
    request.app[ENGINE].check_queue()
    body = await read_body(request, body_limit(request.app))
    context = _context(request, now)
    names: dict[str, str] = {}
    blame = None

    def parse() -> Reply:
        with depth_refused():
            sent = read_json(body)
            fields = validate(sent, kind)
            names.update(sent_names(sent, kind))
            return handler.parse(fields, context)

    try:
        reply = await with_lookups(parse)
        if reply.completion is None:
            assert reply.make is not None
            return json_response(reply.make().object([]), ignored_header(reply.ignored))
        blame = reply.blame
        # The response has the time `now`. One that is built again later must have it, too.
        return await submit(request, reply, int(now))
    except InvalidRequestError as error:
        if blame:
            error = blame(error)
        if type(error) is InvalidRequestError and error.param in names:
            error.rename(names[error.param])
        raise error from None


def _context(request: web.Request, now: float, original: CompletionRequest | None = None) -> RequestContext:
    """The context of a body. now: when it arrived, in seconds since 1970. original: `RequestContext.original`."""
    limits = replace(
        request.app[LIMITS],
        take=media_taker(request.app) if original is None else lambda _parts: (original.token_ids[0], ()),
        path_to=partial(_path_to, request),
        texts_of=lookup(partial(_texts_of, request)),
    )
    with suppress(UnavailableError):
        limits = limits.of_model(request.app[ENGINE].model)
    return RequestContext(
        limits,
        request.app[ENGINE],
        now=now,
        created=request.app[CREATED],
        version=srb.__version__,
        owner=owner_of(request),
        has_keys=bool(request.app[API_KEYS]),
        path_params=request.match_info,
        states=request.app[STATES],
        previous_messages=lookup(partial(_previous_messages, request)),
        stored_answers=lookup(partial(_stored_answers, request)),
        original=original,
    )


async def _restore_reply(request: web.Request, event_log: EventLog) -> Reply:
    """The reply of a request in the history: native events, unless its own format is replayable."""
    reply, original = NATIVE, event_log.request
    if request.app[HISTORY].is_on and (sent := await read_file(request, find_sent, original.id)):
        if sent.path in _REPLAYABLE:
            parse, kind = _REPLAYABLE[sent.path]
            context = _context(request, event_log.created, original)
            context = replace(context, limits=replace(context.limits, model=sent.model))
            with suppress(SrbError):  # for example, the request continued a story that was deleted
                reply = await with_lookups(lambda: parse(read_fields(sent.body, kind), context))
        reply = replace(reply, completion=None, blame=None, model=sent.model, nodes=sent.nodes or None)
    request.app[REPLIES][event_log] = reply
    return reply


def _path_to(request: web.Request, story: str, node: int | None, is_needed: bool) -> list[int | str]:
    """The prompt that continues a node of a story. It reads the file, so call it in a thread."""
    return request.app[HISTORY].store.read(prompt_at, owner_of(request), story, node, is_needed)


async def _texts_of(request: web.Request, request_ids: tuple[str, ...]) -> dict[str, list[str]]:
    """The texts of the alternatives of each of these requests."""
    texts = {}
    for request_id in request_ids:
        try:
            event_log, _ = await find_stored(request, request_id)
        except (NotFoundError, GoneError):
            raise InvalidRequestError(
                f"avoid: request {request_id:.100} isn't stored, or not any more (--keep-finished); send its texts",
                param="avoid",
            ) from None
        if event_log.request.echo:
            raise InvalidRequestError(
                f"avoid: the texts of request {request_id:.100} begin with its prompt (echo); send them without it",
                param="avoid",
            )
        texts[request_id] = event_log.texts
    return texts


async def _previous_messages(request: web.Request, response_id: str) -> list[Message]:
    """The conversation that ends with a response."""
    try:
        event_log, response = find_response(request, response_id)
    except (NotFoundError, GoneError):
        raise InvalidRequestError(
            f"response {response_id:.100} isn't stored, or not any more (--keep-finished); leave previous_response_id "
            "out, and send the whole conversation as input",
            param="previous_response_id",
            code="previous_response_not_found",
        ) from None
    return await asyncio.to_thread(response.conversation, event_log.events[:])


async def _stored_answers(request: web.Request, response_ids: tuple[str, ...]) -> dict[str, Message]:
    """The message of each response that is stored, by id."""
    answers = {}
    for response_id in response_ids:
        with suppress(InvalidRequestError):
            answers[response_id] = (await _previous_messages(request, response_id))[-1]
    return answers
