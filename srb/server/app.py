"""The routes, and how errors look on the way out."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import asdict
from functools import partial
from typing import Any

from aiohttp import web

from srb.async_engine import AsyncEngine
from srb.engine.events import Event
from srb.errors import (
    AuthenticationError,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    PayloadTooLargeError,
    SrbError,
    UnavailableError,
)
from srb.request_log import logfmt
from srb.request_stream import RequestStream
from srb.server import auth, cors, docs_page, native, openai, openapi, page, sse
from srb.server.body import Limits, parse
from srb.server.metrics import CONTENT_TYPE, Metrics

logger = logging.getLogger("srb")

MAX_BODY_BYTES = 4 << 20
MAX_HEADER_CHARS = 1_000

ENGINE = web.AppKey("engine", AsyncEngine)
LIMITS = web.AppKey("limits", Limits)
METRICS = web.AppKey("metrics", Metrics)
CREATED = web.AppKey("created", int)
OPENAPI = web.AppKey("openapi", dict[str, Any])


def create_app(
    engine: AsyncEngine,
    limits: Limits,
    metrics: Metrics | None = None,
    *,
    api_keys: tuple[bytes, ...] = (),
    cors_origins: str = cors.LOCAL,
) -> web.Application:
    """The application. Starting and stopping the engine is the caller's, and so is making it fill the metrics.

    Raises `SettingsError` for a wrong origin.
    """
    middlewares = [_errors_as_json, cors.answer_preflight, auth.check_key]
    app = web.Application(middlewares=middlewares, client_max_size=MAX_BODY_BYTES + 1)
    app.on_response_prepare.append(cors.add_headers)
    app[auth.API_KEYS] = api_keys
    app[cors.ORIGINS] = cors.read_origins(cors_origins)
    app[ENGINE] = engine
    app[LIMITS] = limits
    app[METRICS] = metrics or Metrics()
    app[CREATED] = int(time.time())
    app[OPENAPI] = openapi.describe(limits, keyed=bool(api_keys))
    app.router.add_post("/v1/completions", completions)
    app.router.add_post("/v1/completions/", completions)  # some clients write it so
    app.router.add_delete("/v1/completions/{id}", cancel)
    app.router.add_delete("/v1/completions/{id}/choices/{index}", cancel)
    app.router.add_get("/v1/requests", requests)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/health", health)
    app.router.add_get("/metrics", metrics_text)
    app.router.add_get("/openapi.json", openapi_json)
    app.router.add_get("/docs", docs)
    page.add_to(app)
    return app


async def completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/completions: queues a request and answers with its events, in the format that it asks for."""
    engine, limits = request.app[ENGINE], request.app[LIMITS]
    engine.check_ready()
    engine.check_queue()
    body = await _read_body(request)
    # In a thread, because megabytes take seconds to parse and tokenize.
    parsed = await asyncio.to_thread(parse, body, limits, engine.tokenize)
    completion, created = parsed.completion, int(time.time())
    headers = {"X-Request-Id": completion.id}
    if parsed.format == "events":
        to_json = partial(native.to_json, model=limits.model, created=created, ignored=parsed.ignored)
        async with await engine.submit(completion) as stream:
            return await sse.respond(request, _Batches(stream, partial(map, to_json)), headers=headers)
    if parsed.ignored:
        names = ", ".join(parsed.ignored)[:MAX_HEADER_CHARS]
        headers["x-srb-ignored"] = names.encode("unicode_escape").decode()
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
            return await sse.respond(request, _Batches(stream, reply.chunks), headers=headers)
        events = await stream.collect()
    return web.json_response(reply.object(events), headers=headers)


class _Batches:
    """A request's events as JSON, a batch per step. Waiting for the next may be cancelled, as for a ping."""

    def __init__(self, stream: RequestStream, to_json: Callable[[list[Event]], Iterable[dict[str, Any] | str]]) -> None:
        self._stream = stream
        self._to_json = to_json

    def __aiter__(self) -> AsyncIterator[Iterable[dict[str, Any] | str]]:
        return self

    async def __anext__(self) -> Iterable[dict[str, Any] | str]:
        return self._to_json(await anext(self._stream))


async def _read_body(request: web.Request) -> bytes:
    too_large = PayloadTooLargeError(f"the body is larger than {MAX_BODY_BYTES} bytes")
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise too_large
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise too_large from None
    except web.RequestPayloadError:
        raise InvalidRequestError("the body is not in its Content-Encoding or Transfer-Encoding") from None


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


async def requests(request: web.Request) -> web.Response:
    """GET /v1/requests: what waits and what runs, in the order of arrival."""
    engine, show_prompts = request.app[ENGINE], request.app[LIMITS].show_prompts
    now, data = asyncio.get_running_loop().time(), []
    for stream in engine.requests:
        each: dict[str, Any] = {
            "id": stream.request.id,
            "status": "running" if stream.started else "waiting",
            "age_seconds": round(now - stream.arrived, 3),
            "prompts": len(stream.request.prompts),
            "count": stream.request.count,
            "running": len(stream.living) if stream.started else 0,
            "prompt_tokens": stream.request.prompt_tokens,
        }
        if show_prompts:  # in a thread, because long ones take their time
            each["prompt"] = [await asyncio.to_thread(engine.detokenize, tokens) for tokens in stream.request.prompts]
        data.append(each)
    return web.json_response({"object": "list", "data": data})


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


async def metrics_text(request: web.Request) -> web.Response:
    """GET /metrics: for Prometheus."""
    text = request.app[METRICS].text(request.app[ENGINE])
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE})


async def openapi_json(request: web.Request) -> web.Response:
    """GET /openapi.json: every path and field, for programs."""
    return web.json_response(request.app[OPENAPI])


async def docs(request: web.Request) -> web.Response:
    """GET /docs: the same, for people."""
    text = docs_page.render(request.app[OPENAPI])
    return web.Response(text=text, content_type="text/html", headers=docs_page.HEADERS)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except SrbError as error:
        return _refuse(request, error)
    except web.HTTPNotFound:
        return _refuse(request, NotFoundError(f"there is no {request.path}"))
    except web.HTTPMethodNotAllowed as error:
        allowed = ", ".join(sorted(error.allowed_methods))
        response = _refuse(request, MethodNotAllowedError(f"{request.path} takes {allowed}, not {request.method}"))
        response.headers["Allow"] = allowed
        return response
    except (web.HTTPException, ConnectionError):  # from aiohttp itself, which knows what to do with them
        raise
    except Exception:
        fault = uuid.uuid4().hex
        logger.exception("fault %s in %s %s", fault, request.method, request.path)
        return _error_response(SrbError(f"a fault in the server; its log has it under {fault}"))


def _refuse(request: web.Request, error: SrbError) -> web.Response:
    """Answers with an error, and logs that."""
    line = logfmt(
        event="error",
        method=request.method,
        path=request.path,
        status=error.status,
        code=error.code,
        param=error.param,
        message=error.message,
    )
    logger.info("%s", line)
    return _error_response(error)


def _error_response(error: SrbError, body: dict[str, Any] | None = None, status: int | None = None) -> web.Response:
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, AuthenticationError):
        headers["WWW-Authenticate"] = "Bearer"
    return web.json_response((body or {}) | {"error": error.body()}, status=status or error.status, headers=headers)
