"""The routes of OpenAI. Some answer with native events, too, or with what two other servers tell of a model."""

from functools import partial

from srb.wire.embeddings import OPENAI as LIKE_OPENAI
from srb.wire.embeddings import EmbeddingFields
from srb.wire.openai import completions as models
from srb.wire.openai import responses
from srb.wire.openai.completions import read
from srb.wire.openai.responses import ResponseFields
from srb.wire.reply import TYPED
from srb.wire.request.completion import CompletionFields
from srb.wire.route import Embeds, Generates, Tells, get, post
from srb.wire.schemas import (
    EVENT_STREAM,
    EVENTS,
    INTEGER,
    OBJECT,
    ONE_OR_MORE,
    STRING,
    Schema,
    alike,
    data_of,
    list_of,
    object_of,
)
from srb.wire.tokenize import input_tokens

OPENAI = "/openai/v1"
"""Below this path answers are in OpenAI's format, also where a request leaves fields out."""


def _completion(kind: str, **answer: Schema) -> Schema:
    return object_of(
        id=STRING,
        object={"const": kind},
        created=INTEGER,
        model=STRING,
        choices=list_of(
            object_of(
                **answer,
                logprobs={"type": ["object", "null"]},
                finish_reason={"enum": ["stop", "length", "abort", "error"]},
            )
        ),
        usage=object_of(**alike(INTEGER, "prompt_tokens completion_tokens total_tokens")),
    )


RESPONSE = object_of(id=STRING, object={"const": "response"}, status=STRING, output=list_of(OBJECT))
RESPONSE_EVENTS = {EVENTS: {"description": "OpenAI's typed events, from response.created on"}}
_COUNTED = object_of(object={"const": "response.input_tokens"}, input_tokens=INTEGER)
_MODEL = object_of(id=STRING, object={"const": "model"}, created=INTEGER, owned_by=STRING, capabilities=list_of(STRING))

_TEXT = _completion("text_completion", text=STRING, index=INTEGER)
_CHAT = _completion("chat.completion", index=INTEGER, message=OBJECT)
_FIRST = "Continue a conversation, in n alternatives: OpenAI's object or chunks, or native events"
_OTHER = "The same as POST /v1/completions, but with OpenAI's object if neither stream nor model is sent"
_BASES = ("/v1", OPENAI, "")
_generates = partial(post, body=CompletionFields, others={EVENTS: EVENT_STREAM}, errors=(404, 501))

ROUTES = (
    # Some clients write a slash behind these paths.
    _generates("/v1/completions", Generates(read, lasts=True), _TEXT, also=("/v1/completions/",)),
    _generates(
        f"{OPENAI}/completions",
        Generates(partial(read, openai=True), lasts=True),
        _TEXT,
        says=_OTHER,
        also=(f"{OPENAI}/completions/",),
    ),
    _generates(
        "/v1/chat/completions",
        Generates(partial(read, chat=True), lasts=True),
        _CHAT,
        says=_FIRST,
        also=tuple(f"{base}/chat/completions{end}" for base in _BASES for end in ("", "/") if base + end != "/v1"),
        also_says="The same as POST /v1/chat/completions",
    ),
    post(
        "/v1/responses",
        Generates(responses.create, TYPED),
        RESPONSE,
        others=RESPONSE_EVENTS,
        body=ResponseFields,
        also=(f"{OPENAI}/responses", "/responses"),
        also_says="The same",
    ),
    post(
        "/v1/responses/input_tokens",
        Tells(responses.input_tokens),
        _COUNTED,
        body=ResponseFields,
        also=(f"{OPENAI}/responses/input_tokens", "/responses/input_tokens"),
    ),
    post(
        "/v1/chat/completions/input_tokens",
        Tells(input_tokens),
        _COUNTED,
        body=CompletionFields,
        also=("/chat/completions/input_tokens",),
        also_says="The same as with /v1 before it",
    ),
    post(
        "/v1/embeddings",
        Embeds(LIKE_OPENAI),
        ONE_OR_MORE,
        body=EmbeddingFields,
        says="The embeddings of texts, with --embeddings",
        also=(f"{OPENAI}/embeddings",),
    ),
    get(
        "/v1/models",
        Tells(models.models),
        data_of(_MODEL),
        also=tuple(f"{base}/models{end}" for base in _BASES for end in ("", "/") if base + end != "/v1"),
        also_says="The same as GET /v1/models",
    ),
    get(
        "/v1/models/{id:.+}",  # a model's name may have slashes
        Tells(models.one_model),
        _MODEL,
        errors=(404,),
        also=(f"{OPENAI}/models/{{id:.+}}",),
        also_says="The same as GET /v1/models/{id}",
    ),
    get("/v1/model/list", Tells(models.models), data_of(_MODEL), says="The model, as TabbyAPI has it"),
    get("/v1/model", Tells(models.model_card), _MODEL),
    get("/v1/internal/model/info", Tells(models.model_info), object_of(model_name=STRING)),
)
