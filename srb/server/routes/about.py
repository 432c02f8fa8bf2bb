"""The routes that tell of the server itself: /health, /metrics, /openapi.json, /docs."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

from aiohttp import web
from pydantic import TypeAdapter

from srb.engine.stats import EngineStats
from srb.errors import UnavailableError
from srb.server import openapi
from srb.server.http.connections import CONNECTIONS
from srb.server.http.exchange import ENGINE, LIMITS
from srb.server.http.refusals import error_response
from srb.server.routes.metrics import CONTENT_TYPE, Metrics
from srb.server.run.keeper import KEEPER
from srb.serving.health import ReplicaHealth
from srb.wire.route import get
from srb.wire.schemas import BOOLEAN, INTEGER, OBJECT, STRING, alike, object_of

METRICS = web.AppKey("metrics", Metrics)

DESCRIPTION: web.AppKey[Callable[[], tuple[bytes, bytes]]] = web.AppKey("description")
"""Returns the answers of `/openapi.json` and `/docs`."""


async def health(request: web.Request) -> web.Response:
    """Whether the server takes requests, and how many run."""
    health = request.app[ENGINE].health
    if health.status == "ready" and request.app[KEEPER].is_resuming:
        health = replace(health, status="loading")
    body: dict[str, Any] = {
        "status": {"ready": "ok", "loading": "loading model", "dead": "error"}.get(health.status, health.status),
        "model": request.app[LIMITS].model,
        "progress": round(health.progress, 3),
        "running": health.running,
        "waiting": health.waiting,
        "is_sleeping": health.is_sleeping,
        "engine_restarts": health.engine_restarts,
    }
    if health.stats:
        body |= _stats(health.stats)
    if health.replicas:
        body["replicas"] = [_replica(each) for each in health.replicas]
    if (history := request.app[KEEPER].status) is not None:
        body |= {"history": history, "history_owed": request.app[KEEPER].n_owed}
    try:
        request.app[ENGINE].check_ready()
        body["n_ctx"] = request.app[ENGINE].n_cells
        request.app[KEEPER].check_resumed()
    except UnavailableError as error:
        return error_response(request, error, body, status=500 if health.status == "dead" else error.status)
    return web.json_response(body)


def _stats(stats: EngineStats) -> dict[str, Any]:
    """The numbers of `EngineStats`, by their names on the wire."""
    return _renamed(asdict(stats))


def _renamed(stats: dict[str, Any]) -> dict[str, Any]:
    names = {"n_drafted": "n_ahead", "n_accepted": "n_met"}
    return {names.get(name, name): value for name, value in stats.items()}


def _replica(replica: ReplicaHealth) -> dict[str, Any]:
    """A replica as `/health` shows it. The numbers are from its last report."""
    return {
        "name": replica.name,
        "node": replica.node,
        "status": replica.status,
        "running": replica.running,
        "waiting": replica.waiting,
        **(_stats(replica.stats) if replica.stats else {}),
    }


async def metrics_text(request: web.Request) -> web.Response:
    """Measurements for Prometheus."""
    text = request.app[METRICS].text(request.app[ENGINE], request.app[CONNECTIONS], request.app[KEEPER])
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})


async def openapi_json(request: web.Request) -> web.Response:
    """This description."""
    body, _ = await asyncio.to_thread(request.app[DESCRIPTION])
    return web.Response(body=body, content_type="application/json", charset="utf-8")


async def docs(request: web.Request) -> web.Response:
    """This description as a page."""
    _, page = await asyncio.to_thread(request.app[DESCRIPTION])
    return web.Response(body=page, content_type="text/html", charset="utf-8", headers=openapi.HEADERS)


_HEALTH = object_of(
    **alike(STRING, "status model"),
    progress={"type": "number", "minimum": 0, "maximum": 1},
    **alike(INTEGER, "running waiting engine_restarts n_ctx"),
    is_sleeping=BOOLEAN,
    **_renamed(TypeAdapter(EngineStats).json_schema()["properties"]),
)

ROUTES = (
    get("/health", health, _HEALTH, errors=(503,), also=("/v1/health",)),
    get("/metrics", metrics_text, others={"text/plain": STRING}),
    get("/openapi.json", openapi_json, OBJECT),
    get("/docs", docs, others={"text/html": STRING}),
)
