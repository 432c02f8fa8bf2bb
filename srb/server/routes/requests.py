"""The routes for a request that exists already: it is listed, read again, looked at, ended or forgotten."""

import asyncio
from typing import Any

from aiohttp import web

from srb.errors import GoneError, InvalidRequestError, NotFoundError, UnavailableError
from srb.history.database import explained
from srb.history.recorder import forget_events
from srb.history.unfinished import Unfinished, read_journal
from srb.server.access import owner_of
from srb.server.http.exchange import ANSWERS, ANSWERS_OF_OLD, ENGINE, LIMITS, answer_natively, json_response
from srb.server.http.peers import lists_of_others
from srb.server.run.keeper import KEEPER, read_file, write_file
from srb.serving.event_log import EventLog
from srb.wire.native import reply as native
from srb.wire.request.read import show
from srb.wire.route import Route, get
from srb.wire.schemas import (
    EVENT_STREAM,
    EVENTS,
    INTEGER,
    NUMBER,
    ONE_OR_MORE,
    OPTIONAL_STRING,
    STRING,
    alike,
    data_of,
    list_of,
    object_of,
)

LAST_EVENT_ID = "Last-Event-ID"


async def events(request: web.Request) -> web.StreamResponse:
    """Read a request again: all of it in its own format, or the native events behind one event.

    From the beginning they are in the request's own format. Behind an event that the reader names they are native.
    """
    engine = request.app[ENGINE]
    journal, is_interrupted = await find_kept(request, request.match_info["id"])
    if is_interrupted:
        raise GoneError(f"request {journal.request.id} was interrupted by the server's end; what there is of it stays")
    # When a browser's EventSource connects again, it sends the same address with the old parameter. Only the header
    # says how far it has read.
    after = request.headers.get(LAST_EVENT_ID) or request.query.get("starting_after")
    answers = request.app[ANSWERS].get(journal) or await request.app[ANSWERS_OF_OLD](request, journal)
    own = answers.own
    if own and after is None:
        async with engine.read(journal) as stream:
            return await own(request, stream)
    async with engine.read(journal, read_id(after or "0")) as stream:
        if stream.at_end:
            return web.Response(status=204)  # with this status an EventSource doesn't connect again
        return await answer_natively(request, stream)


async def find_kept(request: web.Request, request_id: str) -> tuple[EventLog, bool]:
    """The journal of a request, from memory or from the history, and whether it was interrupted and won't go on.

    Raises what `EngineClient.find` raises, and `UnavailableError` if it will go on later.
    """
    owner, keeper = owner_of(request), request.app[KEEPER]
    try:
        return request.app[ENGINE].find(request_id, owner), False
    except (NotFoundError, GoneError):
        # A history that can't be read now may have it: then this raises an error that says so.
        found = None if keeper.status is None else await read_file(request, read_journal, request_id)
        if found == "running":
            request.app[ENGINE].check_ready()
            raise UnavailableError(f"request {request_id} goes on when the model is loaded; try again soon") from None
        if not isinstance(found, Unfinished):
            raise
    submitted = found.submitted
    journal = EventLog(submitted.request, owner=owner, detach=submitted.detach, created=submitted.created)
    with explained(keeper.history.path):
        journal.put(found.events)
    return journal, not journal.done


def read_id(text: str) -> int:
    """Reads the id or the number of an event. Raises `InvalidRequestError`."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise InvalidRequestError(
            f"starting_after and {LAST_EVENT_ID} take the number of an event, a whole number from 0; got {show(text)}",
            param="starting_after",
        )
    return int(text)


async def state(request: web.Request) -> web.Response:
    """How far a request is, with its texts so far; for chats, too."""
    journal, is_interrupted = await find_kept(request, request.match_info["id"])
    value = native.state(
        journal.request,
        created=journal.created,
        started=journal.started,
        texts=journal.texts,
        lengths=journal.lengths,
        stops=journal.stops,
        done=journal.end,
        last_event_id=len(journal),
    )
    if is_interrupted:
        value["status"] = "interrupted"
    return await asyncio.to_thread(json_response, value)


async def cancel(request: web.Request) -> web.Response:
    """End a request, or forget one that has finished.

    A request that has finished is forgotten.
    """
    engine, request_id, index = request.app[ENGINE], request.match_info["id"], request.match_info.get("index")
    try:
        engine.find(request_id, owner_of(request))
    except (NotFoundError, GoneError) as error:
        # The history may still have it: from before the last start, or for longer than there is room in memory.
        if index is None and request.app[KEEPER].is_on and await write_file(request, forget_events, request_id):
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
    """Forgets a finished request, so that it can't be read again. Returns False if it isn't kept."""
    if request.app[KEEPER].is_on:
        await write_file(request, forget_events, request_id)
    return request.app[ENGINE].forget(request_id)


async def requests(request: web.Request) -> web.Response:
    """The requests that wait and run."""
    engine, show_prompts = request.app[ENGINE], request.app[LIMITS].show_prompts
    now, data = asyncio.get_running_loop().time(), []
    for journal in engine.requests:
        if journal.owner != owner_of(request):
            continue
        each: dict[str, Any] = {
            "id": journal.request.id,
            "status": "running" if journal.started else "waiting",
            "age_seconds": round(now - journal.arrived, 3),
            "prompts": len(journal.request.prompts),
            "count": journal.request.count,
            "running": len(journal.living) if journal.started else 0,
            "prompt_tokens": journal.request.prompt_tokens,
        }
        if show_prompts:  # in a thread, because long prompts take a while
            each["prompt"] = [
                await asyncio.to_thread(engine.detokenize, tokens) for tokens in journal.request.token_ids
            ]
        data.append(each)
    data += await lists_of_others(request)
    return web.json_response({"object": "list", "data": data})


_CHOICE = object_of(
    index=INTEGER,
    label=OPTIONAL_STRING,
    seed=INTEGER,
    text=STRING,
    length=INTEGER,
    finish_reason={"enum": ["stop", "length", "abort", "error", None]},
    stop_reason=OPTIONAL_STRING,
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
_NUMBERS = alike(INTEGER, "prompts prompt_tokens count running")
_REQUEST = object_of(id=STRING, status={"enum": ["waiting", "running"]}, age_seconds=NUMBER, **_NUMBERS)

ROUTES = (
    get(
        "/v1/completions/{id}/events",
        events,
        ONE_OR_MORE,
        others={EVENTS: EVENT_STREAM},
        errors=(400, 404, 410, 503),
        query={"starting_after": "the id of the last native event that was read; the header Last-Event-ID wins"},
        also=("/v1/chat/completions/{id}/events",),
    ),
    get("/v1/completions/{id}", state, _STATE, errors=(404, 410)),
    Route("DELETE", "/v1/completions/{id}", cancel, errors=(404,)),
    Route(
        "DELETE",
        "/v1/completions/{id}/choices/{index}",
        cancel,
        errors=(404,),
        says="End one alternative; the others go on",
    ),
    get("/v1/requests", requests, data_of(_REQUEST)),
)
