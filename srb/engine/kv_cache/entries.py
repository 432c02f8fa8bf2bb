"""`StoredEntries`: the pieces that a store has, so that `StateCache` needn't ask whether there is a store."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import itemgetter

from srb.engine.backend import Logits, State
from srb.engine.kv_cache.radix import WORTH_SHARING, Keys, Match, Tokens, pack
from srb.engine.kv_cache.state_store import Record, StateStore
from srb.engine.prompt_logprobs import Scores

# `CacheEntry`: the state of a part of a text, as it is retained. Functions say how much of a text pieces can
# continue. A piece has only what its parent doesn't have. So the piece of an answer begins behind its prompt: piece
# A: tokens 0 to 100 a prompt └─ piece B: tokens 100 to 150 an answer to it └─ piece C: tokens 150 to 180 what was
# said next To continue after 180 tokens, A, B and C are put back into cells, one behind the other. To continue after
# 120 tokens, A and the first 20 tokens of B are put back, but only if B can be cut. A model with a sliding window
# saves only the window at a piece's end, so only a piece that is shorter than the window can be cut. A recurrent
# model saves only the state at a piece's end, so none of its pieces can be cut.

_BYTES_PER_TOKEN = 8
"""The memory for a token beside its state."""

_TRIES = 32
"""At most so many texts that have as much in common are searched for log-probabilities."""


@dataclass(slots=True, eq=False)
class CacheEntry:
    """The state of `tokens`, of which the first has the position `start`. The tokens before these are its parent's.

    key: that of its text. Its parent may have another one; see `srb.engine.kv_cache.radix`.
    first: to be continued in this piece, the text must keep at least so many tokens, counted from its beginning.
    state, logits: None if they aren't in memory. name: its name in the store.
    scores: the log-probabilities of all tokens of the text up to its end, if this text was scored.
    """

    key: str
    start: int
    tokens: Tokens
    first: int
    parent: "CacheEntry | None"
    state: State | None
    logits: Logits | None
    has_logits: bool
    name: str | None = None
    scores: Scores | None = None
    children: "set[CacheEntry]" = field(default_factory=set)

    @property
    def end(self) -> int:
        """The position behind its last token."""
        return self.start + len(self.tokens)

    def has(self, scores: Scores | None) -> bool:
        """Whether it has these log-probabilities. There is nothing to have if some of its text's are lacking."""
        if scores is None or scores.end < self.end:
            return True
        return self.scores is not None and self.scores.top >= scores.top

    def take(self, scores: Scores | None) -> int:
        """Keeps log-probabilities in place of those that it has. Returns how many bytes more it takes."""
        before, self.scores = self.size, scores
        return self.size - before

    @property
    def size(self) -> int:
        """The bytes that it takes in memory."""
        scores = self.scores.nbytes if self.scores else 0
        return (0 if self.state is None else len(self.state)) + size_beside(len(self.tokens), self.logits) + scores


@dataclass(frozen=True, slots=True)
class EntryCopy:
    """A piece alone, to be kept elsewhere: the state of `tokens` from `start` on, and the bytes of its logits."""

    start: int
    tokens: Tokens
    state: State
    logits: bytes | None


@dataclass(frozen=True, slots=True)
class Hit:
    """What is known of a text: its first `n_tokens`.

    pieces: those that hold these tokens, each with its first position and the position behind its last.
    exact: the piece with the logits behind the whole text, if these are known.
    """

    n_tokens: int
    pieces: list[tuple[CacheEntry, int, int]]
    exact: CacheEntry | None

    def up_to(self, n_tokens: int) -> "Hit | None":
        """Its first `n_tokens`, if there are any; all of it if it is the whole text."""
        if self.exact or n_tokens == self.n_tokens:
            return self
        pieces = [(piece, start, min(end, n_tokens)) for piece, start, end in self.pieces if start < n_tokens]
        return Hit(n_tokens, pieces, None) if pieces else None


def text_of(piece: CacheEntry) -> list[tuple[CacheEntry, Tokens]]:
    """The pieces of a text up to this one, from the first on, each with all tokens of the text up to its end."""
    text, pieces = pack(()), list[tuple[CacheEntry, Tokens]]()
    for each in reversed(list(ancestry(piece))):
        text = text[: each.start] + each.tokens
        pieces.append((each, text))
    return pieces


def ancestry(piece: CacheEntry | None) -> Iterator[CacheEntry]:
    """A piece, its parent, and so on up to the first piece of its text."""
    while piece:
        yield piece
        piece = piece.parent


def at_end(match: Match[CacheEntry], n_tokens: int) -> CacheEntry | None:
    """The piece that ends exactly where the searched text ends, which has `n_tokens`; None if there is none."""
    end, piece = next(match.ends(), (0, None))
    return piece if end == n_tokens else None


def longest(matches: list[Match[CacheEntry]], most: int) -> tuple[CacheEntry | None, int]:
    """The piece in which the longest beginning ends that can be continued, of up to `most` tokens, and its length."""
    return max((_longest_in(match, most) for match in matches), key=itemgetter(1))


def _longest_in(match: Match[CacheEntry], most: int) -> tuple[CacheEntry | None, int]:
    candidates = [_cut(piece, min(match.n_tokens, most)) for piece in islice(match.below(), 1)]
    candidates += [_cut(piece, min(end, most)) for end, piece in match.ends()]
    return max(candidates, key=lambda candidate: candidate[1], default=(None, 0))


def hit_in(matches: list[Match[CacheEntry]], n_tokens: int, most: int) -> Hit | None:
    """The longest beginning of a text of `n_tokens` that can be continued, of up to `most` tokens."""
    found: list[tuple[CacheEntry | None, int, CacheEntry | None]] = []
    for match in matches:
        exact = at_end(match, n_tokens) if most == n_tokens else None
        if exact and not exact.has_logits:
            exact = None
        found.append((*_longest_in(match, min(most, n_tokens - (exact is None))), exact))
    piece, known, exact = max(found, key=itemgetter(1))
    pieces: list[tuple[CacheEntry, int, int]] = []
    end = known
    for each in ancestry(piece):
        pieces.insert(0, (each, each.start, end))
        end = each.start
    return Hit(known, pieces, exact if known == n_tokens else None) if pieces else None


def scored(match: Match[CacheEntry], top: int) -> CacheEntry | None:
    """A piece with the log-probabilities of a text that begins like the searched one, and `top` likeliest tokens.

    Only some are looked at of the texts that have most in common.
    """
    alike = chain(islice(match.below(), _TRIES), (piece for _, piece in match.ends()))
    return next((piece for piece in alike if piece.scores and piece.scores.top >= top), None)


def _cut(piece: CacheEntry | None, n_tokens: int) -> tuple[CacheEntry | None, int]:
    """The piece in which the first `n_tokens` end, or as many of them as can be continued, and their number."""
    while piece and n_tokens < piece.first:
        n_tokens = min(n_tokens, piece.start)
        piece = piece.parent
    return piece, n_tokens


def size_beside(n_tokens: int, logits: Logits | None) -> int:
    """The bytes that are kept beside a state of so many tokens."""
    return _BYTES_PER_TOKEN * n_tokens + (0 if logits is None else logits.nbytes)


def family_of(tokens: Tokens, key: str) -> str:
    """The family of a text: texts with the same key and first tokens have the same one, and so can share pieces."""
    return hashlib.sha256(tokens[:WORTH_SHARING].tobytes() + key.encode()).hexdigest()[:16]


class StoredEntries:
    """Writes pieces to a store, and finds them there. Without a store it has none."""

    def __init__(self, store: StateStore | None) -> None:
        self._store = store
        self._families: set[str] = set()  # those that were read already
        self._named: dict[str, CacheEntry] = {}  # pieces that the store has, or had, by their names

    @property
    def lasts(self) -> bool:
        """Whether there is a store."""
        return self._store is not None

    @property
    def room(self) -> int:
        """How many bytes it can take now."""
        return self._store.room if self._store else 0

    def __contains__(self, piece: CacheEntry) -> bool:
        return self._store is not None and piece.name is not None and piece.name in self._store

    def check(self, tokens: Tokens, keys: Keys) -> None:
        """Lets the store check its files for some tokens. May be called from any thread; see `StateStore.check`."""
        if self._store:
            self._store.check([family_of(tokens, key) for key in reversed(keys)], tokens)

    def new(self, tokens: Tokens, keys: Keys) -> Iterator[tuple[Record, CacheEntry | None]]:
        """Once for each family of texts, the records that the store had of them at its start, and their parents.

        Call `add` with the piece of each, before the next.
        """
        for key in reversed(keys):  # the own one last, because its texts may continue those of the others
            family = family_of(tokens, key)
            if self._store is None or family in self._families:
                continue
            self._families.add(family)
            for record in self._store.find(family):
                parent = self._named.get(record.parent) if record.parent else None
                if parent or not record.parent:  # else it was lost since
                    yield record, parent

    def add(self, piece: CacheEntry) -> None:
        """Remembers a piece by its name."""
        if piece.name:
            self._named[piece.name] = piece

    def read(self, piece: CacheEntry) -> tuple[State, bytes | None] | None:
        """The state and the logits of a piece; None if the store doesn't have it any more."""
        return self._store.get(piece.name) if self._store and piece.name else None

    def write(self, piece: CacheEntry, tokens: Tokens) -> None:
        """Stores a piece, and first those of its ancestors that the store doesn't have."""
        if self._store is None:
            return
        for each in reversed(list(ancestry(piece))):
            if each is piece or each not in self:
                if each.state is None:
                    return
                logits = None if each.logits is None else each.logits.tobytes()
                parent = each.parent.name if each.parent else None
                family = family_of(tokens, each.key)
                each.name = self._store.put(family, parent, each.start, each.tokens, each.key, each.state, logits)
                if each.name is None:
                    return
                self.add(each)

    def mark(self, piece: CacheEntry) -> None:
        """Tells the store that a piece and its ancestors were used."""
        if self._store:
            self._store.touch([each.name for each in ancestry(piece) if each.name])

    def remove(self, piece: CacheEntry) -> None:
        """Removes a piece from the store. No other piece continues it."""
        if self._store and piece.name:
            self._store.remove(piece.name)

    def forget(self, piece: CacheEntry) -> None:
        """Forgets the name of a piece."""
        if piece.name:
            self._named.pop(piece.name, None)
