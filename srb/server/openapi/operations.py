"""The table that the OpenAPI description is made from: every path of the server, with its bodies and its answers."""

from dataclasses import replace

from srb.server.openapi.format_operations import FORMAT_OPERATIONS
from srb.server.openapi.history_operations import HISTORY_OPERATIONS
from srb.server.openapi.schemas import (
    BOOLEAN,
    CHAT_COMPLETION,
    COMPLETION,
    COUNTED,
    COUNTED_CHAT,
    ENCODED,
    EVENT_STREAM,
    EVENTS,
    HEALTH,
    INTEGER,
    JSON,
    MODEL,
    MODELS,
    ONE_OR_MORE,
    REQUEST,
    RESULTS,
    STATE,
    STRING,
    TOKENS,
    TREE,
    Operation,
    list_of,
    object_of,
)
from srb.server.routes.embeddings import RANKING, STYLES
from srb.wire.kobold.body import CountFields, IdsFields, KeyFields, KoboldFields
from srb.wire.llama_server.body import AdapterFields, InfillFields, LlamaFields, SlotFields
from srb.wire.native.explore import ExploreFields
from srb.wire.request.completion_fields import CompletionFields
from srb.wire.tokens.texts import DetokenizeFields, EncodeFields, TemplateFields, TokenizeFields
from srb.wire.vectors.embeddings import EmbeddingFields
from srb.wire.vectors.rerank import RerankFields

_COMPLETION = Operation(
    method="POST",
    path="/v1/completions",
    summary="Continue a prompt, in n alternatives: native events, OpenAI's chunks, or OpenAI's object",
    body=CompletionFields,
    reply={EVENTS: EVENT_STREAM, JSON: COMPLETION},
    errors=(400, 404, 413, 429, 501, 503),
)
_LIKE_CHAT = "The same as POST /v1/chat/completions"

_CHAT = Operation(
    method="POST",
    path="/v1/chat/completions",
    summary="Continue a conversation, in n alternatives: OpenAI's object or chunks, or native events",
    body=CompletionFields,
    reply={EVENTS: EVENT_STREAM, JSON: CHAT_COMPLETION},
    errors=(400, 404, 413, 429, 501, 503),
)
_MODELS = Operation(
    method="GET",
    path="/v1/models",
    summary="The model of the server, as a list of one",
    reply={JSON: MODELS},
    errors=(503,),
)
_MODEL = Operation(
    method="GET",
    path="/v1/models/{id}",
    summary="The model of this name",
    reply={JSON: MODEL},
    errors=(404, 503),
)
OPERATIONS = (
    _COMPLETION,
    replace(
        _COMPLETION,
        path="/openai/v1/completions",
        summary="The same as POST /v1/completions, but with OpenAI's object if neither stream nor model is sent",
    ),
    _CHAT,
    replace(_CHAT, path="/openai/v1/chat/completions", summary=_LIKE_CHAT),
    replace(_CHAT, path="/chat/completions", summary=_LIKE_CHAT),
    Operation(
        method="POST",
        path="/v1/explore",
        summary="The tree of a prompt's likely continuations: its nodes, the likeliest first",
        body=ExploreFields,
        reply={EVENTS: TREE},
        errors=(400, 413, 429, 503),
    ),
    Operation(
        method="GET",
        path="/v1/completions/{id}",
        summary="How far a request is, with its texts so far; for chats, too",
        reply={JSON: STATE},
        errors=(404, 410),
    ),
    *(
        Operation(
            method="GET",
            path=path,
            summary="Read a request again: all of it in its own format, or the native events behind one event",
            query={"starting_after": "the id of the last native event that was read; the header Last-Event-ID wins"},
            reply={EVENTS: EVENT_STREAM, JSON: ONE_OR_MORE},
            errors=(400, 404, 410, 503),
        )
        for path in ("/v1/completions/{id}/events", "/v1/chat/completions/{id}/events")
    ),
    Operation(
        method="DELETE",
        path="/v1/completions/{id}",
        summary="End a request, or forget one that has finished",
        errors=(404,),
    ),
    Operation(
        method="DELETE",
        path="/v1/completions/{id}/choices/{index}",
        summary="End one alternative; the others go on",
        errors=(404,),
    ),
    Operation(
        method="GET",
        path="/v1/requests",
        summary="The requests that wait and run",
        reply={JSON: object_of(object={"const": "list"}, data=list_of(REQUEST))},
    ),
    Operation(method="GET", path="/metrics", summary="Measurements for Prometheus", reply={"text/plain": STRING}),
    _MODELS,
    *(replace(_MODELS, path=path, summary="The same as GET /v1/models") for path in ("/openai/v1/models", "/models")),
    _MODEL,
    replace(_MODEL, path="/openai/v1/models/{id}", summary="The same as GET /v1/models/{id}"),
    *(
        Operation(
            method="POST",
            path=path,
            summary="Continue a prompt, as llama-server does: chunks, an object, or an array of objects",
            body=LlamaFields,
            reply={EVENTS: EVENT_STREAM, JSON: ONE_OR_MORE},
            errors=(400, 413, 429, 503),
        )
        for path in ("/completion", "/completions")
    ),
    Operation(
        method="POST",
        path="/infill",
        summary="Fill in the text between a prefix and a suffix, if the model can",
        body=InfillFields,
        reply={EVENTS: EVENT_STREAM, JSON: ONE_OR_MORE},
        errors=(400, 413, 429, 501, 503),
    ),
    *(
        Operation(method="POST", path=path, summary=summary, body=body, reply={JSON: reply}, errors=(400, 413, 503))
        for path, summary, body, reply in (
            ("/tokenize", "The tokens of a text, or of a prompt or a chat with their count", TokenizeFields, TOKENS),
            ("/v1/tokenize", "The same as POST /tokenize", TokenizeFields, TOKENS),
            ("/detokenize", "The text of some tokens", DetokenizeFields, object_of(content=STRING, prompt=STRING)),
            (
                "/apply-template",
                "The prompt that the model's chat template makes of a conversation",
                TemplateFields,
                object_of(prompt=STRING),
            ),
            ("/v1/token/encode", "The tokens of a text or a chat, as TabbyAPI has them", EncodeFields, ENCODED),
            (
                "/v1/token/decode",
                "The text of some tokens, as TabbyAPI has it",
                DetokenizeFields,
                object_of(text=STRING),
            ),
            ("/v1/internal/encode", "The tokens of a text, as text-generation-webui has them", EncodeFields, ENCODED),
            (
                "/v1/internal/decode",
                "The text of some tokens, as text-generation-webui has it",
                DetokenizeFields,
                object_of(text=STRING),
            ),
            (
                "/v1/internal/token-count",
                "How many tokens a text has, as text-generation-webui says it",
                EncodeFields,
                object_of(length=INTEGER),
            ),
            (
                "/v1/chat/completions/input_tokens",
                "How many tokens the prompt of a chat has",
                CompletionFields,
                COUNTED_CHAT,
            ),
            ("/chat/completions/input_tokens", "The same as with /v1 before it", CompletionFields, COUNTED_CHAT),
        )
    ),
    *(
        Operation(method="GET", path=path, summary=summary, reply={JSON: reply}, errors=(503,))
        for path, summary, reply in (
            ("/tokenizer_info", "The special tokens and the chat template, as vLLM has them", {"type": "object"}),
            ("/v1/model/list", "The model, as TabbyAPI has it", MODELS),
            ("/v1/model", "The model with the size of its context, as TabbyAPI has it", MODEL),
            (
                "/v1/internal/model/info",
                "The model's name, as text-generation-webui has it",
                object_of(model_name=STRING),
            ),
        )
    ),
    *FORMAT_OPERATIONS,
    *HISTORY_OPERATIONS,
    Operation(
        method="POST",
        path="/api/v1/generate",
        summary="Continue a prompt, as KoboldAI does: a result for each alternative",
        body=KoboldFields,
        reply={JSON: RESULTS},
        errors=(400, 413, 429, 503),
    ),
    Operation(
        method="POST",
        path="/api/extra/generate/stream",
        summary="Continue a prompt with one alternative, as a stream of KoboldCpp's events",
        body=KoboldFields,
        reply={EVENTS: {"description": 'lines `event: message` and `data: {"token", "finish_reason"}`'}},
        errors=(400, 413, 429, 503),
    ),
    Operation(
        method="POST",
        path="/api/extra/generate/check",
        summary="The texts so far of the request with this genkey",
        body=KeyFields,
        reply={JSON: RESULTS},
        errors=(400, 413),
    ),
    Operation(
        method="GET",
        path="/api/extra/generate/check",
        summary="The texts so far of the request without a genkey",
        reply={JSON: RESULTS},
    ),
    Operation(
        method="POST",
        path="/api/extra/abort",
        summary="End the requests with this genkey",
        body=KeyFields,
        reply={JSON: object_of(success=BOOLEAN, done=BOOLEAN)},
        errors=(400, 413),
    ),
    *(
        Operation(method="POST", path=path, summary=summary, body=body, reply={JSON: reply}, errors=(400, 413, 503))
        for path, summary, body, reply in (
            ("/api/extra/tokencount", "The tokens of a text, as KoboldCpp has them", CountFields, COUNTED),
            ("/api/extra/tokenize", "The same as POST /api/extra/tokencount", CountFields, COUNTED),
            (
                "/api/extra/detokenize",
                "The text of some tokens, as KoboldCpp has it",
                IdsFields,
                object_of(result=STRING, success=BOOLEAN),
            ),
        )
    ),
    *(
        Operation(method="GET", path=path, summary=summary, reply={JSON: reply}, errors=(503,))
        for path, summary, reply in (
            ("/api/v1/model", "The model's name, as KoboldAI has it", object_of(result=STRING)),
            ("/api/v1/info/version", "The version of KoboldAI's interface", object_of(result=STRING)),
            ("/api/v1/config/max_context_length", "The size of the context", object_of(value=INTEGER)),
            ("/api/v1/config/max_length", "How much is generated if max_length isn't sent", object_of(value=INTEGER)),
            ("/api/extra/version", "The version of KoboldCpp's interface", object_of(result=STRING, version=STRING)),
            ("/api/extra/true_max_context_length", "The size of the context", object_of(value=INTEGER)),
            ("/api/extra/perf", "How fast the last request was, as KoboldCpp says it", {"type": "object"}),
        )
    ),
    *(
        Operation(
            method="POST",
            path=path,
            summary="The embeddings of texts, with --embeddings",
            body=EmbeddingFields,
            reply={JSON: ONE_OR_MORE},
            errors=(400, 413, 429, 501, 503),
        )
        for path in STYLES
    ),
    *(
        Operation(
            method="POST",
            path=path,
            summary="Rank documents by how well they answer a query, the best first, with --reranking",
            body=RerankFields,
            reply={JSON: ONE_OR_MORE},
            errors=(400, 413, 429, 501, 503),
        )
        for path in RANKING
    ),
    Operation(
        method="GET",
        path="/props",
        summary="Facts about the server and its model",
        reply={JSON: {"type": "object"}},
        errors=(503,),
    ),
    Operation(
        method="GET",
        path="/slots",
        summary="The running alternatives and their settings",
        reply={JSON: list_of({"type": "object"})},
        errors=(501, 503),
    ),
    Operation(
        method="GET",
        path="/lora-adapters",
        summary="The adapters that were loaded with --lora, and their scales for requests that name none",
        reply={JSON: list_of(object_of(id=INTEGER, name=STRING, path=STRING, scale={"type": "number"}))},
        errors=(501, 503),
    ),
    Operation(
        method="POST",
        path="/lora-adapters",
        summary="Set the scales of adapters for the requests that follow; adapters that aren't named get 0",
        body=AdapterFields,
        reply={JSON: object_of(success=BOOLEAN)},
        errors=(400, 413, 501, 503),
    ),
    Operation(
        method="POST",
        path="/slots/{id_slot}",
        summary="Save what was last evaluated in a slot to a file, restore it, or erase it, with --slot-save-path",
        query={"action": "save, restore or erase"},
        body=SlotFields,
        reply={JSON: object_of(id_slot=INTEGER)},
        errors=(400, 413, 501, 503),
    ),
    *(
        Operation(
            method="GET",
            path=path,
            summary="Whether the server takes requests, and how many run",
            reply={JSON: HEALTH},
            errors=(503,),
        )
        for path in ("/health", "/v1/health")
    ),
    Operation(method="GET", path="/openapi.json", summary="This description", reply={JSON: {"type": "object"}}),
    Operation(method="GET", path="/", summary="The page: alternatives side by side", reply={"text/html": STRING}),
    Operation(method="GET", path="/docs", summary="This description as a page", reply={"text/html": STRING}),
)
