"""The routes that tell which model the server has, at the paths where clients of several servers ask for it."""

from typing import Any

from aiohttp import web

from srb.errors import NotFoundError
from srb.server.http.exchange import ENGINE, LIMITS
from srb.server.routes.formats import CREATED, OPENAI


def add_routes(app: web.Application) -> None:
    """Adds the routes to the application."""
    for base in ("", "/v1", OPENAI):
        app.router.add_get(f"{base}/models", models)
        app.router.add_get(f"{base}/models/", models)  # some clients write it so
    for base in ("/v1", OPENAI):
        app.router.add_get(f"{base}/models/{{id:.+}}", one_model)  # a model's name may have slashes
    app.router.add_get("/v1/model/list", models)
    app.router.add_get("/v1/model", model_card)
    app.router.add_get("/v1/internal/model/info", model_info)


async def models(request: web.Request) -> web.Response:
    """GET /v1/models: a list of the one model that the server has."""
    return web.json_response({"object": "list", "data": [_model(request.app)]})


async def one_model(request: web.Request) -> web.Response:
    """GET /v1/models/{id}."""
    model, name = _model(request.app), request.match_info["id"]
    if model["id"] not in (name, name.removesuffix("/")):
        raise NotFoundError(f"there is no model {name}; there is {model['id']}", param="model", code="model_not_found")
    return web.json_response(model)


async def model_card(request: web.Request) -> web.Response:
    """GET /v1/model: the model with the size of its context, as TabbyAPI has it."""
    model = _model(request.app)
    return web.json_response(model | {"parameters": {"max_seq_len": request.app[ENGINE].n_cells}})


async def model_info(request: web.Request) -> web.Response:
    """GET /v1/internal/model/info: the model's name, as text-generation-webui has it.

    SillyTavern asks for it before it counts tokens.
    """
    model = _model(request.app)
    return web.json_response({"model_name": model["id"], "lora_names": [], "loader": "llama.cpp"})


def _model(app: web.Application) -> dict[str, Any]:
    capabilities = ["completion", "multimodal"] if app[ENGINE].media_kinds else ["completion"]
    known = {"id": app[LIMITS].model, "object": "model", "created": int(app[CREATED]), "owned_by": "llamacpp"}
    return known | {"capabilities": capabilities}
