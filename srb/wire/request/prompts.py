"""Turns the prompts of a body into tokens, and resolves the stored texts that a body names.

A prompt is a text, token ids, both, the messages of a chat, or the path to a node of a story.
"""

from typing import Any

from srb.engine.media import Media
from srb.engine.model import ChatTemplate, Tokenize
from srb.errors import InvalidRequestError
from srb.wire.limits import Limits, PathTo, TextsOf
from srb.wire.request.fields import CompletionFields, KeptTexts
from srb.wire.request.media import Mixed, Take, new_marker, split, with_data
from srb.wire.request.messages import prompt_of
from srb.wire.request.read import kind_of
from srb.wire.tokens import is_token, join_tokens
from srb.wire.tools.definitions import Tools


def sent_prompt(
    fields: CompletionFields, template: ChatTemplate | None, chat: bool, tools: Tools | None, *, thinks: bool = True
) -> Any:
    """Return the prompt as it was sent, or what the model's template makes of the messages.

    `thinks`: the answer may begin with thoughts. Raises `InvalidRequestError` if there is neither, or both, or the
    messages aren't a conversation.
    """
    if fields.messages is not None:
        if fields.prompt is not None:
            raise InvalidRequestError("prompt and messages exclude each other", param="prompt")
        files = [file for each in fields.messages if isinstance(each.content, Mixed) for file in each.content.files]
        marker = new_marker() if files else None
        variables = fields.chat_template_kwargs or {}
        prompt = prompt_of(fields.messages, variables, template, tools, thinks=thinks, marker=marker)
        return split(prompt, marker, files) if marker else prompt
    if chat:
        raise InvalidRequestError("messages is missing", param="messages")
    return fields.prompt


def make_prompts(
    prompt: Any, limits: Limits, n: int, tokenize: Tokenize
) -> tuple[tuple[tuple[int, ...], ...], tuple[Media, ...]]:
    """Return the token ids of each prompt, and the media in them. Raises `InvalidRequestError`.

    A list with a token id in it is one prompt: [1, 2, "text"]. Any other list is a list of prompts: ["one", "two"].
    """
    if prompt is None:
        raise InvalidRequestError("prompt is missing", param="prompt")
    if not isinstance(prompt, list) or any(map(is_token, prompt)):
        named = {"prompt": prompt}
    else:
        named = {f"prompt[{k}]": each for k, each in enumerate(prompt)}
    if len(named) * n > limits.max_n:
        raise InvalidRequestError(
            f"{len(named)} prompts with n = {n} make {len(named) * n} alternatives; the limit is {limits.max_n} "
            "(--max-n); send fewer prompts or a smaller n",
            param="prompt",
        )
    made = [_named_tokens(name, item, tokenize, limits.take) for name, item in named.items()]
    return tuple(tokens for tokens, _ in made), tuple({each.name: each for _, media in made for each in media}.values())


def _named_tokens(name: str, prompt: Any, tokenize: Tokenize, take: Take) -> tuple[tuple[int, ...], tuple[Media, ...]]:
    """Return what `_prompt_tokens` does. One of several prompts is named in an error."""
    try:
        tokens, media = _prompt_tokens(name, prompt, tokenize, take)
        if not tokens:
            raise InvalidRequestError("prompt must have at least one token", param="prompt")
    except InvalidRequestError as error:
        if error.param == "prompt" and name != "prompt":
            error.param = name
            error.message = error.message if name in error.message else f"{name}: {error.message}"
        raise
    return tokens, media


def _prompt_tokens(name: str, prompt: Any, tokenize: Tokenize, take: Take) -> tuple[tuple[int, ...], tuple[Media, ...]]:
    if isinstance(prompt, dict) and "prompt_string" in prompt and prompt.keys() <= {"prompt_string", "multimodal_data"}:
        prompt = with_data(prompt)
    if isinstance(prompt, Mixed):
        return take(prompt.parts)
    if isinstance(prompt, tuple):  # a format has tokenized it
        return prompt, ()
    if isinstance(prompt, str):
        return tokenize(prompt), ()
    wrong = {name: prompt}
    if isinstance(prompt, list):
        wrong = {f"{name}[{k}]": part for k, part in enumerate(prompt) if not (isinstance(part, str) or is_token(part))}
    if not wrong:
        return tuple(join_tokens(prompt, tokenize, is_prompt=True)), ()
    place, value = next(iter(wrong.items()))
    what = f"{kind_of(value)} and no token id" if kind_of(value) == "a number" else kind_of(value)
    raise InvalidRequestError(
        "prompt must be a string, a list of token ids (whole numbers from 0 on) and strings, or a list of such "
        f"prompts; {place} is {what}",
        param="prompt",
    )


MAX_REQUESTS = 100
"""The most requests that a body may name. Finding each takes time, since it may be in a file."""


def take_texts(fields: CompletionFields, texts_of: TextsOf) -> None:
    """Replace each entry of `avoid` that names a request by the texts of this request.

    Raises `InvalidRequestError` if one isn't stored, has no such alternative, or there are too many.
    """
    lists = [each for each in (fields, *(fields.branches or ())) if each.avoid]
    entries = [entry for each in lists for entry in each.avoid or () if isinstance(entry, KeptTexts)]
    named = tuple(dict.fromkeys(entry.request for entry in entries))
    if len(named) > MAX_REQUESTS:
        raise InvalidRequestError(
            f"avoid names {len(named)} requests; the limit is {MAX_REQUESTS}; send their texts", param="avoid"
        )
    if not named:
        return
    texts = texts_of(named)
    for each in lists:
        avoid: list[str | list[int] | KeptTexts] = []
        for entry in each.avoid or ():
            avoid += _texts(entry, texts[entry.request]) if isinstance(entry, KeptTexts) else [entry]
        each.avoid = avoid


def _texts(entry: KeptTexts, texts: list[str]) -> list[str]:
    if entry.index is None:
        return texts
    if not 0 <= entry.index < len(texts):
        raise InvalidRequestError(
            f"avoid: request {entry.request:.100} has the alternatives 0 to {len(texts) - 1}, not {entry.index!s:.60}",
            param="avoid",
        )
    return [texts[entry.index]]


def take_path(fields: CompletionFields, chat: bool, path_to: PathTo) -> None:
    """Set the prompt of a body that continues a node of a story, if it has none of its own.

    Raises `InvalidRequestError`, and what `path_to` raises.
    """
    if fields.story is None:
        if fields.node is not None:
            raise InvalidRequestError("node goes with story, which is missing", param="node")
        return
    if fields.echo:
        raise InvalidRequestError("echo and story exclude each other: a node has only what is new", param="echo")
    is_needed = fields.prompt is None and not chat
    path = path_to(fields.story, fields.node, is_needed)
    if is_needed:
        if not path:
            raise InvalidRequestError("there is no text before this place: name a node, or send a prompt", param="node")
        fields.prompt = path
