"""DRY's sequence breakers, and a bound of what they cost.

llama.cpp looks for each breaker in the texts of all tokens. It notes the tokens that have the breaker in them, and
those that end where it begins; for each of these it tokenizes the rest of the breaker. All this is done in a worker
thread. But the sampler of each alternative has a copy of the notes, which is made in the engine's thread.
"""

from collections.abc import Iterable
from itertools import takewhile

from srb.errors import InvalidRequestError

MAX_TOKENS = 20_000
"""How many notes the breakers of one alternative may make. A copy takes about 1 ms then, and tokenizing 0.8 s."""
MAX_IN_ALL = 128
"""How many breakers the different DRY settings of a request may have together. Each takes 5 ms with 50,000 tokens."""

_MAX_BYTES = 40  # llama.cpp cuts longer ones off


def as_read(breakers: Iterable[str]) -> dict[bytes, str]:
    """The breakers as llama.cpp reads them, each once, and the texts that they are made of."""
    read = {text.encode(errors="replace").partition(b"\0")[0][:_MAX_BYTES]: text for text in breakers}
    read.pop(b"", None)
    return read


def check_breakers(texts: bytes, lists: Iterable[tuple[str, ...]]) -> None:
    """Raises `InvalidRequestError` if breakers would take too long.

    texts: those of all tokens, with a zero byte behind each. lists: the breakers of each different DRY setting.
    """
    settings = [as_read(each) for each in lists]
    n_in_all = sum(map(len, settings))
    if n_in_all > MAX_IN_ALL:
        raise InvalidRequestError(
            f"dry_sequence_breakers: the different DRY settings of branches have {n_in_all} breakers together; the "
            f"limit is {MAX_IN_ALL}; give more branches the same DRY settings, or fewer breakers",
            param="dry_sequence_breakers",
        )
    counts: dict[bytes, int] = {}

    def count(text: bytes) -> int:
        if text not in counts:
            counts[text] = texts.count(text)
        return counts[text]

    def ends(breaker: bytes) -> int:
        starts = (breaker[:n] for n in range(1, len(breaker)))
        return sum(count(start + b"\0") for start in takewhile(count, starts))

    n_ends_in_all = 0
    for breakers in settings:
        n_ends = {breaker: ends(breaker) for breaker in breakers}
        n_notes = {breaker: count(breaker) + n_ends[breaker] for breaker in breakers}
        n_ends_in_all += sum(n_ends.values())
        if (n := max(sum(n_notes.values()), n_ends_in_all)) > MAX_TOKENS:
            worst = max(n_notes, key=n_notes.__getitem__)
            raise InvalidRequestError(
                f"dry_sequence_breakers are in {n} texts of the model's tokens, or begin at their ends; the limit is "
                f"{MAX_TOKENS}; leave out {breakers[worst]!r}, which has {n_notes[worst]} of them",
                param="dry_sequence_breakers",
            )
