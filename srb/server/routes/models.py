"""The routes that tell which model the server has, at the paths where clients of several servers ask for it."""

import asyncio
import time
from pathlib import Path
from typing import Any

from aiohttp import web

import srb
from srb.errors import NotFoundError
from srb.server.http.exchange import ENGINE, LIMITS, ignored_header, read_body, stats_of
from srb.server.http.refusals import SHAPES
from srb.server.routes.formats import OPENAI
from srb.server.routes.tokens import vocabulary_of
from srb.wire.ollama import chat as ollama
from srb.wire.tgi import generate as tgi

CREATED = web.AppKey("created", int)
"""When the server began, in seconds since 1970."""


def add_routes(app: web.Application) -> None:
    """Adds the routes to the application."""
    app[CREATED] = int(time.time())
    for base in ("", "/v1", OPENAI):
        app.router.add_get(f"{base}/models", models)
        app.router.add_get(f"{base}/models/", models)  # some clients write it so
    for base in ("/v1", OPENAI):
        app.router.add_get(f"{base}/models/{{id:.+}}", one_model)  # a model's name may have slashes
    app.router.add_get("/v1/model/list", models)
    app.router.add_get("/v1/model", model_card)
    app.router.add_get("/v1/internal/model/info", model_info)
    app.router.add_get("/info", tgi_info)
    for (method, path), handler in OLLAMA.items():
        app.router.add_route(method, path, handler)
        app[SHAPES][method, path] = ollama.error


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
    known = {"id": app[LIMITS].model, "object": "model", "created": app[CREATED], "owned_by": "llamacpp"}
    return known | {"capabilities": capabilities}


async def tgi_info(request: web.Request) -> web.Response:
    """GET /info: the model and its limits, as Text Generation Inference has them."""
    engine, version = request.app[ENGINE], srb.__version__
    sequences = stats_of(engine).max_sequences
    return web.json_response(tgi.info(request.app[LIMITS], engine.n_cells, sequences, version))


async def ollama_tags(request: web.Request) -> web.Response:
    """GET /api/tags: a list of the one model that the server has, as Ollama has it."""
    return web.json_response({"models": [_ollama_model(request.app)]})


async def ollama_ps(request: web.Request) -> web.Response:
    """GET /api/ps: the same list, with what Ollama tells of loaded models."""
    loaded = {"expires_at": ollama.NEVER, "context_length": vocabulary_of(request.app).n_cells}
    return web.json_response({"models": [_ollama_model(request.app) | loaded]})


async def ollama_version(request: web.Request) -> web.Response:
    """GET /api/version: the version of Ollama's interface."""
    return web.json_response({"version": ollama.VERSION})


async def ollama_show(request: web.Request) -> web.Response:
    """POST /api/show: facts about the model, as Ollama has them."""
    vocabulary, embeds = vocabulary_of(request.app), request.app[ENGINE].embedder is not None
    fields = await asyncio.to_thread(ollama.read_show, await read_body(request))
    answer = ollama.show_json(vocabulary, request.app[CREATED], embeds=embeds)
    return web.json_response(answer, headers=ignored_header(fields.ignored(vocabulary.model)))


def _ollama_model(app: web.Application) -> dict[str, Any]:
    path = app[LIMITS].model_path
    size = Path(path).stat().st_size if path else 0
    return ollama.model_json(vocabulary_of(app).model, size, app[CREATED])


OLLAMA = {
    ("GET", "/api/tags"): ollama_tags,
    ("GET", "/api/ps"): ollama_ps,
    ("GET", "/api/version"): ollama_version,
    ("POST", "/api/show"): ollama_show,
}
