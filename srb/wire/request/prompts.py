"""Turns the prompts of a body into tokens. A prompt is a text, token ids, both, or the messages of a chat."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from srb.engine.media import Media
from srb.engine.model import ChatTemplate, SpecialTokens
from srb.errors import InvalidRequestError
from srb.wire.limits import Limits
from srb.wire.request.completion import CompletionFields
from srb.wire.request.media import Mixed, Take, not_here, with_data
from srb.wire.request.messages import mixed_prompt_of
from srb.wire.request.read import kind_of
from srb.wire.tokens import Tokenize, is_token, join_tokens
from srb.wire.tools.offered import Tools

# Makes fill-in-the-middle prompts of the texts before and after a gap, for models that have special tokens for this.
# The layout is that of Qwen2.5-Coder (Hui et al., arXiv 2409.12186): files of the repository, prefix, suffix,
# middle.

REPOSITORY = "repository"
FILE = "file"


@dataclass(frozen=True)
class Infill:
    """The token ids of a prompt.

    extra: other texts that may help. gap: the prefix, the suffix, and the token after which the model fills the gap.
    suffix: the suffix that candidates are scored by, if the model has no such tokens; then the gap is the prefix alone.
    """

    extra: tuple[int, ...]
    gap: tuple[int, ...]
    suffix: tuple[int, ...] = ()


def infill(
    prefix: tuple[int, ...],
    suffix: tuple[int, ...],
    files: Iterable[tuple[str, str]],
    special: SpecialTokens,
    tokens_of: Callable[[str], tuple[int, ...]],
    *,
    is_bridge: bool,
) -> Infill:
    """The tokens of a fill-in-the-middle prompt.

    files: names and texts of other files. tokens_of: makes tokens of a text; names of special tokens in it are text.
    is_bridge: whether candidates are wanted, also if the model has fill-in-the-middle tokens.
    """
    made = None if is_bridge else special.gap(prefix, suffix)
    if made is None:
        texts = (each for _, text in files for each in (tokens_of(text), tokens_of("\n\n")))
        return Infill(tuple(token for tokens in texts for token in tokens), prefix, suffix)
    extra: list[int] = []
    if special.fim_rep is not None:
        extra += [special.fim_rep, *tokens_of(f"{REPOSITORY}\n")]
    for name, text in files:
        extra += _file_head(name, special, tokens_of) + list(tokens_of(text))
    if special.fim_sep is not None:
        extra += _file_head(FILE, special, tokens_of)
    return Infill(tuple(extra), made)


def _file_head(name: str, special: SpecialTokens, tokens_of: Callable[[str], tuple[int, ...]]) -> list[int]:
    """The tokens between a file and the one before it."""
    if special.fim_sep is None:
        return list(tokens_of("\n\n"))
    return [special.fim_sep, *tokens_of(f"{name}\n")]


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
