"""Texts and token ids as bodies have them, and the vocabulary that makes one of the other."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator

from srb.engine.asking.model import ChatTemplate, Tokenizer
from srb.errors import InvalidRequestError
from srb.wire.tokens.named_tokens import is_token, join_tokens


def _as_parts(value: Any) -> Any:
    parts = value if isinstance(value, list) else [value]
    if not all(isinstance(part, str) or is_token(part) for part in parts):
        raise ValueError("Input should be a string, or a list of token ids and strings")
    return parts


Parts = Annotated[list[Any], BeforeValidator(_as_parts)]
"""A text, or token ids and texts."""


@dataclass(frozen=True)
class Vocabulary:
    """What these functions need of a model: its name, its tokenizer, and its chat template if it has one.

    n_cells: the size of the context, in tokens.
    """

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
    """Returns the tokens. Raises `InvalidRequestError` if one isn't in the vocabulary. name: of the field with them."""
    for token in tokens:
        if not 0 <= token < n_vocab:
            raise InvalidRequestError(
                f"{name} has the token id {token!s:.60}; the model's ids go from 0 to {n_vocab - 1}", param=name
            )
    return tokens
