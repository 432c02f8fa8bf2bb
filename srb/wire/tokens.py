"""Tokens in bodies, given as ids or as texts."""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from pydantic import BeforeValidator

from srb.engine.model import Tokenize, Tokenizer
from srb.engine.sampling_params import MAX_LOGIT_BIAS
from srb.errors import InvalidRequestError
from srb.wire.request.read import not_a_bool, show


def _as_parts(value: Any) -> Any:
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, str) or is_token(part) for part in parts):
        raise ValueError("Input should be a string, or a list of token ids and strings")
    return parts


Parts = Annotated[list[Any], BeforeValidator(_as_parts)]
"""A text, or token ids and texts."""


def tokens_of(
    parts: list[int | str], name: str, tokenizer: Tokenizer, *, add_special: bool = False, parse_special: bool = True
) -> tuple[int, ...]:
    """The tokens of the ids and texts in the field `name`. Raises `InvalidRequestError`."""

    def tokenize(text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]:
        return tokenizer.tokenize(check_text(text, name), is_prompt=is_prompt, parse_special=parse_special)

    return check_tokens(tuple(join_tokens(parts, tokenize, is_prompt=add_special)), name, tokenizer.n_vocab)


def decoded(tokens: list[int] | None, name: str, tokenizer: Tokenizer) -> str:
    """The text of the tokens in the field `name`. Raises `InvalidRequestError`."""
    known = check_tokens(tuple(tokens or ()), name, tokenizer.n_vocab)
    return tokenizer.detokenize(known).decode(errors="replace")


def name_of(token: int | None, tokenizer: Tokenizer) -> str:
    """The text of a special token; empty if the model has none."""
    return "" if token is None else decoded([token], "token", tokenizer)


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


def biases_of(
    biases: Any, banned: list[Any], tokenize: Tokenize, n_vocab: int | None
) -> tuple[tuple[tuple[int, float], ...], list[str]]:
    """Read biases in one of llama-server's notations: {"15043": 1.0, "text": false} or [[15043, 1.0], ...].

    Unknown ids begin at `n_vocab`; None: all are known. The second result is what was changed or left out, for
    `ignored`.
    """
    result: dict[int, float] = {}
    clamped: list[str] = []
    for pair in biases.items() if isinstance(biases, dict) else biases:
        if not (isinstance(pair, (list, tuple)) and len(pair) == 2):
            raise InvalidRequestError(
                f"logit_bias takes pairs of a token and a number, got {show(pair)}", param="logit_bias"
            )
        key, value = pair
        bias = -math.inf if value is False else _number(key, value)
        if value is not False and abs(bias) > MAX_LOGIT_BIAS:
            clamped.append(show(value))
            bias = math.copysign(MAX_LOGIT_BIAS, bias)
        result |= dict.fromkeys(_tokens("logit_bias", key, tokenize), bias)
    for key in banned:
        result |= dict.fromkeys(_tokens("banned_tokens", key, tokenize), -math.inf)
    known, notes = without_unknown("logit_bias" if biases else "banned_tokens", result, n_vocab)
    if clamped:
        notes.append(f"logit_bias (beyond {MAX_LOGIT_BIAS:g}: {_some(clamped)})")
    if len(known) > MAX_LOGIT_BIASES:
        notes.append(f"logit_bias (all but its first {MAX_LOGIT_BIASES} tokens)")
    return tuple((token, result[token]) for token in known[:MAX_LOGIT_BIASES]), notes


def without_unknown(name: str, ids: Iterable[int], n_vocab: int | None) -> tuple[list[int], list[str]]:
    """Return the ids that the vocabulary has, and the others as an entry of `ignored`, if there are any."""
    known: list[int] = []
    unknown: list[int] = []
    for each in ids:
        (known if n_vocab is None or 0 <= each < n_vocab else unknown).append(each)
    return known, [f"{name} (unknown ids: {_some(map(str, unknown))})"] if unknown else []


def _some(values: Iterable[str]) -> str:
    """Return the first of these values, without commas, since the names in `ignored` are joined with them."""
    shown = [f"{each:.20}" for each in values]
    return " ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")


def _number(key: Any, value: Any) -> float:
    """Return the bias of a key; it may be infinite. Raises `InvalidRequestError`."""
    try:
        bias = float(not_a_bool(value))
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (ValueError, TypeError):
        bias = math.nan
    if math.isnan(bias):
        raise InvalidRequestError(
            f"logit_bias takes a number or false for {show(key)}, got {show(value)}", param="logit_bias"
        )
    return bias


def _tokens(name: str, key: Any, tokenize: Tokenize) -> tuple[int, ...]:
    """The tokens that a key stands for: an id, as a number or as digits, or a text."""
    if is_token(key):
        return (key,)
    if not (isinstance(key, str) and key):
        raise InvalidRequestError(f"{name} takes token ids and strings, got {show(key)}", param=name)
    if not is_text(key):
        return (int(key[:20]),)  # longer ones are unknown anyway, and Python refuses to read thousands of digits
    try:
        return tokenize(key, is_prompt=False)
    except InvalidRequestError as error:  # its message calls the text a prompt
        raise InvalidRequestError(f"{name} can't be {show(key)}: {error.message}", param=name) from None


def is_text(key: Any) -> bool:
    """Whether a key is a text to tokenize, and not an id as a number or digits."""
    return isinstance(key, str) and not re.fullmatch(r"-?[0-9]+", key)


def is_token(value: Any) -> bool:
    """Whether a value may be a token id. For Python, true and false are numbers."""
    return isinstance(value, int) and not isinstance(value, bool)
