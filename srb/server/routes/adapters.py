"""llama-server's routes for adapters: they list the loaded ones, and set the scales for requests that name none."""

import asyncio

from aiohttp import web

from srb.server.http.exchange import ENGINE, read_body
from srb.wire.native.bodies import parse_adapters


def add_routes(app: web.Application) -> None:
    """Adds the routes to the application."""
    app.router.add_get("/lora-adapters", adapters)
    app.router.add_post("/lora-adapters", set_adapters)


async def adapters(request: web.Request) -> web.Response:
    """GET /lora-adapters."""
    listed = enumerate(request.app[ENGINE].adapters.listed)
    return web.json_response(
        [{"id": number, "name": each.name, "path": each.path, "scale": each.scale} for number, each in listed]
    )


async def set_adapters(request: web.Request) -> web.Response:
    """POST /lora-adapters: sets the scales for later requests that name none. Adapters not in the list get 0."""
    there, body = request.app[ENGINE].adapters, await read_body(request)
    await asyncio.to_thread(lambda: there.set_scales(parse_adapters(body)))
    return web.json_response({"success": True})
