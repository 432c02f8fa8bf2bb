"""The routes of Ollama."""

from functools import partial

from srb.wire.ollama import chat as ollama
from srb.wire.reply.frames import LINES as AS_LINES
from srb.wire.route import GENERATES, READS, Embeds, Errors, Generates, Route, Tells
from srb.wire.schemas import INTEGER, LINES, NUMBER, STRING, list_of, object_of
from srb.wire.vectors.embeddings import EmbeddingFields

_ERRORS = Errors(ollama.error, object_of(error=STRING))
_MODELS = object_of(models=list_of(object_of(name=STRING, model=STRING, size=INTEGER)))
_LINES = {LINES: {"description": "a JSON object in each line"}}

_gets = partial(Route, "GET", error=_ERRORS, errors=(503,))
_posts = partial(Route, "POST", error=_ERRORS)
_generates = partial(_posts, reply=object_of(model=STRING), others=_LINES, errors=GENERATES)
_embeds = partial(_posts, body=EmbeddingFields, errors=(400, 413, 429, 501, 503))

ROUTES = (
    _generates(
        "/api/generate",
        Generates(ollama.generate, AS_LINES),
        "Answer a prompt, as Ollama does: lines, or an object",
        body=ollama.OllamaGenerateFields,
    ),
    _generates(
        "/api/chat",
        Generates(ollama.chat, AS_LINES),
        "Go on with a conversation, as Ollama does: lines, or an object",
        body=ollama.OllamaChatFields,
    ),
    _posts(
        "/api/show",
        Tells(ollama.show_model),
        "Facts about the model, as Ollama has them",
        object_of(template=STRING),
        body=ollama.OllamaShowFields,
        errors=READS,
    ),
    _embeds(
        "/api/embed",
        Embeds(ollama.EMBED),
        "The embeddings of texts, as Ollama has them, with --embeddings",
        object_of(model=STRING),
    ),
    _embeds(
        "/api/embeddings",
        Embeds(ollama.EMBED_ONE),
        "The embedding of the text in prompt",
        object_of(embedding=list_of(NUMBER)),
    ),
    _gets("/api/tags", Tells(ollama.tags), "The one model there is, as Ollama has it", _MODELS),
    _gets("/api/ps", Tells(ollama.ps), "The same, as loaded", _MODELS),
    _gets("/api/version", Tells(ollama.version), "The version of Ollama's interface", object_of(version=STRING)),
)
