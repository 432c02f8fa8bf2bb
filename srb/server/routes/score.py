"""The route for tables of scores: it scores them a few rows at a time, and ends them by their ids."""

import asyncio
import time
from collections.abc import AsyncGenerator, Iterable

from aiohttp import web

from srb.errors import NotFoundError
from srb.server.access import owner_of, shared_within
from srb.server.http import sse
from srb.server.http.bodies import read_body
from srb.server.http.exchange import ENGINE, LIMITS, ignored_header, json_response
from srb.serving.score_tables import Tabulation
from srb.wire.native.score import OBJECT_SCHEMA, STREAM_SCHEMA, Answer, ScoreFields, read
from srb.wire.route import Route, post
from srb.wire.schemas import EVENTS

TABLES: web.AppKey[dict[str, Tabulation]] = web.AppKey("tables")
"""The tables that are being scored, by their ids."""


async def score(request: web.Request) -> web.StreamResponse:
    """How likely continuations are behind contexts: a table of any size. When its client leaves, it ends."""
    engine, model, created = request.app[ENGINE], request.app[LIMITS].model, int(time.time())
    engine.check_ready()
    engine.check_queue()
    asked = await asyncio.to_thread(read, await read_body(request), model)
    within = await shared_within(request)
    async with Tabulation(engine, asked.table, owner=owner_of(request), within=within) as tabulation:
        answer = Answer(asked, tabulation.id, model=model, created=created, fingerprint=engine.fingerprint)
        await tabulation.begin()  # an error is answered by its status as long as nothing is sent
        headers = {"X-Request-Id": tabulation.id} | ignored_header(asked.ignored)
        request.app[TABLES][tabulation.id] = tabulation
        try:
            if asked.stream:
                async with sse.batches_of(_events(tabulation, answer)) as batches:
                    return await sse.respond(request, batches, headers=headers)
            rows = [row async for some in tabulation.rows() for row in some]
            return await asyncio.to_thread(lambda: json_response(answer.object(rows, tabulation), headers))
        finally:
            del request.app[TABLES][tabulation.id]


async def _events(tabulation: Tabulation, answer: Answer) -> AsyncGenerator[Iterable[sse.Item], None]:
    yield [answer.start()]
    async for rows in tabulation.rows():
        yield map(answer.row, rows)
    yield answer.last(tabulation)


async def cancel(request: web.Request) -> web.Response:
    """End a table; the rows that were scored stay."""
    tabulation = request.app[TABLES].get(request.match_info["id"])
    if tabulation is None or tabulation.owner != owner_of(request):
        raise NotFoundError(f"no table {request.match_info['id']:.100} is being scored", param="id")
    tabulation.end()
    return web.Response(status=204)


ROUTES = (
    post("/v1/score", score, OBJECT_SCHEMA, others={EVENTS: STREAM_SCHEMA}, body=ScoreFields, errors=(429, 503)),
    Route("DELETE", "/v1/score/{id}", cancel, errors=(404,)),
)
