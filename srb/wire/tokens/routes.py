"""The routes that turn texts into tokens and back: those of llama-server, vLLM, TabbyAPI and text-generation-webui."""

from srb.wire.route import Tells, get, post
from srb.wire.schemas import INTEGER, OBJECT, STRING, list_of, object_of
from srb.wire.tokens import texts
from srb.wire.tokens.texts import DetokenizeFields, EncodeFields, TemplateFields, TokenizeFields

_TOKENS = object_of(tokens=list_of({"type": ["integer", "object"]}))
_ENCODED = object_of(tokens=list_of(INTEGER), length=INTEGER)
_TEXT, _CONTENT = object_of(text=STRING), object_of(content=STRING, prompt=STRING)
_ENCODE, _DECODE = "The tokens of a text or a chat, as TabbyAPI has them", "The text of some tokens, as TabbyAPI has it"

ROUTES = (
    post(
        "/tokenize",
        Tells(texts.tokenize),
        _TOKENS,
        body=TokenizeFields,
        also=("/v1/tokenize",),
        also_says="The same as POST /tokenize",
    ),
    post("/detokenize", Tells(texts.detokenize), _CONTENT, body=DetokenizeFields),
    post("/apply-template", Tells(texts.apply_template), object_of(prompt=STRING), body=TemplateFields),
    post("/v1/token/encode", Tells(texts.encode), _ENCODED, body=EncodeFields, says=_ENCODE),
    post("/v1/token/decode", Tells(texts.decode), _TEXT, body=DetokenizeFields, says=_DECODE),
    post("/v1/internal/encode", Tells(texts.encode), _ENCODED, body=EncodeFields),
    post("/v1/internal/decode", Tells(texts.decode), _TEXT, body=DetokenizeFields),
    post("/v1/internal/token-count", Tells(texts.token_count), object_of(length=INTEGER), body=EncodeFields),
    get("/tokenizer_info", Tells(texts.tokenizer_info), OBJECT),
)
