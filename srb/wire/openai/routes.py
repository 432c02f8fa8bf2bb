"""The routes of OpenAI. Some answer with native events, too, or with what two other servers tell of a model."""

from functools import partial

from srb.wire.openai import models, responses
from srb.wire.openai.completions import read
from srb.wire.openai.responses_body import ResponseFields
from srb.wire.reply.frames import TYPED
from srb.wire.request.completion_fields import CompletionFields
from srb.wire.route import GENERATES, READS, Embeds, Generates, Route, Tells
from srb.wire.schemas import (
    EVENT_STREAM,
    EVENTS,
    INTEGER,
    OBJECT,
    ONE_OR_MORE,
    STRING,
    Schema,
    data_of,
    list_of,
    object_of,
)
from srb.wire.tokens.texts import input_tokens
from srb.wire.vectors.embeddings import OPENAI as LIKE_OPENAI
from srb.wire.vectors.embeddings import EmbeddingFields

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
        usage=object_of(prompt_tokens=INTEGER, completion_tokens=INTEGER, total_tokens=INTEGER),
    )


RESPONSE = object_of(id=STRING, object={"const": "response"}, status=STRING, output=list_of(OBJECT))
RESPONSE_EVENTS = {EVENTS: {"description": "OpenAI's typed events, from response.created on"}}
_COUNTED = object_of(object={"const": "response.input_tokens"}, input_tokens=INTEGER)
_MODEL = object_of(id=STRING, object={"const": "model"}, created=INTEGER, owned_by=STRING, capabilities=list_of(STRING))

_generates = partial(
    Route, "POST", body=CompletionFields, others={EVENTS: EVENT_STREAM}, errors=(400, 404, 413, 429, 501, 503)
)
_counts = partial(Route, "POST", reply=_COUNTED, errors=READS)
_gets = partial(Route, "GET", errors=(503,))

ROUTES = (
    _generates(
        "/v1/completions",
        Generates(read, lasts=True),
        "Continue a prompt, in n alternatives: native events, OpenAI's chunks, or OpenAI's object",
        _completion("text_completion", text=STRING, index=INTEGER),
        also=("/v1/completions/",),  # some clients write it so
    ),
    _generates(
        f"{OPENAI}/completions",
        Generates(partial(read, openai=True), lasts=True),
        "The same as POST /v1/completions, but with OpenAI's object if neither stream nor model is sent",
        _completion("text_completion", text=STRING, index=INTEGER),
        also=(f"{OPENAI}/completions/",),
    ),
    _generates(
        "/v1/chat/completions",
        Generates(partial(read, chat=True), lasts=True),
        "Continue a conversation, in n alternatives: OpenAI's object or chunks, or native events",
        _completion("chat.completion", index=INTEGER, message=OBJECT),
        also=(
            *(f"{base}/chat/completions" for base in (OPENAI, "")),
            *(f"{base}/chat/completions/" for base in ("/v1", OPENAI, "")),
        ),
        also_says="The same as POST /v1/chat/completions",
    ),
    Route(
        "POST",
        "/v1/responses",
        Generates(responses.create, TYPED),
        "Go on with a conversation, as OpenAI's responses do: an object, or events",
        RESPONSE,
        others=RESPONSE_EVENTS,
        body=ResponseFields,
        errors=GENERATES,
        also=(f"{OPENAI}/responses", "/responses"),
        also_says="The same",
    ),
    _counts(
        "/v1/responses/input_tokens",
        Tells(responses.input_tokens),
        "How many tokens the prompt of such a conversation has",
        body=ResponseFields,
        also=(f"{OPENAI}/responses/input_tokens", "/responses/input_tokens"),
    ),
    _counts(
        "/v1/chat/completions/input_tokens",
        Tells(input_tokens),
        "How many tokens the prompt of a chat has",
        body=CompletionFields,
        also=("/chat/completions/input_tokens",),
        also_says="The same as with /v1 before it",
    ),
    Route(
        "POST",
        "/v1/embeddings",
        Embeds(LIKE_OPENAI),
        "The embeddings of texts, with --embeddings",
        ONE_OR_MORE,
        body=EmbeddingFields,
        errors=(400, 413, 429, 501, 503),
        also=(f"{OPENAI}/embeddings",),
    ),
    _gets(
        "/v1/models",
        Tells(models.models),
        "The model of the server, as a list of one",
        data_of(_MODEL),
        also=(f"{OPENAI}/models", "/models", "/v1/models/", f"{OPENAI}/models/", "/models/"),
        also_says="The same as GET /v1/models",
    ),
    _gets(
        "/v1/models/{id:.+}",  # a model's name may have slashes
        Tells(models.one_model),
        "The model of this name",
        _MODEL,
        errors=(404, 503),
        also=(f"{OPENAI}/models/{{id:.+}}",),
        also_says="The same as GET /v1/models/{id}",
    ),
    _gets("/v1/model/list", Tells(models.models), "The model, as TabbyAPI has it", data_of(_MODEL)),
    _gets("/v1/model", Tells(models.model_card), "The model with the size of its context, as TabbyAPI has it", _MODEL),
    _gets(
        "/v1/internal/model/info",
        Tells(models.model_info),
        "The model's name, as text-generation-webui has it",
        object_of(model_name=STRING),
    ),
)
