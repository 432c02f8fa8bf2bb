"""The routes that turn texts into tokens and back: those of llama-server, vLLM, TabbyAPI and text-generation-webui."""

from functools import partial

from srb.wire.route import READS, Route, Tells
from srb.wire.schemas import INTEGER, OBJECT, STRING, list_of, object_of
from srb.wire.tokens import texts
from srb.wire.tokens.texts import DetokenizeFields, EncodeFields, TemplateFields, TokenizeFields

_ENCODED = object_of(tokens=list_of(INTEGER), length=INTEGER)
_posts = partial(Route, "POST", errors=READS)

ROUTES = (
    _posts(
        "/tokenize",
        Tells(texts.tokenize),
        "The tokens of a text, or of a prompt or a chat with their count",
        object_of(tokens=list_of({"type": ["integer", "object"]})),
        body=TokenizeFields,
        also=("/v1/tokenize",),
        also_says="The same as POST /tokenize",
    ),
    _posts(
        "/detokenize",
        Tells(texts.detokenize),
        "The text of some tokens",
        object_of(content=STRING, prompt=STRING),
        body=DetokenizeFields,
    ),
    _posts(
        "/apply-template",
        Tells(texts.apply_template),
        "The prompt that the model's chat template makes of a conversation",
        object_of(prompt=STRING),
        body=TemplateFields,
    ),
    _posts(
        "/v1/token/encode",
        Tells(texts.encode),
        "The tokens of a text or a chat, as TabbyAPI has them",
        _ENCODED,
        body=EncodeFields,
    ),
    _posts(
        "/v1/token/decode",
        Tells(texts.decode),
        "The text of some tokens, as TabbyAPI has it",
        object_of(text=STRING),
        body=DetokenizeFields,
    ),
    _posts(
        "/v1/internal/encode",
        Tells(texts.encode),
        "The tokens of a text, as text-generation-webui has them",
        _ENCODED,
        body=EncodeFields,
    ),
    _posts(
        "/v1/internal/decode",
        Tells(texts.decode),
        "The text of some tokens, as text-generation-webui has it",
        object_of(text=STRING),
        body=DetokenizeFields,
    ),
    _posts(
        "/v1/internal/token-count",
        Tells(texts.token_count),
        "How many tokens a text has, as text-generation-webui says it",
        object_of(length=INTEGER),
        body=EncodeFields,
    ),
    Route(
        "GET",
        "/tokenizer_info",
        Tells(texts.tokenizer_info),
        "The special tokens and the chat template, as vLLM has them",
        OBJECT,
        errors=(503,),
    ),
)
