"""The routes of Ollama."""

from functools import partial

from srb.wire import route
from srb.wire.embeddings import EmbeddingFields
from srb.wire.ollama import chat as ollama
from srb.wire.ollama.chat import OllamaChatFields, OllamaGenerateFields, OllamaShowFields
from srb.wire.reply import LINES as FRAME
from srb.wire.route import Embeds, Errors, Generates, Tells
from srb.wire.schemas import INTEGER, LINES, NUMBER, STRING, list_of, object_of

_ERRORS = Errors(ollama.error, object_of(error=STRING))
_MODELS = object_of(models=list_of(object_of(name=STRING, model=STRING, size=INTEGER)))
_ANSWER, _LINES = object_of(model=STRING), {LINES: {"description": "a JSON object in each line"}}
_VECTOR = object_of(embedding=list_of(NUMBER))

_get, _post = partial(route.get, error=_ERRORS), partial(route.post, error=_ERRORS)
_generates = partial(_post, reply=_ANSWER, others=_LINES)
_embeds = partial(_post, body=EmbeddingFields)

ROUTES = (
    _generates("/api/generate", Generates(ollama.generate, FRAME), body=OllamaGenerateFields),
    _generates("/api/chat", Generates(ollama.chat, FRAME), body=OllamaChatFields),
    _post("/api/show", Tells(ollama.show_model), object_of(template=STRING), body=OllamaShowFields),
    _embeds(
        "/api/embed",
        Embeds(ollama.EMBED),
        _ANSWER,
        says="The embeddings of texts, as Ollama has them, with --embeddings",
    ),
    _embeds("/api/embeddings", Embeds(ollama.EMBED_ONE), _VECTOR, says="The embedding of the text in prompt"),
    _get("/api/tags", Tells(ollama.tags), _MODELS),
    _get("/api/ps", Tells(ollama.ps), _MODELS),
    _get("/api/version", Tells(ollama.version), object_of(version=STRING)),
)
