"""Turns what programs give as texts into tokens."""

from collections.abc import Callable

from srb.engine.asking.kinds import Text, check_text

Tokenize = Callable[..., tuple[int, ...]]
"""`Engine.tokenize`."""


def to_tokens(text: Text, tokenize: Tokenize, *, is_prompt: bool, name: str = "prompt") -> tuple[int, ...]:
    """The tokens of a text. Tokens stay as they are. Raises `InvalidRequestError` for anything else."""
    if isinstance(text, list):
        text = tuple(text)
    check_text(name, text)
    return tokenize(text, is_prompt=is_prompt) if isinstance(text, str) else text


def pair_tokens(context: Text, continuation: Text, tokenize: Tokenize) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens of a context, and those of a continuation behind it.

    Two texts are tokenized as lm-evaluation-harness does it (`TemplateLM._encode_pair`): spaces at the end of the
    context belong to the continuation, and this has the tokens of both texts together that are behind as many as the
    context has alone. Where none are left, because its letters are in the context's last token, and where one of the
    two is given as tokens, the continuation is tokenized alone.

    Raises `InvalidRequestError` for what `Intake.tokenize` refuses.
    """
    if isinstance(context, str) and isinstance(continuation, str):
        before = context.rstrip() or context
        continuation = context[len(before) :] + continuation
        tokens = tokenize(before)
        if behind := tokenize(before + continuation)[len(tokens) :]:
            return tokens, behind
        context = tokens
    return (
        tokenize(context) if isinstance(context, str) else context,
        tokenize(continuation, is_prompt=False) if isinstance(continuation, str) else continuation,
    )
