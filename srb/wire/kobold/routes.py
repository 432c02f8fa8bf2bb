"""KoboldAI's routes, as KoboldCpp has them."""

from collections.abc import Callable
from functools import partial
from typing import Any

from srb.wire.context import RequestContext
from srb.wire.kobold.body import CountFields, IdsFields, KeyFields, KoboldFields, default_length
from srb.wire.kobold.reply import abort, check, detokenize, last_logprobs, parse_generate, perf, token_count
from srb.wire.route import (
    BOOLEAN,
    EVENTS,
    INTEGER,
    OBJECT,
    STRING,
    GenerateHandler,
    JsonHandler,
    Route,
    get,
    list_of,
    object_of,
    post,
)

UNITED_VERSION, CPP_VERSION = "1.2.5", "1.102"
"""The versions of KoboldAI United's and KoboldCpp's APIs that srb has. Clients decide by them what they send."""

_MISSING = (
    *("txt2img", "vision", "audio", "transcribe", "multiplayer", "websearch", "tts", "embeddings", "savedata"),
    *("guidance", "admin"),
)
"""Features that /api/extra/version reports as missing, because srb lacks their routes."""


def _version(context: RequestContext) -> dict[str, Any]:
    missing = dict.fromkeys(_MISSING, False)
    return {"result": "KoboldCpp", "version": CPP_VERSION, "llm": True, "protected": context.has_keys} | missing


def _fact(path: str, summary: str, value_of: Callable[[RequestContext], Any], **schema: Any) -> Route:
    """A route that shows a fact. value_of: returns the response, or its first field."""

    def answer(_fields: None, context: RequestContext) -> dict[str, Any]:
        value = value_of(context)
        return value if isinstance(value, dict) else {next(iter(schema)): value}

    return get(path, JsonHandler(answer), object_of(**schema), summary=summary)


_CONFIG = "/api/v1/config"
_RESULTS = object_of(results=list_of(object_of(text=STRING)))
_ENDED, _TEXT = object_of(success=BOOLEAN, done=BOOLEAN), object_of(result=STRING, success=BOOLEAN)
_EVENTS = {EVENTS: {"description": 'lines `event: message` and `data: {"token", "finish_reason"}`'}}

ROUTES = (
    post("/api/v1/generate", GenerateHandler(parse_generate), _RESULTS, body=KoboldFields),
    post(
        "/api/extra/generate/stream",
        GenerateHandler(partial(parse_generate, stream=True)),
        other_schemas=_EVENTS,
        body=KoboldFields,
        summary="Continue a prompt with one alternative, as a stream of KoboldCpp's events",
    ),
    post("/api/extra/generate/check", JsonHandler(check, before_load=True), _RESULTS, body=KeyFields),
    get(
        "/api/extra/generate/check",
        JsonHandler(check, before_load=True),
        _RESULTS,
        summary="Show the texts so far of the request without a genkey",
    ),
    post("/api/extra/last_logprobs", JsonHandler(last_logprobs, before_load=True), OBJECT, body=KeyFields),
    post("/api/extra/abort", JsonHandler(abort, before_load=True), _ENDED, body=KeyFields),
    post(
        "/api/extra/tokencount",
        JsonHandler(token_count),
        object_of(value=INTEGER, ids=list_of(INTEGER)),
        body=CountFields,
        aliases=("/api/extra/tokenize",),
    ),
    post("/api/extra/detokenize", JsonHandler(detokenize), _TEXT, body=IdsFields),
    get("/api/extra/perf", JsonHandler(perf), OBJECT),
    _fact(
        "/api/v1/model",
        "Show the model's name, as in KoboldAI",
        lambda it: it.engine.model and it.limits.model,  # raises an error until the model is loaded
        result=STRING,
    ),
    _fact("/api/v1/info/version", "Show the version of KoboldAI's API", lambda _: UNITED_VERSION, result=STRING),
    _fact(
        f"{_CONFIG}/max_context_length",
        "Show the size of the context",
        lambda it: it.engine.model.n_cells,
        value=INTEGER,
    ),
    _fact(
        f"{_CONFIG}/max_length",
        "Show the default of max_length",
        lambda it: default_length(it.engine.model.n_cells),
        value=INTEGER,
    ),
    _fact(
        "/api/extra/true_max_context_length",
        "Show the size of the context",
        lambda it: it.engine.model.n_cells,
        value=INTEGER,
    ),
    _fact("/api/extra/version", "Show the version of KoboldCpp's API", _version, result=STRING, version=STRING),
)
