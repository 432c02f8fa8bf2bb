"""Routes that turn texts into tokens and back, as in llama-server, vLLM, TabbyAPI and text-generation-webui."""

from typing import Any

from pydantic import Field

from srb.engine.model import ChatTemplate, Tokenizer
from srb.wire.context import RequestContext
from srb.wire.request.body import chat_prompt
from srb.wire.request.fields import CompletionFields, ToolChoice
from srb.wire.request.media import MARKER
from srb.wire.request.messages import Message, prompt_of
from srb.wire.request.read import Int, ModelFields
from srb.wire.route import INTEGER, OBJECT, STRING, JsonHandler, also_below, get, list_of, object_of, post
from srb.wire.tokens import Parts, decoded, name_of, tokens_of
from srb.wire.tools.definitions import ToolList, tools_of


class TemplateFields(ModelFields):
    """The body of `POST /apply-template`."""

    messages: list[Message] | None = Field(None, description="the conversation.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="variables for the chat template.")
    tools: ToolList | None = Field(None, description="functions that the model may call.")
    tool_choice: ToolChoice = Field(None, description='"none" leaves them out.')


class TokenizeFields(TemplateFields):
    """The body of `POST /tokenize`: llama-server's with `content`, vLLM's with `prompt` or `messages`."""

    content: Parts | None = Field(None, description="a text, or a list of token ids and texts.")
    add_special: bool = Field(False, description="begin `content` with BOS where the model wants it.")
    parse_special: bool = Field(True, description="parse the names of special tokens in `content`.")
    with_pieces: bool = Field(False, description="show the text of each token of `content`.")
    prompt: Parts | None = Field(
        None, description="a text, or a list of token ids and texts; the response has their count."
    )
    add_special_tokens: bool = Field(True, description="begin `prompt` with BOS where the model wants it.")
    return_token_strs: bool = Field(False, description="show the text of each token of a prompt or a chat.")


class DetokenizeFields(ModelFields):
    """The body of `POST /detokenize`, `/v1/token/decode` and `/v1/internal/decode`."""

    tokens: list[Int] | None = Field(None, description="their ids.")


class EncodeFields(ModelFields):
    """The body of `POST /v1/token/encode`, `/v1/internal/encode` and `/v1/internal/token-count`."""

    text: str | list[Message] = Field(description="a text, or a conversation.")
    add_bos_token: bool = Field(True, description="begin with BOS where the model wants it.")
    encode_special_tokens: bool = Field(True, description="parse the names of special tokens.")


def tokenize(fields: TokenizeFields, context: RequestContext) -> dict[str, Any]:
    """Tokenize a text, or a prompt or a chat with the count of its tokens."""
    model = context.engine.model
    tokenizer = model.tokenizer
    if fields.content is not None or (fields.prompt is None and fields.messages is None):
        fields.leave_out("prompt", "messages")
        special = {"add_special": fields.add_special, "parse_special": fields.parse_special}
        tokens = tokens_of(fields.content or [], "content", tokenizer, **special)
        pieces = [{"id": token, "piece": _piece(tokenizer, token)} for token in tokens] if fields.with_pieces else None
        return {"tokens": pieces or tokens}
    if fields.prompt is not None:
        fields.leave_out("messages")
        tokens = tokens_of(fields.prompt, "prompt", tokenizer, add_special=fields.add_special_tokens)
    else:
        tokens = tokens_of([_apply(fields, model.chat_template)], "messages", tokenizer, add_special=True)
    names = [name_of(token, tokenizer) for token in tokens] if fields.return_token_strs else None
    return {
        "count": len(tokens),
        "max_model_len": model.n_cells,
        "tokens": tokens,
        "token_strs": names,
    }


def detokenize(fields: DetokenizeFields, context: RequestContext) -> dict[str, Any]:
    """Detokenize tokens."""
    text = decoded(fields.tokens, "tokens", context.engine.model.tokenizer)
    return {"content": text, "prompt": text}


def apply_template(fields: TemplateFields, context: RequestContext) -> dict[str, Any]:
    """Apply the model's chat template to a conversation."""
    return {"prompt": _apply(fields, context.engine.model.chat_template, marker=MARKER)}


def encode(fields: EncodeFields, context: RequestContext) -> dict[str, Any]:
    """Tokenize a text, as in text-generation-webui."""
    text, model = fields.text, context.engine.model
    if not isinstance(text, str):
        text = prompt_of(text, {}, model.chat_template)
    special = {"add_special": fields.add_bos_token, "parse_special": fields.encode_special_tokens}
    tokens = tokens_of([text], "text", model.tokenizer, **special)
    return {"tokens": tokens, "length": len(tokens)}


def token_count(fields: EncodeFields, context: RequestContext) -> dict[str, Any]:
    """Count the tokens of a text, as in text-generation-webui."""
    return {"length": encode(fields, context)["length"]}


def decode(fields: DetokenizeFields, context: RequestContext) -> dict[str, Any]:
    """Detokenize tokens, as in text-generation-webui."""
    return {"text": detokenize(fields, context)["content"]}


def input_tokens(fields: CompletionFields, context: RequestContext) -> dict[str, Any]:
    """Count the tokens of a chat's prompt.

    The body is that of the chat. Sampling fields have no effect here, and aren't reported.
    """
    return count_prompt(fields, context, "messages", object="response.input_tokens")


def count_prompt(fields: CompletionFields, context: RequestContext, name: str, **head: str) -> dict[str, Any]:
    """The count of tokens in a chat's prompt. name: the field with the conversation. head: other fields."""
    model = context.engine.model
    prompt = chat_prompt(fields, model.chat_template)
    return head | {"input_tokens": len(tokens_of([prompt], name, model.tokenizer, add_special=True))}


def tokenizer_info(_fields: None, context: RequestContext) -> dict[str, Any]:
    """Show the special tokens and the chat template, as in vLLM."""
    model = context.engine.model
    tokenizer, template = model.tokenizer, model.chat_template
    return {
        "tokenizer_class": "llama.cpp",
        "bos_token": name_of(tokenizer.special.bos, tokenizer) or None,
        "eos_token": name_of(tokenizer.special.eos, tokenizer) or None,
        "add_bos_token": bool(tokenizer.tokenize("")),
        "model_max_length": model.n_cells,
        "chat_template": template.source if template else None,
    }


def _apply(fields: TemplateFields, template: ChatTemplate | None, marker: str | None = None) -> str:
    tools = tools_of(fields.tools, fields.tool_choice, None)
    variables = fields.chat_template_kwargs or {}
    return prompt_of(fields.messages or [], variables, template, tools, marker=marker)


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
_ENCODE, _DECODE = "Tokenize a text or a chat, as in TabbyAPI", "Detokenize tokens, as in TabbyAPI"

ROUTES = also_below(
    "/openai",  # clients that need OpenAI's objects have this address
    post(
        "/tokenize",
        JsonHandler(tokenize),
        _TOKENS,
        body=TokenizeFields,
        aliases=("/v1/tokenize",),
    ),
    post("/detokenize", JsonHandler(detokenize), _CONTENT, body=DetokenizeFields),
    post("/apply-template", JsonHandler(apply_template), object_of(prompt=STRING), body=TemplateFields),
    post("/v1/token/encode", JsonHandler(encode), _ENCODED, body=EncodeFields, summary=_ENCODE),
    post("/v1/token/decode", JsonHandler(decode), _TEXT, body=DetokenizeFields, summary=_DECODE),
    post("/v1/internal/encode", JsonHandler(encode), _ENCODED, body=EncodeFields),
    post("/v1/internal/decode", JsonHandler(decode), _TEXT, body=DetokenizeFields),
    post("/v1/internal/token-count", JsonHandler(token_count), object_of(length=INTEGER), body=EncodeFields),
    get("/tokenizer_info", JsonHandler(tokenizer_info), OBJECT),
)
