"""Tokens in bodies, given as ids or as texts, and the vocabulary that converts between the two."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator

from srb.engine.model import ChatTemplate, Tokenizer
from srb.engine.model import Tokenize as Tokenize
from srb.errors import InvalidRequestError
from srb.wire.request.read import not_a_bool, show


def _as_parts(value: Any) -> Any:
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, str) or is_token(part) for part in parts):
        raise ValueError("Input should be a string, or a list of token ids and strings")
    return parts


Parts = Annotated[list[Any], BeforeValidator(_as_parts)]
"""A text, or token ids and texts."""


@dataclass(frozen=True)
class Vocabulary:
    """A model's name, tokenizer, chat template if it has one, and `n_cells`: the context size in tokens."""

    model: str
    tokenizer: Tokenizer
    template: ChatTemplate | None
    n_cells: int

    def encode(self, text: str, name: str, *, add_special: bool = True, parse_special: bool = True) -> tuple[int, ...]:
        """The tokens of the text in the field `name`. Raises `InvalidRequestError`."""
        return tokens_of([text], name, self.tokenizer, add_special=add_special, parse_special=parse_special)

    def decode(self, tokens: list[int] | None, name: str) -> str:
        """The text of the tokens in the field `name`. Raises `InvalidRequestError`."""
        known = check_tokens(tuple(tokens or ()), name, self.tokenizer.n_vocab)
        return self.tokenizer.detokenize(known).decode(errors="replace")

    def name_of(self, token: int | None) -> str:
        """The text of a special token; empty if the model has none."""
        return "" if token is None else self.decode([token], "token")


def tokens_of(
    parts: list[int | str], name: str, tokenizer: Tokenizer, *, add_special: bool = False, parse_special: bool = True
) -> tuple[int, ...]:
    """The tokens of the ids and texts in the field `name`. Raises `InvalidRequestError`."""

    def tokenize(text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]:
        return tokenizer.tokenize(check_text(text, name), is_prompt=is_prompt, parse_special=parse_special)

    return check_tokens(tuple(join_tokens(parts, tokenize, is_prompt=add_special)), name, tokenizer.n_vocab)


def check_text(text: str, name: str) -> str:
    """Returns the text. Raises `InvalidRequestError` if it isn't valid Unicode. name: the field that has it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{name} is not valid Unicode: half a surrogate pair at character {error.start}", param=name
        ) from None
    return text


def check_tokens(tokens: tuple[int, ...], name: str, n_vocab: int) -> tuple[int, ...]:
    """Returns the tokens. Raises `InvalidRequestError` if one isn't in the vocabulary. name: their field."""
    for token in tokens:
        if not 0 <= token < n_vocab:
            raise InvalidRequestError(
                f"{name} has the token id {token!s:.60}; the model's ids go from 0 to {n_vocab - 1}", param=name
            )
    return tokens


MAX_LOGIT_BIASES = 10_000
"""The most entries of an alternative's `logit_bias` and `banned_tokens`, and the most tokens that they stand for."""

MAX_BIASED_TEXTS = 10_000
"""The most entries of a request that are texts. Tokenizing 10,000 takes a third of a second."""


def join_tokens(parts: list[int | str], tokenize: Tokenize, *, is_prompt: bool) -> Iterator[int]:
    """The tokens of ids and texts, in order. A prompt that begins with a text gets BOS."""
    for place, part in enumerate(parts):
        if isinstance(part, str):
            yield from tokenize(part, is_prompt=is_prompt and place == 0)
        else:
            yield part


def biases_of(biases: Any, banned: list[Any], tokenize: Tokenize) -> tuple[tuple[int, float], ...]:
    """Pairs of token id and bias, from one of llama-server's two notations.

    They are {"15043": 1.0, "text": false} and [[15043, 1.0], ...]. Raises `InvalidRequestError`.
    """
    n_entries = len(biases) + len(banned)
    if n_entries > MAX_LOGIT_BIASES:
        raise _too_many(f"{n_entries} entries")
    result: dict[int, float] = {}
    for pair in biases.items() if isinstance(biases, dict) else biases:
        if not (isinstance(pair, (list, tuple)) and len(pair) == 2):
            raise InvalidRequestError(
                f"logit_bias takes pairs of a token and a number, got {show(pair)}", param="logit_bias"
            )
        key, value = pair
        result |= dict.fromkeys(_tokens("logit_bias", key, tokenize), _bias(key, value))
    for key in banned:
        result |= dict.fromkeys(_tokens("banned_tokens", key, tokenize), -math.inf)
    if len(result) > MAX_LOGIT_BIASES:
        raise _too_many(f"{len(result)} tokens")
    return tuple(result.items())


def _too_many(got: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"logit_bias and banned_tokens have {got}; the limit is {MAX_LOGIT_BIASES} in all, so leave some out",
        param="logit_bias",
    )


def _bias(key: Any, value: Any) -> float:
    if value is False:
        return -math.inf
    try:
        bias = float(not_a_bool(value))
    except (ValueError, TypeError, OverflowError):
        raise InvalidRequestError(
            f"logit_bias takes a number or false for {show(key)}, got {show(value)}", param="logit_bias"
        ) from None
    return bias if math.isfinite(bias) else math.nan  # only `false` may become an infinite bias; the engine refuses NaN


def _tokens(name: str, key: Any, tokenize: Tokenize) -> tuple[int, ...]:
    """The tokens that a key stands for: an id, as a number or as digits, or a text."""
    if is_token(key):
        return (key,)
    if not (isinstance(key, str) and key):
        raise InvalidRequestError(f"{name} takes token ids and strings, got {show(key)}", param=name)
    if not is_text(key):
        return (int(key),)
    try:
        return tokenize(key, is_prompt=False)
    except InvalidRequestError as error:  # its message calls the text a prompt
        raise InvalidRequestError(f"{name} can't be {show(key)}: {error.message}", param=name) from None


def is_text(key: Any) -> bool:
    """Whether a key is a text to tokenize, and not an id as a number or digits."""
    return isinstance(key, str) and not (key.isascii() and key.isdecimal() and len(key) < 10)


def is_token(value: Any) -> bool:
    """Whether a value may be a token id. For Python, true and false are numbers."""
    return isinstance(value, int) and not isinstance(value, bool)
