"""OpenAI's routes. Completions and chats may answer with native events, too."""

from functools import partial

from srb.wire.embeddings import OPENAI as OPENAI_EMBEDDINGS
from srb.wire.embeddings import EmbeddingFields
from srb.wire.openai import completions, responses
from srb.wire.openai.chat import parse_chat
from srb.wire.openai.completions import parse_completion
from srb.wire.openai.responses import ResponseFields, parse_response
from srb.wire.request.fields import CompletionFields
from srb.wire.route import (
    EVENT_STREAM,
    EVENTS,
    INTEGER,
    OBJECT,
    ONE_OR_MORE,
    STRING,
    GenerateHandler,
    JsonHandler,
    Schema,
    also_below,
    data_of,
    fields_of,
    get,
    list_of,
    object_of,
    post,
)
from srb.wire.tokenize import input_tokens

OPENAI = "/openai/v1"
"""Below this path responses are always in OpenAI's format, even if a request doesn't name one."""


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
                stop_reason={"type": ["string", "integer", "null"]},
            )
        ),
        usage=object_of(**fields_of(INTEGER, "prompt_tokens completion_tokens total_tokens")),
    )


RESPONSE = object_of(id=STRING, object={"const": "response"}, status=STRING, output=list_of(OBJECT))
RESPONSE_EVENTS = {EVENTS: {"description": "OpenAI's typed events, from response.created on"}}
_COUNTED = object_of(object={"const": "response.input_tokens"}, input_tokens=INTEGER)
_MODEL = object_of(id=STRING, object={"const": "model"}, created=INTEGER, owned_by=STRING, capabilities=list_of(STRING))

_TEXT = _completion("text_completion", text=STRING, index=INTEGER)
_CHAT = _completion("chat.completion", index=INTEGER, message=OBJECT)
_OTHER = "The same as POST /v1/completions, but with OpenAI's object if neither stream nor model is sent"
_BASES = ("/v1", OPENAI, "")
_generates = partial(post, body=CompletionFields, other_schemas={EVENTS: EVENT_STREAM}, errors=(404, 501))

ROUTES = (
    # Some clients send a slash after these paths.
    _generates(
        "/v1/completions", GenerateHandler(parse_completion, replayable=True), _TEXT, aliases=("/v1/completions/",)
    ),
    _generates(
        f"{OPENAI}/completions",
        GenerateHandler(partial(parse_completion, openai=True), replayable=True),
        _TEXT,
        summary=_OTHER,
        aliases=(f"{OPENAI}/completions/",),
    ),
    _generates(
        "/v1/chat/completions",
        GenerateHandler(parse_chat, replayable=True),
        _CHAT,
        aliases=tuple(f"{base}/chat/completions{end}" for base in _BASES for end in ("", "/") if base + end != "/v1"),
    ),
    post(
        "/v1/responses",
        GenerateHandler(parse_response),
        RESPONSE,
        other_schemas=RESPONSE_EVENTS,
        body=ResponseFields,
        aliases=(f"{OPENAI}/responses", "/responses"),
    ),
    post(
        "/v1/responses/input_tokens",
        JsonHandler(responses.input_tokens),
        _COUNTED,
        body=ResponseFields,
        aliases=(f"{OPENAI}/responses/input_tokens", "/responses/input_tokens"),
    ),
    post(
        "/v1/chat/completions/input_tokens",
        JsonHandler(input_tokens),
        _COUNTED,
        body=CompletionFields,
        aliases=("/chat/completions/input_tokens",),
    ),
    post(
        "/v1/embeddings",
        OPENAI_EMBEDDINGS,
        ONE_OR_MORE,
        body=EmbeddingFields,
        summary="Make embeddings of texts, with --embeddings",
        aliases=(f"{OPENAI}/embeddings",),
    ),
    get(
        "/v1/models",
        JsonHandler(completions.models),
        data_of(_MODEL),
        aliases=tuple(f"{base}/models{end}" for base in _BASES for end in ("", "/") if base + end != "/v1"),
    ),
    get(
        "/v1/models/{id:.+}",  # a model's name may have slashes
        JsonHandler(completions.one_model),
        _MODEL,
        errors=(404,),
        aliases=(f"{OPENAI}/models/{{id:.+}}",),
    ),
    *also_below(
        "/openai",
        get(
            "/v1/model/list", JsonHandler(completions.models), data_of(_MODEL), summary="Show the model, as in TabbyAPI"
        ),
        get("/v1/model", JsonHandler(completions.model_card), _MODEL),
        get("/v1/internal/model/info", JsonHandler(completions.model_info), object_of(model_name=STRING)),
    ),
)
