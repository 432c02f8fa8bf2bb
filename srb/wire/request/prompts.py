"""Turns the prompts of a body into tokens. A prompt is a text, token ids, both, or the messages of a chat."""

from typing import Any

from srb.engine.asking.model import ChatTemplate
from srb.engine.prompts.media import Media
from srb.errors import InvalidRequestError
from srb.wire.limits import Limits
from srb.wire.request.completion_fields import CompletionFields
from srb.wire.request.media import Mixed, Take, not_here, with_data
from srb.wire.request.messages import mixed_prompt_of
from srb.wire.request.read import kind_of
from srb.wire.tokens.named_tokens import Tokenize, is_token, join_tokens
from srb.wire.tools.offered import Tools


def sent_prompt(fields: CompletionFields, template: ChatTemplate | None, chat: bool, tools: Tools | None) -> Any:
    """The prompt as it was sent, or the text that the model's template makes of the messages.

    Raises `InvalidRequestError`.
    """
    if fields.messages is not None:
        if fields.prompt is not None:
            raise InvalidRequestError("prompt and messages exclude each other", param="prompt")
        return mixed_prompt_of(fields.messages, fields.chat_template_kwargs or {}, template, tools)
    if chat:
        raise InvalidRequestError("messages is missing", param="messages")
    return fields.prompt


def make_prompts(
    prompt: Any, limits: Limits, n: int, tokenize: Tokenize, take: Take = not_here
) -> tuple[tuple[tuple[int, ...], ...], tuple[Media, ...]]:
    """The token ids of each prompt, and the media in them. Raises `InvalidRequestError`.

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
    made = [_prompt_tokens(name, item, tokenize, take) for name, item in named.items()]
    return tuple(tokens for tokens, _ in made), tuple({each.name: each for _, media in made for each in media}.values())


def _prompt_tokens(name: str, prompt: Any, tokenize: Tokenize, take: Take) -> tuple[tuple[int, ...], tuple[Media, ...]]:
    if isinstance(prompt, dict) and "prompt_string" in prompt and prompt.keys() <= {"prompt_string", "multimodal_data"}:
        prompt = with_data(prompt)
    if isinstance(prompt, Mixed):
        return take(prompt.parts)
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
