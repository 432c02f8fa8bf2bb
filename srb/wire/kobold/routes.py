"""The routes of KoboldAI's interface, as KoboldCpp has them."""

from collections.abc import Callable
from functools import partial
from typing import Any

from srb.wire.kobold.body import CountFields, IdsFields, KeyFields, KoboldFields, default_length
from srb.wire.kobold.generations import abort, check, perf
from srb.wire.kobold.reply import detokenize, generate, token_count
from srb.wire.reply import MESSAGE
from srb.wire.route import Generates, Route, Tells, get, post
from srb.wire.schemas import BOOLEAN, EVENTS, INTEGER, OBJECT, STRING, list_of, object_of
from srb.wire.serving import Serving, Told

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


def _fact(path: str, says: str, tell: Callable[[Serving], Any], **schema: Any) -> Route:
    """A path that only tells facts. tell: makes the answer, or only its first field."""

    def told(_body: bytes, serving: Serving) -> Told:
        value = tell(serving)
        return value if isinstance(value, dict) else {next(iter(schema)): value}, []

    return get(path, Tells(told), object_of(**schema), says=says)


_CONFIG = "/api/v1/config"
_RESULTS = object_of(results=list_of(object_of(text=STRING)))
_ENDED, _TEXT = object_of(success=BOOLEAN, done=BOOLEAN), object_of(result=STRING, success=BOOLEAN)
_EVENTS = {EVENTS: {"description": 'lines `event: message` and `data: {"token", "finish_reason"}`'}}

ROUTES = (
    post("/api/v1/generate", Generates(generate), _RESULTS, body=KoboldFields),
    post(
        "/api/extra/generate/stream",
        Generates(partial(generate, stream=True), MESSAGE),
        others=_EVENTS,
        body=KoboldFields,
        says="Continue a prompt with one alternative, as a stream of KoboldCpp's events",
    ),
    post("/api/extra/generate/check", Tells(check, always=True), _RESULTS, body=KeyFields),
    get(
        "/api/extra/generate/check",
        Tells(check, always=True),
        _RESULTS,
        says="The texts so far of the request without a genkey",
    ),
    post("/api/extra/abort", Tells(abort, always=True), _ENDED, body=KeyFields),
    post(
        "/api/extra/tokencount",
        Tells(token_count),
        object_of(value=INTEGER, ids=list_of(INTEGER)),
        body=CountFields,
        also=("/api/extra/tokenize",),
        also_says="The same as POST /api/extra/tokencount",
    ),
    post("/api/extra/detokenize", Tells(detokenize), _TEXT, body=IdsFields),
    get("/api/extra/perf", Tells(perf), OBJECT),
    _fact("/api/v1/model", "The model's name, as KoboldAI has it", lambda it: it.vocabulary.model, result=STRING),
    _fact("/api/v1/info/version", "The version of KoboldAI's interface", lambda _: UNITED_VERSION, result=STRING),
    _fact(f"{_CONFIG}/max_context_length", "The size of the context", lambda it: it.engine.n_cells, value=INTEGER),
    _fact(
        f"{_CONFIG}/max_length",
        "How much is generated if max_length isn't sent",
        lambda it: default_length(it.engine.n_cells),
        value=INTEGER,
    ),
    _fact("/api/extra/true_max_context_length", "The size of the context", lambda it: it.engine.n_cells, value=INTEGER),
    _fact("/api/extra/version", "The version of KoboldCpp's interface", _version, result=STRING, version=STRING),
)
