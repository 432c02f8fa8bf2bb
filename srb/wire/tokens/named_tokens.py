"""Reads the tokens that a body names by their ids or by texts."""

import math
from collections.abc import Iterator
from typing import Any, Protocol

from srb.errors import InvalidRequestError
from srb.wire.request.body_fields import not_a_bool
from srb.wire.request.read import show

MAX_LOGIT_BIASES = 10_000
"""How many entries one alternative's `logit_bias` and `banned_tokens` may have, and how many tokens these may mean."""

MAX_BIASED_TEXTS = 10_000
"""How many of a whole request's entries may be texts. Each is tokenized, which takes a third of a second for 10,000."""


class Tokenize(Protocol):
    """`Engine.tokenize`."""

    def __call__(self, text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]: ...


def join_tokens(parts: list[int | str], tokenize: Tokenize, *, is_prompt: bool) -> Iterator[int]:
    """The tokens of ids and texts, one after the other. A prompt that begins with a text gets BOS, as other texts."""
    for place, part in enumerate(parts):
        if isinstance(part, str):
            yield from tokenize(part, is_prompt=is_prompt and place == 0)
        else:
            yield part


def biases_of(biases: Any, banned: list[Any], tokenize: Tokenize) -> tuple[tuple[int, float], ...]:
    """Pairs of token id and bias, read from one of llama-server's two notations.

    These are {"15043": 1.0, "text": false} and [[15043, 1.0], ...]. Raises `InvalidRequestError`.
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
    """Whether a key is a text to tokenize. Otherwise it is an id, as a number or as digits."""
    return isinstance(key, str) and not (key.isascii() and key.isdecimal() and len(key) < 10)


def is_token(value: Any) -> bool:
    """Whether a value may be a token id. In Python true and false are numbers, but they are no ids."""
    return isinstance(value, int) and not isinstance(value, bool)
