"""The routes of llama-server, but for those of slots and adapters, which need the engine itself."""

from srb.wire.embeddings import LLAMA_SERVER, EmbeddingFields
from srb.wire.llama_server.body import InfillFields, LlamaFields
from srb.wire.llama_server.reply import completion, infill, props
from srb.wire.route import Embeds, Generates, Tells, get, post
from srb.wire.schemas import EVENT_STREAM, EVENTS, OBJECT, ONE_OR_MORE

_EVENTS = {EVENTS: EVENT_STREAM}

ROUTES = (
    post("/completion", Generates(completion), ONE_OR_MORE, others=_EVENTS, body=LlamaFields, also=("/completions",)),
    post("/infill", Generates(infill), ONE_OR_MORE, others=_EVENTS, body=InfillFields, errors=(501,)),
    post(
        "/embeddings",
        Embeds(LLAMA_SERVER),
        ONE_OR_MORE,
        body=EmbeddingFields,
        says="The embeddings of texts, with --embeddings",
        also=("/embedding",),
    ),
    get("/props", Tells(props), OBJECT),
)
