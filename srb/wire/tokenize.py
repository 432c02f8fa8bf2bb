"""The routes that turn texts into tokens and back: those of llama-server, vLLM, TabbyAPI and text-generation-webui."""

from typing import Any

from pydantic import Field

from srb.engine.model import Tokenizer
from srb.wire.request.body import chat_prompt
from srb.wire.request.body_fields import BodyFields, Int
from srb.wire.request.completion import CompletionFields, ToolChoice
from srb.wire.request.media import MARKER
from srb.wire.request.messages import Message, prompt_of
from srb.wire.request.read import read_fields
from srb.wire.route import Tells, get, post
from srb.wire.schemas import INTEGER, OBJECT, STRING, list_of, object_of
from srb.wire.serving import Serving, Told
from srb.wire.tokens import Parts, Vocabulary, tokens_of
from srb.wire.tools.offered import ToolFields, tools_of

# Turns texts into tokens and back, in the formats of several servers. Pure functions from a body to an answer.


class TemplateFields(BodyFields):
    """The body of `POST /apply-template`."""

    messages: list[Message] | None = Field(None, description="the conversation.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="variables for the chat template.")
    tools: list[ToolFields] | None = Field(None, description="functions that the model may call.")
    tool_choice: ToolChoice = Field(None, description='"none" leaves them out.')


class TokenizeFields(TemplateFields):
    """The body of `POST /tokenize`: llama-server's with `content`, vLLM's with `prompt` or `messages`."""

    content: Parts | None = Field(None, description="a text, or a list of token ids and texts.")
    add_special: bool = Field(False, description="begin `content` with BOS where the model wants it.")
    parse_special: bool = Field(True, description="the names of special tokens in `content` stand for these.")
    with_pieces: bool = Field(False, description="show what each token of `content` stands for.")
    model: str | None = Field(None, description="there is one; another name is ignored, and reported.")
    prompt: Parts | None = Field(None, description="a text, or a list of token ids and texts, to be counted too.")
    add_special_tokens: bool = Field(True, description="begin `prompt` with BOS where the model wants it.")
    return_token_strs: bool = Field(False, description="show what each token of a prompt or a chat stands for.")


class DetokenizeFields(BodyFields):
    """The body of `POST /detokenize`, `/v1/token/decode` and `/v1/internal/decode`."""

    tokens: list[Int] | None = Field(None, description="their ids.")
    model: str | None = Field(None, description="there is one; another name is ignored, and reported.")


class EncodeFields(BodyFields):
    """The body of `POST /v1/token/encode`, `/v1/internal/encode` and `/v1/internal/token-count`."""

    text: str | list[Message] = Field(description="a text, or a conversation.")
    add_bos_token: bool = Field(True, description="begin with BOS where the model wants it.")
    encode_special_tokens: bool = Field(True, description="the names of special tokens stand for these.")


def tokenize(data: bytes, serving: Serving) -> Told:
    """The tokens of a text, or of a prompt or a chat with their count."""
    fields, vocabulary = read_fields(data, TokenizeFields), serving.vocabulary
    tokenizer, ignored = vocabulary.tokenizer, fields.unread(vocabulary.model)
    if fields.content is not None or (fields.prompt is None and fields.messages is None):
        ignored += [name for name in ("prompt", "messages") if getattr(fields, name) is not None]
        special = {"add_special": fields.add_special, "parse_special": fields.parse_special}
        tokens = tokens_of(fields.content or [], "content", tokenizer, **special)
        pieces = [{"id": token, "piece": _piece(tokenizer, token)} for token in tokens] if fields.with_pieces else None
        return {"tokens": pieces or tokens}, ignored
    if fields.prompt is not None:
        ignored += ["messages"] if fields.messages is not None else []
        tokens = tokens_of(fields.prompt, "prompt", tokenizer, add_special=fields.add_special_tokens)
    else:
        tokens = vocabulary.encode(_apply(fields, vocabulary), "messages")
    names = [vocabulary.name_of(token) for token in tokens] if fields.return_token_strs else None
    return {
        "count": len(tokens),
        "max_model_len": vocabulary.n_cells,
        "tokens": tokens,
        "token_strs": names,
    }, ignored


def detokenize(data: bytes, serving: Serving) -> Told:
    """The text of some tokens."""
    fields, vocabulary = read_fields(data, DetokenizeFields), serving.vocabulary
    text = vocabulary.decode(fields.tokens, "tokens")
    return {"content": text, "prompt": text}, fields.unread(vocabulary.model)


def apply_template(data: bytes, serving: Serving) -> Told:
    """The prompt that the model's chat template makes of a conversation."""
    fields, vocabulary = read_fields(data, TemplateFields), serving.vocabulary
    return {"prompt": _apply(fields, vocabulary, marker=MARKER)}, fields.unread(vocabulary.model)


def encode(data: bytes, serving: Serving) -> Told:
    """The tokens of a text, as text-generation-webui has them."""
    fields, vocabulary = read_fields(data, EncodeFields), serving.vocabulary
    text = fields.text
    if not isinstance(text, str):
        text = prompt_of(text, {}, vocabulary.template)
    special = {"add_special": fields.add_bos_token, "parse_special": fields.encode_special_tokens}
    tokens = vocabulary.encode(text, "text", **special)
    return {"tokens": tokens, "length": len(tokens)}, fields.unread(vocabulary.model)


def token_count(data: bytes, serving: Serving) -> Told:
    """How many tokens a text has, as text-generation-webui says it."""
    answer, ignored = encode(data, serving)
    return {"length": answer["length"]}, ignored


def decode(data: bytes, serving: Serving) -> Told:
    """The text of some tokens, as text-generation-webui has it."""
    answer, ignored = detokenize(data, serving)
    return {"text": answer["content"]}, ignored


def input_tokens(data: bytes, serving: Serving) -> Told:
    """How many tokens the prompt of a chat has.

    The body is that of the chat. Fields that say how to draw the answer have no effect here, and aren't reported.
    """
    return count_prompt(read_fields(data, CompletionFields), serving, "messages", object="response.input_tokens")


def count_prompt(fields: CompletionFields, serving: Serving, name: str, **head: str) -> Told:
    """How many tokens the prompt of a chat has. name: of the field that has the conversation. head: other fields."""
    vocabulary = serving.vocabulary
    return head | {"input_tokens": len(vocabulary.encode(chat_prompt(fields, vocabulary.template), name))}, []


def tokenizer_info(_data: bytes, serving: Serving) -> Told:
    """The special tokens and the chat template, as vLLM has them."""
    vocabulary = serving.vocabulary
    tokenizer = vocabulary.tokenizer
    return {
        "tokenizer_class": "llama.cpp",
        "bos_token": vocabulary.name_of(tokenizer.special.bos) or None,
        "eos_token": vocabulary.name_of(tokenizer.special.eos) or None,
        "add_bos_token": bool(tokenizer.tokenize("")),
        "model_max_length": vocabulary.n_cells,
        "chat_template": vocabulary.template.source if vocabulary.template else None,
    }, []


def _apply(fields: TemplateFields, vocabulary: Vocabulary, marker: str | None = None) -> str:
    tools = tools_of(fields.tools, fields.tool_choice, None)
    variables = fields.chat_template_kwargs or {}
    return prompt_of(fields.messages or [], variables, vocabulary.template, tools, marker=marker)


def _piece(tokenizer: Tokenizer, token: int) -> str | list[int]:
    """The text of a token; a list of its bytes if they aren't text."""
    piece = tokenizer.detokenize((token,))
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


_TOKENS = object_of(tokens=list_of({"type": ["integer", "object"]}))
_ENCODED = object_of(tokens=list_of(INTEGER), length=INTEGER)
_TEXT, _CONTENT = object_of(text=STRING), object_of(content=STRING, prompt=STRING)
_ENCODE, _DECODE = "The tokens of a text or a chat, as TabbyAPI has them", "The text of some tokens, as TabbyAPI has it"

ROUTES = (
    post(
        "/tokenize",
        Tells(tokenize),
        _TOKENS,
        body=TokenizeFields,
        also=("/v1/tokenize",),
        also_says="The same as POST /tokenize",
    ),
    post("/detokenize", Tells(detokenize), _CONTENT, body=DetokenizeFields),
    post("/apply-template", Tells(apply_template), object_of(prompt=STRING), body=TemplateFields),
    post("/v1/token/encode", Tells(encode), _ENCODED, body=EncodeFields, says=_ENCODE),
    post("/v1/token/decode", Tells(decode), _TEXT, body=DetokenizeFields, says=_DECODE),
    post("/v1/internal/encode", Tells(encode), _ENCODED, body=EncodeFields),
    post("/v1/internal/decode", Tells(decode), _TEXT, body=DetokenizeFields),
    post("/v1/internal/token-count", Tells(token_count), object_of(length=INTEGER), body=EncodeFields),
    get("/tokenizer_info", Tells(tokenizer_info), OBJECT),
)
