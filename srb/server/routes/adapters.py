"""llama-server's routes for adapters: they list the loaded ones, and set the scales for requests that name none."""

import asyncio

from aiohttp import web

from srb.server.http.bodies import read_body
from srb.server.http.exchange import ENGINE
from srb.wire.native.bodies import AdapterFields, parse_adapters
from srb.wire.route import get, post
from srb.wire.schemas import BOOLEAN, INTEGER, NUMBER, STRING, list_of, object_of


async def adapters(request: web.Request) -> web.Response:
    """The adapters that were loaded with --lora, and their scales for requests that name none."""
    listed = enumerate(request.app[ENGINE].adapters.listed)
    return web.json_response(
        [{"id": number, "name": each.name, "path": each.path, "scale": each.scale} for number, each in listed]
    )


async def set_adapters(request: web.Request) -> web.Response:
    """Set the scales of adapters for the requests that follow; adapters that aren't named get 0."""
    there, body = request.app[ENGINE].adapters, await read_body(request)
    await asyncio.to_thread(lambda: there.set_scales(parse_adapters(body)))
    return web.json_response({"success": True})


_ADAPTER = object_of(id=INTEGER, name=STRING, path=STRING, scale=NUMBER)

ROUTES = (
    get("/lora-adapters", adapters, list_of(_ADAPTER), errors=(501, 503)),
    post("/lora-adapters", set_adapters, object_of(success=BOOLEAN), body=AdapterFields, errors=(501, 503)),
)
