"""The routes for a response of OpenAI's format that exists already: it is read or streamed again, ended or deleted."""

import asyncio
from collections.abc import Iterator
from typing import Any

from aiohttp import web

from srb.engine.events import Event
from srb.errors import NotFoundError
from srb.server.access import owner_of
from srb.server.http import sse
from srb.server.http.exchange import ENGINE, answers_of, json_response
from srb.server.http.sse import Batches
from srb.server.routes.requests import forget, read_id
from srb.serving.event_log import Cursor, EventLog
from srb.wire.openai.routes import OPENAI, RESPONSE, RESPONSE_EVENTS
from srb.wire.reply import TYPED, Answering
from srb.wire.route import Route, get, post
from srb.wire.schemas import BOOLEAN, STRING, object_of


def find_response(request: web.Request, response_id: str) -> tuple[EventLog, Answering]:
    """The journal of a response, and what makes the answers for clients that ask for it.

    Raises `NotFoundError` if the asker has no such response, `GoneError` if it is no longer kept.
    """
    journal = request.app[ENGINE].find(response_id, owner_of(request))
    again = answers_of(request.app, journal).again
    if again is None:
        raise NotFoundError(
            f"request {response_id} is no response, or it was one before the server was restarted; "
            f"GET /v1/completions/{response_id} has its text",
            param="id",
        )
    return journal, again()


def events_so_far(journal: EventLog) -> list[Event]:
    """All events that a journal has now."""
    cursor, events = Cursor(journal), list[Event]()
    while more := cursor.read():
        events += [event for _, event in more]
    return events


async def retrieve(request: web.Request) -> web.StreamResponse:
    """A response so far, or its events from the beginning or behind one event."""
    journal, again = find_response(request, request.match_info["id"])
    if request.query.get("stream", "false") not in ("true", "True", "1"):
        return await asyncio.to_thread(json_response, again.state(events_so_far(journal)))
    after = request.query.get("starting_after")
    first = 0 if after is None else read_id(after) + 1

    def to_json(events: list[Event]) -> Iterator[dict[str, Any]]:
        return (each for each in again.chunks(events) if each["sequence_number"] >= first)

    async with request.app[ENGINE].read(journal) as stream:
        headers = {"X-Request-Id": journal.request.id}
        return await sse.respond(request, Batches(stream.__anext__, to_json), headers=headers, frame=TYPED)


async def cancel(request: web.Request) -> web.Response:
    """End a response; the answer is what there is of it."""
    journal, again = find_response(request, request.match_info["id"])
    await _end(request, journal)
    return await asyncio.to_thread(json_response, again.state(events_so_far(journal)))


async def delete(request: web.Request) -> web.Response:
    """End a response, and forget it."""
    journal, _ = find_response(request, request.match_info["id"])
    await _end(request, journal)
    await forget(request, journal.request.id)
    return web.json_response({"id": journal.request.id, "object": "response", "deleted": True})


async def _end(request: web.Request, journal: EventLog) -> None:
    """Ends a request, if it waits or runs, and returns when it has ended."""
    engine = request.app[ENGINE]
    async with engine.read(journal) as stream:
        engine.abort(journal.request.id)
        async for _ in stream:
            pass


_PATH, _ALSO = "/v1/responses/{id}", f"{OPENAI}/responses/{{id}}"
_DELETED = object_of(id=STRING, object={"const": "response"}, deleted=BOOLEAN)

ROUTES = (
    get(
        _PATH,
        retrieve,
        RESPONSE,
        others=RESPONSE_EVENTS,
        errors=(400, 404, 410),
        query={
            "stream": "true: answer with the events",
            "starting_after": "the sequence_number of the event behind which they begin",
        },
        also=(_ALSO,),
    ),
    Route("DELETE", _PATH, delete, _DELETED, errors=(404, 410), also=(_ALSO,)),
    post(f"{_PATH}/cancel", cancel, RESPONSE, errors=(404, 410), also=(f"{_ALSO}/cancel",)),
)
