"""The routes, and how errors look on the way out."""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from aiohttp import web

from srb.async_engine import AsyncEngine
from srb.errors import MethodNotAllowedError, NotFoundError, SrbError, UnavailableError
from srb.server import llama_routes, native, openai, sse
from srb.server.body import Limits, parse
from srb.server.http import ENGINE, LIMITS, MAX_BODY_BYTES, Batches, ignored_header, read_body

logger = logging.getLogger("srb")

CREATED = web.AppKey("created", int)


def create_app(engine: AsyncEngine, limits: Limits) -> web.Application:
    """The application. Starting and stopping the engine is the caller's."""
    app = web.Application(middlewares=[_errors_as_json], client_max_size=MAX_BODY_BYTES + 1)
    app[ENGINE] = engine
    app[LIMITS] = limits
    app[CREATED] = int(time.time())
    app.router.add_post("/v1/completions", completions)
    app.router.add_post("/v1/completions/", completions)  # some clients write it so
    app.router.add_delete("/v1/completions/{id}", cancel)
    app.router.add_delete("/v1/completions/{id}/choices/{index}", cancel)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/models", models)
    app.router.add_get("/health", health)
    app.router.add_get("/v1/health", health)
    llama_routes.add_routes(app)
    return app


async def completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/completions: queues a request and answers with its events, in the format that it asks for."""
    engine, limits = request.app[ENGINE], request.app[LIMITS]
    engine.check_ready()
    body = await read_body(request)
    # In a thread, because megabytes take seconds to parse and tokenize.
    parsed = await asyncio.to_thread(parse, body, limits, engine.tokenize)
    completion, created = parsed.completion, int(time.time())
    headers = {"X-Request-Id": completion.id}
    if parsed.format == "events":
        to_json = partial(native.to_json, model=limits.model, created=created, ignored=parsed.ignored)
        async with await engine.submit(completion) as stream:
            return await sse.respond(request, Batches(stream, partial(map, to_json)), headers=headers)
    headers |= ignored_header(parsed.ignored)
    reply = openai.Completion(
        completion.id,
        model=limits.model,
        created=created,
        per_prompt=len(completion.branches),
        n=parsed.n,
        logprobs=parsed.logprobs,
        usage=parsed.usage,
    )
    async with await engine.submit(completion) as stream:
        if parsed.format == "chunks":
            return await sse.respond(request, Batches(stream, reply.chunks), headers=headers)
        events = [event async for batch in stream for event in batch]
    return web.json_response(reply.object(events), headers=headers)


async def cancel(request: web.Request) -> web.Response:
    """DELETE /v1/completions/{id} and .../choices/{index}: ends a request, or one alternative of it."""
    request_id, index = request.match_info["id"], request.match_info.get("index")
    limits = request.app[LIMITS]
    if index is None:
        found = request.app[ENGINE].abort(request_id)
    else:
        found = index in map(str, range(limits.max_n)) and request.app[ENGINE].abort(request_id, int(index))
    if not found:
        what = f"request {request_id}" if index is None else f"alternative {index} of request {request_id}"
        raise NotFoundError(f"no {what} is waiting or running", param="id" if index is None else "index")
    return web.Response(status=204)


async def models(request: web.Request) -> web.Response:
    """GET /v1/models: the one model there is."""
    request.app[ENGINE].check_ready()
    model = {
        "id": request.app[LIMITS].model,
        "object": "model",
        "created": request.app[CREATED],
        "owned_by": "llamacpp",
    }
    return web.json_response({"object": "list", "data": [model]})


async def health(request: web.Request) -> web.Response:
    """GET /health: 200 when requests are taken, 503 while the model loads or the server stops, 500 when it's broken."""
    health = request.app[ENGINE].health
    body: dict[str, Any] = {
        "status": {"ready": "ok", "loading": "loading model", "dead": "error"}.get(health.status, health.status),
        "model": request.app[LIMITS].model,
        "progress": round(health.progress, 3),
        "running": health.running,
        "waiting": health.waiting,
    }
    if health.stats:
        body |= asdict(health.stats)
    if health.status == "ready":
        return web.json_response(body)
    try:
        request.app[ENGINE].check_ready()
    except UnavailableError as error:
        return _error_response(error, body, status=500 if health.status == "dead" else error.status)
    return web.json_response(body)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except SrbError as error:
        return _error_response(error)
    except web.HTTPNotFound:
        return _error_response(NotFoundError(f"there is no {request.path}"))
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        response = _error_response(MethodNotAllowedError(f"{request.path} takes {allowed}, not {request.method}"))
        response.headers["Allow"] = allowed
        return response
    except (web.HTTPException, ConnectionError):  # from aiohttp itself, which knows what to do with them
        raise
    except Exception:
        fault = uuid.uuid4().hex
        logger.exception("fault %s in %s %s", fault, request.method, request.path)
        return _error_response(SrbError(f"a fault in the server; its log has it under {fault}"))


def _error_response(error: SrbError, body: dict[str, Any] | None = None, status: int | None = None) -> web.Response:
    headers = {}
    if isinstance(error, UnavailableError) and error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    return web.json_response((body or {}) | {"error": error.body()}, status=status or error.status, headers=headers)
