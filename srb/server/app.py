"""Makes the application of all routes."""

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from aiohttp import web

from srb.server import access, openapi
from srb.server import openapi as docs_page
from srb.server.http import peers as elsewhere
from srb.server.http.bodies import send_answer
from srb.server.http.connections import CONNECTIONS, Connections
from srb.server.http.exchange import ANSWERS, ENGINE, FETCH, LIMITS, Fetch
from srb.server.http.refusals import ERRORS, errors_as_json
from srb.server.routes import (
    about,
    adapters,
    embeddings,
    history,
    mount,
    page,
    requests,
    responses,
    score,
    slots,
    stories,
)
from srb.server.routes.about import DESCRIPTION, METRICS
from srb.server.routes.embeddings import TURNS, Turns, end_turns
from srb.server.routes.metrics import Metrics
from srb.server.routes.mount import resources_of
from srb.server.routes.score import TABLES
from srb.server.routes.slots import SLOT_FOLDER
from srb.server.run.keeper import KEEPER, Keeper
from srb.serving.engine_client import EngineClient
from srb.wire.limits import Limits
from srb.wire.vendors import ROUTES as VENDORS

_OWN = (about, requests, score, responses, stories, history, embeddings, slots, adapters, page)
ROUTES = (*(route for each in _OWN for route in each.ROUTES), *VENDORS)
"""All that the server answers: its own routes, and those of the vendors whose formats it has."""

_RESOURCES = resources_of(ROUTES)  # made once, since tests make hundreds of applications
_ERRORS = {(route.method, path): route.error for route in ROUTES for path in route.paths}

SERVER_OPTIONS: dict[str, Any] = {
    "handler_cancellation": True,  # a client that closes the connection cancels its request
    "auto_decompress": False,  # if it were True, a body would be inflated before its API key is checked
    "lingering_time": 0,  # see `send_answer`
    "access_log": None,
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
    keeper: Keeper | None = None,
    slot_folder: Path | None = None,
    fetch: Fetch | None = None,
    shares_prompts: bool = False,
    connections: Connections | None = None,
) -> web.Application:
    """The application, to be served with `SERVER_OPTIONS`.

    The caller starts and stops the engine, makes it fill the metrics, and closes the history of the keeper.

    keeper: keeps requests and stories; left out: nothing is kept.
    fetch: gets images and sounds that requests name by their addresses; left out: such requests are refused.
    slot_folder: the folder where slots are saved. `limits.saved_slots` says how many slots there are.
    shares_prompts: whether what is evaluated is shared between API keys, and not only within each.
    connections: the connections that a `Runner` accepts for the application.

    Raises `SettingsError` for a wrong origin.
    """
    checks = [access.check_host, access.answer_preflight, access.check_origin, access.check_key]
    app = web.Application(middlewares=[send_answer, errors_as_json, *checks, elsewhere.ask_others])
    app.cleanup_ctx.append(elsewhere.session)
    app.on_response_prepare.append(access.add_headers)
    app[access.API_KEYS] = api_keys
    app[access.SHARES_PROMPTS] = shares_prompts
    app[access.HOSTS] = allowed_hosts
    app[access.ORIGINS] = access.read_origins(cors_origins)
    app[access.LOGGED] = set()
    app[CONNECTIONS] = connections or Connections()
    app[ENGINE] = engine
    app[KEEPER] = keeper or Keeper()
    app[LIMITS] = limits
    app[SLOT_FOLDER] = slot_folder
    app[FETCH] = fetch
    app[ANSWERS] = WeakKeyDictionary()
    app[ERRORS] = _ERRORS
    app[METRICS] = metrics or Metrics()
    description: Callable[[], tuple[bytes, bytes]] = cache(partial(_description, limits, keyed=bool(api_keys)))
    app[DESCRIPTION] = description
    mount.begin(app)
    app[TABLES] = {}
    app[TURNS] = Turns()
    app.on_cleanup.append(end_turns)
    app.on_shutdown.append(stories.end_feeds)
    for each in _RESOURCES:
        app.router.register_resource(each)
    return app


def _description(limits: Limits, *, keyed: bool) -> tuple[bytes, bytes]:
    """The description as JSON and as a page. This takes tenths of a second, so it is made once, when it's asked for."""
    described = openapi.describe(ROUTES, limits, keyed=keyed)
    return json.dumps(described).encode(), docs_page.render(described).encode()
