"""llama-server's routes, except for slots and adapters, which need the engine itself."""

from srb.wire.embeddings import LLAMA_SERVER, EmbeddingFields
from srb.wire.llama_server.body import InfillFields, LlamaFields
from srb.wire.llama_server.reply import completion, infill, props
from srb.wire.route import (
    EVENT_STREAM,
    EVENTS,
    OBJECT,
    ONE_OR_MORE,
    GenerateHandler,
    JsonHandler,
    get,
    post,
)

_EVENTS = {EVENTS: EVENT_STREAM}

ROUTES = (
    post(
        "/completion",
        GenerateHandler(completion),
        ONE_OR_MORE,
        other_schemas=_EVENTS,
        body=LlamaFields,
        aliases=("/completions",),
    ),
    post("/infill", GenerateHandler(infill), ONE_OR_MORE, other_schemas=_EVENTS, body=InfillFields, errors=(501,)),
    post(
        "/embeddings",
        LLAMA_SERVER,
        ONE_OR_MORE,
        body=EmbeddingFields,
        summary="Make embeddings of texts, with --embeddings",
        aliases=("/embedding",),
    ),
    get("/props", JsonHandler(props), OBJECT, aliases=("/openai/props",)),
)
