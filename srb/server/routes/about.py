"""Routes about the server itself: /health, /metrics, /openapi.json, /docs, and the web page with its files."""

import asyncio
import base64
import hashlib
import mimetypes
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from aiohttp import web

from srb.engine.stats import EngineStats
from srb.errors import UnavailableError
from srb.server import openapi
from srb.server.http.connections import CONNECTIONS
from srb.server.http.errors import error_response
from srb.server.http.exchange import ENGINE, LIMITS
from srb.server.routes.metrics import CONTENT_TYPE, Metrics
from srb.server.run.history import HISTORY
from srb.serving.health import ReplicaHealth
from srb.wire.reply import wire_names
from srb.wire.route import BOOLEAN, INTEGER, OBJECT, STRING, fields_of, get, object_of, properties_of

METRICS = web.AppKey("metrics", Metrics)

DESCRIPTION: web.AppKey[Callable[[], tuple[bytes, bytes]]] = web.AppKey("description")
"""Returns the bodies of `/openapi.json` and `/docs`."""

FOLDER = Path(__file__).parents[2] / "web"

CSP = "Content-Security-Policy"
PAGE_HEADERS = {
    CSP: "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'",
    "Cache-Control": "no-cache",  # browsers revalidate each time, and get a short 304 unless srb was updated
    "Service-Worker-Allowed": "/",  # else it could only serve its own folder, and not the page
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


FILES = {path.relative_to(FOLDER).as_posix(): path for path in FOLDER.rglob("*") if path.is_file()}
"""The files, by their paths after `/web/`. No other path reaches the file system."""

_INLINE = re.compile(rb"<script>(.*?)</script>", re.DOTALL)

_TYPES = mimetypes.MimeTypes()  # Python's own, since the system's may differ


async def health(request: web.Request) -> web.Response:
    """Show whether the server is ready, and how many requests run."""
    health = request.app[ENGINE].health
    if health.status == "ready" and request.app[HISTORY].is_resuming:
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
    if (history := request.app[HISTORY].status) is not None:
        body |= {"history": history, "history_owed": request.app[HISTORY].n_pending_writes}
        if history != "ok" and body["status"] == "ok":
            body["status"] = "degraded"  # it serves requests, but doesn't store them
    try:
        request.app[ENGINE].check_ready()
        body["n_ctx"] = request.app[ENGINE].model.n_cells
        request.app[HISTORY].check_resumed()
    except UnavailableError as error:
        return error_response(request, error, body, status=500 if health.status == "dead" else error.status)
    return web.json_response(body)


def _stats(stats: EngineStats) -> dict[str, Any]:
    return wire_names(asdict(stats))


def _replica(replica: ReplicaHealth) -> dict[str, Any]:
    """A replica in `/health`. The numbers are from its last report."""
    return {
        "name": replica.name,
        "node": replica.node,
        "status": replica.status,
        "running": replica.running,
        "waiting": replica.waiting,
        **_stats(replica.stats),
    }


async def metrics_text(request: web.Request) -> web.Response:
    """Show metrics for Prometheus."""
    text = request.app[METRICS].text(request.app[ENGINE], request.app[CONNECTIONS], request.app[HISTORY])
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})


async def openapi_json(request: web.Request) -> web.Response:
    """Show this description."""
    body, _ = await asyncio.to_thread(request.app[DESCRIPTION])
    return web.Response(body=body, content_type="application/json", charset="utf-8")


async def docs(request: web.Request) -> web.Response:
    """Show this description as a page."""
    _, html = await asyncio.to_thread(request.app[DESCRIPTION])
    return web.Response(body=html, content_type="text/html", charset="utf-8", headers=openapi.HEADERS)


async def index(request: web.Request) -> web.Response:
    """Show the web page."""
    return await _send(request, FOLDER / "index.html")


async def page_file(request: web.Request) -> web.Response:
    if (path := FILES.get(request.match_info["file"])) is None:
        raise web.HTTPNotFound
    return await _send(request, path)


async def _send(request: web.Request, path: Path) -> web.Response:
    """Sends a file, or a 304. `web.FileResponse` would keep the file open while a slow reader takes it."""
    body = await asyncio.to_thread(path.read_bytes)
    tag = hashlib.sha256(body).hexdigest()
    is_known = tag in {each.value for each in request.if_none_match or ()}
    response = web.Response(status=304) if is_known else web.Response(body=body)
    response.headers.update(PAGE_HEADERS)
    if inline := _INLINE.search(body):  # the page's first script
        digest = base64.b64encode(hashlib.sha256(inline[1]).digest()).decode()
        policy = PAGE_HEADERS[CSP].replace("script-src 'self'", f"script-src 'self' 'sha256-{digest}'")
        response.headers[CSP] = policy
    response.content_type = _TYPES.guess_type(path)[0] or "application/octet-stream"
    response.etag = tag
    return response


_HEALTH = object_of(
    **fields_of(STRING, "status model"),
    progress={"type": "number", "minimum": 0, "maximum": 1},
    **fields_of(INTEGER, "running waiting engine_restarts n_ctx"),
    is_sleeping=BOOLEAN,
    **wire_names(properties_of(EngineStats)),
)

ROUTES = (
    get("/health", health, _HEALTH, errors=(503,), aliases=("/v1/health",)),
    get("/metrics", metrics_text, other_schemas={"text/plain": STRING}),
    get("/openapi.json", openapi_json, OBJECT),
    get("/docs", docs, other_schemas={"text/html": STRING}),
    get("/", index, other_schemas={"text/html": STRING}),
    get("/web/{file:.*}", page_file),
)
