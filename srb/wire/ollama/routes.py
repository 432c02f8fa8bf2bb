"""Ollama's routes."""

from functools import partial

from srb.wire import route
from srb.wire.embeddings import EmbeddingFields
from srb.wire.ollama import chat as ollama
from srb.wire.ollama.chat import OllamaChatFields, OllamaGenerateFields, OllamaShowFields
from srb.wire.route import (
    INTEGER,
    JSON_LINES,
    NUMBER,
    STRING,
    ErrorFormat,
    GenerateHandler,
    JsonHandler,
    list_of,
    object_of,
)

_ERRORS = ErrorFormat(ollama.error_json, object_of(error=STRING))
_MODELS = object_of(models=list_of(object_of(name=STRING, model=STRING, size=INTEGER, digest=STRING)))
_ANSWER, _LINES = object_of(model=STRING), {JSON_LINES: {"description": "a JSON object in each line"}}
_VECTOR = object_of(embedding=list_of(NUMBER))

_get, _post = partial(route.get, error_format=_ERRORS), partial(route.post, error_format=_ERRORS)
_generates = partial(_post, schema=_ANSWER, other_schemas=_LINES)
_embeds = partial(_post, body=EmbeddingFields)

ROUTES = (
    _generates("/api/generate", GenerateHandler(ollama.parse_generate), body=OllamaGenerateFields),
    _generates("/api/chat", GenerateHandler(ollama.parse_chat), body=OllamaChatFields),
    _post("/api/show", JsonHandler(ollama.show_model), object_of(template=STRING), body=OllamaShowFields),
    _embeds(
        "/api/embed",
        ollama.EMBED,
        _ANSWER,
        summary="Make embeddings of texts, as in Ollama, with --embeddings",
    ),
    _embeds(
        "/api/embeddings",
        ollama.EMBED_ONE,
        _VECTOR,
        summary="Make the embedding of the text in prompt",
    ),
    _get("/api/tags", JsonHandler(ollama.tags), _MODELS),
    _get("/api/ps", JsonHandler(ollama.ps), _MODELS),
    _get("/api/version", JsonHandler(ollama.version), object_of(version=STRING)),
)
