"""The routes of llama-server, but for those of slots and adapters, which need the engine itself."""

from functools import partial

from srb.wire.llama_server.body import InfillFields, LlamaFields
from srb.wire.llama_server.reply import completion, infill, props
from srb.wire.route import GENERATES, Embeds, Generates, Route, Tells
from srb.wire.schemas import EVENT_STREAM, EVENTS, OBJECT, ONE_OR_MORE
from srb.wire.vectors.embeddings import LLAMA_SERVER, EmbeddingFields

_posts = partial(Route, "POST", reply=ONE_OR_MORE)

ROUTES = (
    _posts(
        "/completion",
        Generates(completion),
        "Continue a prompt, as llama-server does: chunks, an object, or an array of objects",
        others={EVENTS: EVENT_STREAM},
        body=LlamaFields,
        errors=GENERATES,
        also=("/completions",),
    ),
    _posts(
        "/infill",
        Generates(infill),
        "Fill in the text between a prefix and a suffix, if the model can",
        others={EVENTS: EVENT_STREAM},
        body=InfillFields,
        errors=(400, 413, 429, 501, 503),
    ),
    _posts(
        "/embeddings",
        Embeds(LLAMA_SERVER),
        "The embeddings of texts, with --embeddings",
        body=EmbeddingFields,
        errors=(400, 413, 429, 501, 503),
        also=("/embedding",),
    ),
    Route("GET", "/props", Tells(props), "Facts about the server and its model", OBJECT, errors=(503,)),
)
