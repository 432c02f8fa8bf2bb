"""Routes for requests and responses that exist already: list, read again, retrieve, cancel, delete."""

import asyncio
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from srb.engine.events import Event
from srb.errors import GoneError, InvalidRequestError, NotFoundError, UnavailableError
from srb.history.database import explained
from srb.history.queries import Unfinished, read_events
from srb.history.recorder import forget_events
from srb.server.access import owner_of
from srb.server.http import sse
from srb.server.http.exchange import (
    ENGINE,
    LIMITS,
    NATIVE,
    REPLIES,
    RESTORE_REPLY,
    json_response,
    respond,
    respond_natively,
)
from srb.server.http.proxy import lists_of_peers
from srb.server.run.history import HISTORY, read_file, write_file
from srb.serving.event_log import EventLog
from srb.wire.native import reply as native
from srb.wire.openai.routes import OPENAI, RESPONSE, RESPONSE_EVENTS
from srb.wire.reply import SSE_TYPED, StoredResponse
from srb.wire.request.read import show
from srb.wire.route import (
    BOOLEAN,
    EVENT_STREAM,
    EVENTS,
    INTEGER,
    NUMBER,
    ONE_OR_MORE,
    OPTIONAL_STRING,
    STRING,
    Route,
    data_of,
    fields_of,
    get,
    list_of,
    object_of,
    post,
)

LAST_EVENT_ID = "Last-Event-ID"


async def events(request: web.Request) -> web.StreamResponse:
    """Read a request again: all of it in its own format, or the native events after an event."""
    engine = request.app[ENGINE]
    event_log, is_interrupted = await find_stored(request, request.match_info["id"])
    if is_interrupted:
        raise GoneError(
            f"request {event_log.request.id} was interrupted when the server stopped; GET it for its texts so far"
        )
    # A browser's EventSource reconnects with the same address and the old parameter. Only the header says how far it
    # has read.
    after = request.headers.get(LAST_EVENT_ID) or request.query.get("starting_after")
    reply = request.app[REPLIES].get(event_log) or await request.app[RESTORE_REPLY](request, event_log)
    if reply.make and after is None:
        async with engine.read(event_log) as stream:
            return await respond(request, stream, reply)
    async with engine.read(event_log, read_id(after or "0")) as stream:
        if stream.at_end:
            return web.Response(status=204)  # with this status an EventSource doesn't reconnect
        return await respond_natively(request, stream, reply)


async def find_stored(request: web.Request, request_id: str) -> tuple[EventLog, bool]:
    """The event log of a request, from memory or from the history, and whether it was interrupted for good.

    Raises `NotFoundError` if it isn't the caller's, `GoneError` if it isn't stored any more, and `UnavailableError` if
    it will resume later.
    """
    owner, history_service = owner_of(request), request.app[HISTORY]
    try:
        return request.app[ENGINE].find(request_id, owner), False
    except (NotFoundError, GoneError):
        # Raises an error if the history can't be read now, because it may have the request.
        found = None if history_service.status is None else await read_file(request, read_events, request_id)
        if found == "running":
            request.app[ENGINE].check_ready()
            raise UnavailableError(f"request {request_id} resumes when the model is loaded; try again soon") from None
        if not isinstance(found, Unfinished):
            raise
    submitted = found.submitted
    event_log = EventLog(submitted.request, owner=owner, detach=submitted.detach, created=submitted.created)
    with explained(history_service.store.path):
        event_log.put(found.events)
    return event_log, not event_log.done


def read_id(text: str) -> int:
    """Reads the id or the number of an event. Raises `InvalidRequestError`."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidRequestError(
            f"starting_after and {LAST_EVENT_ID} take the number of an event, a whole number from 0; got {show(text)}",
            param="starting_after",
        )
    return int(text)


async def state(request: web.Request) -> web.Response:
    """Show the state of a completion or a chat, with its texts so far."""
    event_log, is_interrupted = await find_stored(request, request.match_info["id"])
    value = native.state(
        event_log.request,
        created=event_log.created,
        started=event_log.started,
        texts=event_log.texts,
        lengths=event_log.lengths,
        stops=event_log.stops,
        done=event_log.end,
        last_event_id=len(event_log),
    )
    if is_interrupted:
        value["status"] = "interrupted"
    return await asyncio.to_thread(json_response, value)


async def cancel(request: web.Request) -> web.Response:
    """End a request, or delete one that has finished."""
    engine, request_id, index = request.app[ENGINE], request.match_info["id"], request.match_info.get("index")
    try:
        engine.find(request_id, owner_of(request))
    except (NotFoundError, GoneError) as error:
        # The history may still have it, from before the last start or when memory ran out.
        if index is None and request.app[HISTORY].is_on and await write_file(request, forget_events, request_id):
            return web.Response(status=204)
        raise NotFoundError(error.message, param="id") from None
    if index is None:
        found = engine.abort(request_id) or await forget(request, request_id)
    else:
        found = index in map(str, range(request.app[LIMITS].max_n)) and engine.abort(request_id, int(index))
    if not found:
        raise NotFoundError(f"no alternative {index} of request {request_id} is waiting or running", param="index")
    return web.Response(status=204)


async def forget(request: web.Request, request_id: str) -> bool:
    """Deletes a finished request, so that it can't be read again. Returns False if it isn't stored."""
    if request.app[HISTORY].is_on:
        await write_file(request, forget_events, request_id)
    return request.app[ENGINE].forget(request_id)


async def requests(request: web.Request) -> web.Response:
    """List the waiting and running requests."""
    engine, show_prompts = request.app[ENGINE], request.app[LIMITS].show_prompts
    now, data = asyncio.get_running_loop().time(), []
    for event_log in engine.requests:
        if event_log.owner != owner_of(request):
            continue
        each: dict[str, Any] = {
            "id": event_log.request.id,
            "status": "running" if event_log.started else "waiting",
            "age_seconds": round(now - event_log.arrived, 3),
            "prompts": len(event_log.request.prompts),
            "count": event_log.request.count,
            "running": len(event_log.unfinished) if event_log.started else 0,
            "prompt_tokens": event_log.request.prompt_tokens,
        }
        if show_prompts:  # in a thread, because long prompts take a while
            each["prompt"] = [
                await asyncio.to_thread(engine.detokenize, tokens) for tokens in event_log.request.token_ids
            ]
        data.append(each)
    data += await lists_of_peers(request)
    return web.json_response({"object": "list", "data": data})


def find_response(request: web.Request, response_id: str) -> tuple[EventLog, StoredResponse]:
    """The event log of a response, and what builds its JSON. Raises `NotFoundError` and `GoneError`."""
    event_log = request.app[ENGINE].find(response_id, owner_of(request))
    stored = request.app[REPLIES].get(event_log, NATIVE).stored
    if stored is None:
        raise NotFoundError(
            f"request {response_id} isn't a response, or it is from before the server's last start; "
            f"GET /v1/completions/{response_id} has its text",
            param="id",
        )
    return event_log, stored()


async def get_response(request: web.Request) -> web.StreamResponse:
    """Show a response so far, or stream its events from the beginning or after an event."""
    event_log, response = find_response(request, request.match_info["id"])
    if request.query.get("stream", "false") not in ("true", "True", "1"):
        return await asyncio.to_thread(json_response, response.state(event_log.events[:]))
    after = request.query.get("starting_after")
    first = 0 if after is None else read_id(after) + 1

    def to_json(events: list[Event]) -> Iterator[dict[str, Any]]:
        return (each for each in response.chunks(events) if each["sequence_number"] >= first)

    async with request.app[ENGINE].read(event_log) as stream:
        headers = {"X-Request-Id": event_log.request.id}
        return await sse.respond(request, sse.chunks_of(stream.__anext__, to_json), headers=headers, frame=SSE_TYPED)


async def cancel_response(request: web.Request) -> web.Response:
    """End a response, and show it so far."""
    event_log, response = find_response(request, request.match_info["id"])
    await _end(request, event_log)
    return await asyncio.to_thread(json_response, response.state(event_log.events[:]))


async def delete_response(request: web.Request) -> web.Response:
    """End a response, and delete it."""
    event_log, _ = find_response(request, request.match_info["id"])
    await _end(request, event_log)
    await forget(request, event_log.request.id)
    return web.json_response({"id": event_log.request.id, "object": "response", "deleted": True})


async def _end(request: web.Request, event_log: EventLog) -> None:
    """Ends a request, if it waits or runs, and waits for its end."""
    engine = request.app[ENGINE]
    async with engine.read(event_log) as stream:
        engine.abort(event_log.request.id)
        async for _ in stream:
            pass


_CHOICE = object_of(
    index=INTEGER,
    label=OPTIONAL_STRING,
    seed=INTEGER,
    text=STRING,
    length=INTEGER,
    finish_reason={"enum": ["stop", "length", "abort", "error", None]},
    stop_reason={"type": ["string", "integer", "null"]},
)
_STATE = object_of(
    id=STRING,
    object={"const": "srb.request"},
    status={"enum": ["waiting", "running", "finished"]},
    created=INTEGER,
    choices=list_of(_CHOICE),
    usage={"type": ["object", "null"]},
    last_event_id=INTEGER,
)
_NUMBERS = fields_of(INTEGER, "prompts prompt_tokens count running")
_REQUEST = object_of(id=STRING, status={"enum": ["waiting", "running"]}, age_seconds=NUMBER, **_NUMBERS)

_RESPONSE_PATH, _RESPONSE_ALIAS = "/v1/responses/{id}", f"{OPENAI}/responses/{{id}}"
_DELETED = object_of(id=STRING, object={"const": "response"}, deleted=BOOLEAN)

ROUTES = (
    get(
        "/v1/completions/{id}/events",
        events,
        ONE_OR_MORE,
        other_schemas={EVENTS: EVENT_STREAM},
        errors=(400, 404, 410, 503),
        query={
            "starting_after": "the id of the last native event that was read; the header Last-Event-ID takes precedence"
        },
        aliases=("/v1/chat/completions/{id}/events",),
    ),
    get("/v1/completions/{id}", state, _STATE, errors=(404, 410)),
    Route("DELETE", "/v1/completions/{id}", cancel, errors=(404,)),
    Route(
        "DELETE",
        "/v1/completions/{id}/choices/{index}",
        cancel,
        errors=(404,),
        summary="End one alternative; the others go on",
    ),
    get("/v1/requests", requests, data_of(_REQUEST)),
    get(
        _RESPONSE_PATH,
        get_response,
        RESPONSE,
        other_schemas=RESPONSE_EVENTS,
        errors=(400, 404, 410),
        query={
            "stream": "true: answer with the events",
            "starting_after": "the sequence_number of the last event that was read",
        },
        aliases=(_RESPONSE_ALIAS,),
    ),
    Route("DELETE", _RESPONSE_PATH, delete_response, _DELETED, errors=(404, 410), aliases=(_RESPONSE_ALIAS,)),
    post(
        f"{_RESPONSE_PATH}/cancel", cancel_response, RESPONSE, errors=(404, 410), aliases=(f"{_RESPONSE_ALIAS}/cancel",)
    ),
)
