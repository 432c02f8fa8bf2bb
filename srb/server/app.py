"""Makes the application of all routes; has the routes that tell of the server itself: /health, /metrics, /docs."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import web

from srb.errors import UnavailableError
from srb.server.guards import auth, cors, hosts
from srb.server.http import peers as elsewhere
from srb.server.http.exchange import ANSWERS, ENGINE, LIMITS, MAX_BODY_BYTES, drain_body
from srb.server.http.media import FETCH, Fetch
from srb.server.http.refusals import SHAPES, error_response, errors_as_json
from srb.server.openapi import describe as openapi
from srb.server.openapi import docs_page
from srb.server.routes import adapters as adapter_routes
from srb.server.routes import embeddings as embedding_routes
from srb.server.routes import formats, page
from srb.server.routes import history as history_routes
from srb.server.routes import requests as request_routes
from srb.server.routes import responses as response_routes
from srb.server.routes import slots as slot_routes
from srb.server.routes import stories as story_routes
from srb.server.routes.metrics import CONTENT_TYPE, Metrics
from srb.server.routes.slots import SLOT_FOLDER
from srb.server.run.keeping import KEEPER, Keeper
from srb.serving.engine_client import EngineClient
from srb.serving.health import ReplicaHealth
from srb.wire.limits import Limits

METRICS = web.AppKey("metrics", Metrics)

DESCRIPTION: web.AppKey[Callable[[], tuple[bytes, bytes]]] = web.AppKey("description")
"""Returns the answers of `/openapi.json` and `/docs`."""

SERVER_OPTIONS: dict[str, Any] = {
    "handler_cancellation": True,  # a client that closes the connection cancels its request
    "auto_decompress": False,  # if it were True, a body would be inflated before its API key is checked
    "lingering_time": 0,  # see `drain_body`
    "access_log": None,
}
"""The arguments for `web.AppRunner`, with which aiohttp must serve the application."""


def create_app(
    engine: EngineClient,
    limits: Limits,
    metrics: Metrics | None = None,
    *,
    api_keys: tuple[bytes, ...] = (),
    cors_origins: str = cors.LOCAL,
    allowed_hosts: hosts.Hosts = hosts.LOCAL,
    keeper: Keeper | None = None,
    slot_folder: Path | None = None,
    fetch: Fetch | None = None,
    shares_prompts: bool = False,
) -> web.Application:
    """The application, to be served with `SERVER_OPTIONS`.

    The caller starts and stops the engine, makes it fill the metrics, and closes the history of the keeper.

    keeper: keeps requests and stories; left out: nothing is kept.
    fetch: gets images and sounds that requests name by their addresses; left out: such requests are refused.
    slot_folder: the folder where slots are saved. `limits.saved_slots` says how many slots there are.
    shares_prompts: whether what is evaluated is shared between API keys, and not only within each.

    Raises `SettingsError` for a wrong origin.
    """
    checks = [hosts.check_host, cors.answer_preflight, cors.check_origin, auth.check_key]
    app = web.Application(
        middlewares=[drain_body, errors_as_json, *checks, elsewhere.ask_others], client_max_size=MAX_BODY_BYTES + 1
    )
    app.cleanup_ctx.append(elsewhere.session)
    app.on_response_prepare.append(cors.add_headers)
    app[auth.API_KEYS] = api_keys
    app[auth.SHARES_PROMPTS] = shares_prompts
    app[hosts.HOSTS] = allowed_hosts
    app[cors.ORIGINS] = cors.read_origins(cors_origins)
    app[cors.LOGGED] = set()
    app[ENGINE] = engine
    app[KEEPER] = keeper or Keeper()
    app[LIMITS] = limits
    app[SLOT_FOLDER] = slot_folder
    app[FETCH] = fetch
    app[ANSWERS] = WeakKeyDictionary()
    app[SHAPES] = {}
    app[METRICS] = metrics or Metrics()
    description: Callable[[], tuple[bytes, bytes]] = cache(partial(_description, limits, keyed=bool(api_keys)))
    app[DESCRIPTION] = description
    app.router.add_get("/health", health)
    app.router.add_get("/v1/health", health)
    app.router.add_get("/metrics", metrics_text)
    app.router.add_get("/openapi.json", openapi_json)
    app.router.add_get("/docs", docs)
    formats.add_routes(app)
    request_routes.add_routes(app)
    response_routes.add_routes(app)
    slot_routes.add_routes(app)
    adapter_routes.add_routes(app)
    embedding_routes.add_routes(app)
    story_routes.add_routes(app)
    history_routes.add_routes(app)
    page.add_to(app)
    return app


async def health(request: web.Request) -> web.Response:
    """GET /health: 200 if requests are taken, 503 while the model loads or the server stops, 500 after a failure."""
    health = request.app[ENGINE].health
    body: dict[str, Any] = {
        "status": {"ready": "ok", "loading": "loading model", "dead": "error"}.get(health.status, health.status),
        "model": request.app[LIMITS].model,
        "progress": round(health.progress, 3),
        "running": health.running,
        "waiting": health.waiting,
        "is_sleeping": health.is_sleeping,
    }
    if health.stats:
        body |= asdict(health.stats)
    if health.replicas:
        body["replicas"] = [_replica(each) for each in health.replicas]
    if (history := request.app[KEEPER].status) is not None:
        body["history"] = history
    if health.status == "ready":
        return web.json_response(body)
    try:
        request.app[ENGINE].check_ready()
    except UnavailableError as error:
        return error_response(request, error, body, status=500 if health.status == "dead" else error.status)
    return web.json_response(body)


def _replica(replica: ReplicaHealth) -> dict[str, Any]:
    """A replica as `/health` shows it. The numbers are from its last report."""
    return {
        "name": replica.name,
        "node": replica.node,
        "status": replica.status,
        "running": replica.running,
        "waiting": replica.waiting,
        **(asdict(replica.stats) if replica.stats else {}),
    }


async def metrics_text(request: web.Request) -> web.Response:
    """GET /metrics: for Prometheus."""
    text = request.app[METRICS].text(request.app[ENGINE])
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})


def _description(limits: Limits, *, keyed: bool) -> tuple[bytes, bytes]:
    """The description as JSON and as a page. This takes tenths of a second, so it is made once, when it's asked for."""
    described = openapi.describe(limits, keyed=keyed)
    return json.dumps(described).encode(), docs_page.render(described).encode()


async def openapi_json(request: web.Request) -> web.Response:
    """GET /openapi.json: every path and field, for programs."""
    body, _ = await asyncio.to_thread(request.app[DESCRIPTION])
    return web.Response(body=body, content_type="application/json", charset="utf-8")


async def docs(request: web.Request) -> web.Response:
    """GET /docs: the same as a page for people."""
    _, page = await asyncio.to_thread(request.app[DESCRIPTION])
    return web.Response(body=page, content_type="text/html", charset="utf-8", headers=docs_page.HEADERS)
