"""The routes for earlier requests in the history: they list, search, read and remove them."""

import asyncio
from typing import Any

from aiohttp import web

from srb.errors import InvalidRequestError
from srb.history import find
from srb.history import history as prune
from srb.history.export import as_json, request_json
from srb.server.http.exchange import json_response
from srb.server.routes.stories import query_number
from srb.server.run.keeper import read_file, write_file
from srb.wire.route import Route, get
from srb.wire.schemas import OBJECT, data_of

MAX_LIMIT = 1_000


async def list_or_search(request: web.Request) -> web.Response:
    """The last requests, or the texts that have these words."""
    words, before, limit = request.query.get("q"), request.query.get("before"), query_number(request, "limit")
    limit = 50 if limit is None else limit
    if not 1 <= limit <= MAX_LIMIT:
        raise InvalidRequestError(f"limit must be from 1 to {MAX_LIMIT}, got {limit}", param="limit")
    data: list[dict[str, Any]]
    last: str | int | None
    if words is None:
        story = request.query.get("story")
        listed = await read_file(request, find.list_requests, limit=limit, before=before, story=story)
        data, last = [as_json(each) for each in listed], listed[-1].id if listed else None
    else:
        place = query_number(request, "before")
        found = await read_file(
            request, find.search, words, limit=limit, **({} if place is None else {"before": place})
        )
        data, last = [as_json(each) for each in found], found[-1].place if found else None
    return web.json_response({"object": "list", "data": data, "before": last if len(data) == limit else None})


async def get_request(request: web.Request) -> web.Response:
    """A request that was kept, with its body and its alternatives."""
    found = await read_file(request, find.get_request, request.match_info["id"])
    return await asyncio.to_thread(lambda: json_response(request_json(found)))


async def remove_request(request: web.Request) -> web.Response:
    """Remove a request that has ended; stories keep its texts."""
    await write_file(request, prune.remove_request, request.match_info["id"])
    return web.Response(status=204)


_OFF = (404, 501, 503)

ROUTES = (
    get(
        "/v1/history",
        list_or_search,
        data_of(OBJECT),
        errors=(400, *_OFF),
        query={
            "q": "words that a text must have",
            "limit": "how many, 50 if it's left out",
            "before": "where the answer before has ended, which says so in its own `before`",
            "story": "without `q`: only the requests of this story",
        },
    ),
    get("/v1/history/{id}", get_request, OBJECT, errors=_OFF),
    Route("DELETE", "/v1/history/{id}", remove_request, errors=_OFF),
)
