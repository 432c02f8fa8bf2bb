"""The routes of KoboldAI's interface, as KoboldCpp has them."""

from collections.abc import Callable
from functools import partial
from typing import Any

from srb.wire.kobold.body import CountFields, IdsFields, KeyFields, KoboldFields, default_length
from srb.wire.kobold.generations import abort, check, perf
from srb.wire.kobold.reply import detokenize, generate, token_count
from srb.wire.reply.frames import MESSAGE
from srb.wire.route import GENERATES, READS, Generates, Route, Tells
from srb.wire.schemas import BOOLEAN, EVENTS, INTEGER, OBJECT, STRING, list_of, object_of
from srb.wire.serving import Serving

UNITED_VERSION, CPP_VERSION = "1.2.5", "1.102"
"""The versions of KoboldAI United's and KoboldCpp's interfaces that srb has. Clients decide by them what to send."""

_MISSING = (
    *("txt2img", "vision", "audio", "transcribe", "multiplayer", "websearch", "tts", "embeddings", "savedata"),
    *("guidance", "admin"),
)
"""Features that /api/extra/version reports as missing. If one were true, clients would use routes that srb lacks."""


def _version(serving: Serving) -> dict[str, Any]:
    missing = dict.fromkeys(_MISSING, False)
    return {"result": "KoboldCpp", "version": CPP_VERSION, "llm": True, "protected": serving.has_keys} | missing


def _fact(path: str, summary: str, tell: Callable[[Serving], Any], **schema: Any) -> Route:
    """A path that only tells one fact, in the first field of its answer, or several ones."""
    (first, *_) = schema

    def told(_body: bytes, serving: Serving) -> tuple[Any, list[str]]:
        value = tell(serving)
        return value if isinstance(value, dict) else {first: value}, []

    return Route("GET", path, Tells(told), summary, object_of(**schema), errors=(503,))


_RESULTS = object_of(results=list_of(object_of(text=STRING)))
_generates = partial(Route, "POST", body=KoboldFields, errors=GENERATES)
_finds = partial(Route, "POST", body=KeyFields, errors=(400, 413))

ROUTES = (
    _generates(
        "/api/v1/generate",
        Generates(generate, MESSAGE),
        "Continue a prompt, as KoboldAI does: a result for each alternative",
        _RESULTS,
    ),
    _generates(
        "/api/extra/generate/stream",
        Generates(partial(generate, stream=True), MESSAGE),
        "Continue a prompt with one alternative, as a stream of KoboldCpp's events",
        others={EVENTS: {"description": 'lines `event: message` and `data: {"token", "finish_reason"}`'}},
    ),
    _finds("/api/extra/generate/check", Tells(check), "The texts so far of the request with this genkey", _RESULTS),
    Route(
        "GET", "/api/extra/generate/check", Tells(check), "The texts so far of the request without a genkey", _RESULTS
    ),
    _finds(
        "/api/extra/abort", Tells(abort), "End the requests with this genkey", object_of(success=BOOLEAN, done=BOOLEAN)
    ),
    Route(
        "POST",
        "/api/extra/tokencount",
        Tells(token_count),
        "The tokens of a text, as KoboldCpp has them",
        object_of(value=INTEGER, ids=list_of(INTEGER)),
        body=CountFields,
        errors=READS,
        also=("/api/extra/tokenize",),
        also_says="The same as POST /api/extra/tokencount",
    ),
    Route(
        "POST",
        "/api/extra/detokenize",
        Tells(detokenize),
        "The text of some tokens, as KoboldCpp has it",
        object_of(result=STRING, success=BOOLEAN),
        body=IdsFields,
        errors=READS,
    ),
    Route(
        "GET",
        "/api/extra/perf",
        Tells(perf),
        "How fast the last request was, as KoboldCpp says it",
        OBJECT,
        errors=(503,),
    ),
    _fact("/api/v1/model", "The model's name, as KoboldAI has it", lambda it: it.vocabulary.model, result=STRING),
    _fact("/api/v1/info/version", "The version of KoboldAI's interface", lambda _: UNITED_VERSION, result=STRING),
    _fact("/api/v1/config/max_context_length", "The size of the context", lambda it: it.engine.n_cells, value=INTEGER),
    _fact(
        "/api/v1/config/max_length",
        "How much is generated if max_length isn't sent",
        lambda it: default_length(it.engine.n_cells),
        value=INTEGER,
    ),
    _fact("/api/extra/true_max_context_length", "The size of the context", lambda it: it.engine.n_cells, value=INTEGER),
    _fact("/api/extra/version", "The version of KoboldCpp's interface", _version, result=STRING, version=STRING),
)
