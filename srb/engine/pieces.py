"""A piece of a text's state, on its own or behind another: which texts it holds, and how much of them can be continued.

An answer's piece has only what comes behind its prompt, whose own piece is its parent:

    piece A: tokens 0 to 100      a prompt
    └─ piece B: tokens 100 to 150     an answer to it
       └─ piece C: tokens 150 to 180      what was said next

To continue after 180 tokens, A, B and C are put back one behind the other. To continue after 120, A is put back and the
first 20 tokens of B, but only where B can be cut there: what is saved of a sliding window is the window at the piece's
end, and what is saved of a recurrent state is the state there. So on such models a piece is of use at its end.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from srb.engine.backend import Logits, State
from srb.engine.radix import Match, Tokens, pack

_BYTES_PER_TOKEN = 8
"""What a token costs beside its state."""


@dataclass(slots=True, eq=False)
class Piece:
    """The state after `tokens`, which begin at `start`; what comes before is its parent's.

    first: how many tokens there must be at least, for this piece to be of use.
    state, logits: None where they aren't in memory. name: of the piece in the store.
    """

    start: int
    tokens: Tokens
    first: int
    parent: "Piece | None"
    state: State | None
    logits: Logits | None
    has_logits: bool
    name: str | None = None
    children: "set[Piece]" = field(default_factory=set)

    @property
    def end(self) -> int:
        """The position after its last."""
        return self.start + len(self.tokens)

    @property
    def size(self) -> int:
        """In bytes, in memory."""
        return (0 if self.state is None else len(self.state)) + size_beside(len(self.tokens), self.logits)


@dataclass(frozen=True, slots=True)
class PieceCopy:
    """A piece on its own: the state after `tokens`, which begin at `start`, and the bytes of the logits behind them."""

    start: int
    tokens: Tokens
    state: State
    logits: bytes | None


@dataclass(frozen=True, slots=True)
class Hit:
    """What is known of some tokens: the first `n_tokens`.

    pieces: those that hold them, each with its first position and the one after its last.
    exact: the piece with the logits of what follows the last of all tokens, if these are known.
    """

    n_tokens: int
    pieces: list[tuple[Piece, int, int]]
    exact: Piece | None


def text_of(piece: Piece) -> list[tuple[Piece, Tokens]]:
    """The pieces up to this one, from the first on, each with all tokens up to its end."""
    text, pieces = pack(()), list[tuple[Piece, Tokens]]()
    for each in reversed(list(ancestry(piece))):
        text = text[: each.start] + each.tokens
        pieces.append((each, text))
    return pieces


def ancestry(piece: Piece | None) -> Iterator[Piece]:
    """A piece, its parent, and so on to the first."""
    while piece:
        yield piece
        piece = piece.parent


def at_end(match: Match[Piece], n_tokens: int) -> Piece | None:
    """The piece that ends after all of the tokens."""
    end, piece = next(match.ends(), (0, None))
    return piece if end == n_tokens else None


def longest(match: Match[Piece], most: int) -> tuple[Piece | None, int]:
    """Where the longest beginning of up to `most` tokens ends that can be continued, and how long it is."""
    candidates = [_cut(piece, min(match.n_tokens, most)) for piece in islice(match.below(), 1)]
    candidates += [_cut(piece, min(end, most)) for end, piece in match.ends()]
    return max(candidates, key=lambda candidate: candidate[1], default=(None, 0))


def _cut(piece: Piece | None, n_tokens: int) -> tuple[Piece | None, int]:
    """The piece that holds the last of the first `n_tokens`, or of as many as can be continued."""
    while piece and n_tokens < piece.first:
        n_tokens = min(n_tokens, piece.start)
        piece = piece.parent
    return piece, n_tokens


def size_beside(n_tokens: int, logits: Logits | None) -> int:
    """What is kept beside a state of so many tokens, in bytes."""
    return _BYTES_PER_TOKEN * n_tokens + (0 if logits is None else logits.nbytes)
