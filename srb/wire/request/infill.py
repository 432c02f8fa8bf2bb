"""Makes fill-in-the-middle prompts of the texts before and after a gap, for models that have special tokens for this.

The layout is that of Qwen2.5-Coder (Hui et al., arXiv 2409.12186): files of the repository, prefix, suffix, middle.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from srb.engine.asking.model import SpecialTokens

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
