"""`create_app` makes the aiohttp application: middleware, shared state, and all routes."""

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import web

from srb.server import access, openapi
from srb.server.http import proxy
from srb.server.http.bodies import send_response
from srb.server.http.connections import CONNECTIONS, MAX_HEADER_BYTES, MAX_HEADERS, Connections, close_after_stream
from srb.server.http.errors import ERROR_FORMATS, error_middleware
from srb.server.http.exchange import ENGINE, FETCH, LIMITS, REPLIES, Fetch
from srb.server.routes import about, documents, history, mount, pooling, requests, slots
from srb.server.routes.about import DESCRIPTION, METRICS
from srb.server.routes.documents import PANDOC
from srb.server.routes.metrics import Metrics
from srb.server.routes.pooling import EMBEDDING_QUEUE, TABLES, EmbeddingQueue, close_embedding_queue
from srb.server.routes.slots import SLOT_FOLDER
from srb.server.run.history import HISTORY, HistoryService
from srb.server.run.pandoc import Pandoc
from srb.serving.engine_client import EngineClient
from srb.wire.limits import Limits
from srb.wire.vendors import ROUTES as VENDORS

_OWN = (about, requests, history, documents, pooling, slots)
ROUTES = (*(route for each in _OWN for route in each.ROUTES), *VENDORS)
"""All routes: the server's own, and those of the vendors."""

_RESOURCES = mount.resources_of(ROUTES)  # made once, since tests make hundreds of applications
_ERROR_FORMATS = {(route.method, path): route.error_format for route in ROUTES for path in route.paths}

SERVER_OPTIONS: dict[str, Any] = {
    "handler_cancellation": True,  # closing the connection cancels the request
    "auto_decompress": False,  # else a body would be decompressed before the API key is checked
    "lingering_time": 0,  # `send_response`
    "access_log": None,
    "max_headers": MAX_HEADERS,
    "max_field_size": MAX_HEADER_BYTES,
    "max_line_size": MAX_HEADER_BYTES,
}
"""The arguments for `web.AppRunner`, with which aiohttp must serve the application."""


def create_app(
    engine: EngineClient,
    limits: Limits,
    metrics: Metrics | None = None,
    *,
    api_keys: tuple[bytes, ...] = (),
    cors_origins: str = access.LOCAL_ORIGINS,
    allowed_hosts: access.Hosts = access.LOCAL_HOSTS,
    history_service: HistoryService | None = None,
    slot_folder: Path | None = None,
    fetch: Fetch | None = None,
    shares_prompts: bool = False,
    connections: Connections | None = None,
) -> web.Application:
    """The application, to be served with `SERVER_OPTIONS`. Raises `SettingsError` if an origin is wrong.

    The caller starts and stops the engine, passes its measurements to `metrics`, and closes the history. Without API
    keys no key is needed, without a history nothing is stored, without `fetch` requests with URLs are refused. Slots
    are saved in `slot_folder`; `limits.saved_slots` is their number. `shares_prompts`: prefix caching works across API
    keys. `connections` are those that a `Runner` accepts for the application.
    """
    checks = [access.check_host, access.answer_preflight, access.check_origin, access.check_key]
    app = web.Application(middlewares=[send_response, error_middleware, *checks, proxy.forward_to_peers])
    app.cleanup_ctx.append(proxy.session)
    app.on_response_prepare.extend((access.add_cors_headers, close_after_stream))
    app[access.API_KEYS] = api_keys
    app[access.SHARES_PROMPTS] = shares_prompts
    app[access.HOSTS] = allowed_hosts
    app[access.ORIGINS] = access.read_origins(cors_origins)
    app[access.LOGGED] = set()
    app[CONNECTIONS] = connections or Connections()
    app[ENGINE] = engine
    app[HISTORY] = history_service or HistoryService()
    app[LIMITS] = limits
    app[SLOT_FOLDER] = slot_folder
    app[PANDOC] = Pandoc()
    app[FETCH] = fetch
    app[REPLIES] = WeakKeyDictionary()
    app[ERROR_FORMATS] = _ERROR_FORMATS
    app[METRICS] = metrics or Metrics()
    description: Callable[[], tuple[bytes, bytes]] = cache(partial(_description, limits, keyed=bool(api_keys)))
    app[DESCRIPTION] = description
    mount.setup(app)
    app[TABLES] = {}
    app[EMBEDDING_QUEUE] = EmbeddingQueue()
    app.on_cleanup.append(close_embedding_queue)
    app.on_shutdown.append(history.close_feeds)
    for each in _RESOURCES:
        app.router.register_resource(each)
    return app


def _description(limits: Limits, *, keyed: bool) -> tuple[bytes, bytes]:
    """The description as JSON and as HTML. This takes tenths of a second, so it is made once, on the first request."""
    described = openapi.describe(ROUTES, limits, keyed=keyed)
    return json.dumps(described).encode(), openapi.render(described).encode()
