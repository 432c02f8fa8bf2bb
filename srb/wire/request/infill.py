"""Makes fill-in-the-middle prompts of the texts before and after a gap, for models that have special tokens for this.

The layout is that of Qwen2.5-Coder (Hui et al., arXiv 2409.12186): files of the repository, prefix, suffix, middle.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from srb.engine.asking.model import SpecialTokens
from srb.errors import NotSupportedError

REPOSITORY = "repository"
FILE = "file"


@dataclass(frozen=True)
class Infill:
    """The token ids of a prompt.

    extra: other texts that may help. gap: the prefix, the suffix, and the token after which the model fills the gap.
    """

    extra: tuple[int, ...]
    gap: tuple[int, ...]


def infill(
    prefix: Iterable[int],
    suffix: Iterable[int],
    files: Iterable[tuple[str, str]],
    special: SpecialTokens,
    tokens_of: Callable[[str], tuple[int, ...]],
) -> Infill:
    """The tokens of a fill-in-the-middle prompt.

    files: names and texts of other files. tokens_of: makes tokens of a text; names of special tokens in it are text.
    Raises `NotSupportedError` if the model has no fill-in-the-middle tokens.
    """
    if special.fim_pre is None or special.fim_suf is None or special.fim_mid is None:
        raise NotSupportedError("the model has no fill-in-the-middle tokens; use one that was trained for it")
    extra: list[int] = []
    if special.fim_rep is not None:
        extra += [special.fim_rep, *tokens_of(f"{REPOSITORY}\n")]
    for name, text in files:
        extra += _file_head(name, special, tokens_of) + list(tokens_of(text))
    if special.fim_sep is not None:
        extra += _file_head(FILE, special, tokens_of)
    return Infill(tuple(extra), (special.fim_pre, *prefix, special.fim_suf, *suffix, special.fim_mid))


def _file_head(name: str, special: SpecialTokens, tokens_of: Callable[[str], tuple[int, ...]]) -> list[int]:
    """The tokens between a file and the one before it."""
    if special.fim_sep is None:
        return list(tokens_of("\n\n"))
    return [special.fim_sep, *tokens_of(f"{name}\n")]
