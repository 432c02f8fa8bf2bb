"""Cache entries: the state of a part of a text, and how much of a text entries can continue.

An entry has only what its parent doesn't have, so the entry of an answer begins after its prompt:

    entry A: tokens 0 to 100             a prompt
    └─ entry B: tokens 100 to 150        an answer to it
       └─ entry C: tokens 150 to 180     what was said next

To continue after 180 tokens, A, B and C are put back into cells, one after the other. To continue after 120 tokens, A
and the first 20 tokens of B are put back, but only if B can be cut. A model with a sliding window saves only the window
at an entry's end, so it can only cut an entry that is shorter than the window. A recurrent model saves only the state
at an entry's end, so it can't cut any.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import itemgetter

from srb.engine.backend import Logits, State
from srb.engine.kv_cache.radix import Match, Tokens, pack
from srb.engine.prompt_scores import Scores

_BYTES_PER_TOKEN = 8
"""The memory for a token, besides its state."""

_TRIES = 32
"""The most texts with the same beginning that are searched for log-probabilities."""


@dataclass(slots=True, eq=False)
class CacheEntry:
    """The state of some tokens.

    Attributes:
        key: that of its text. Its parent may have another one (`srb.engine.kv_cache.radix`).
        start: the position of its first token. The tokens before it are its parent's.
        tokens: its own tokens.
        first: the fewest tokens of the text, from its beginning, after which it can be continued in this entry.
        state, logits: None if they aren't in memory.
        has_logits: whether the logits after its last token are known, in memory or in the store.
        name: its name in the store.
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
        """The position after its last token."""
        return self.start + len(self.tokens)

    @property
    def size(self) -> int:
        """The bytes that it takes in memory."""
        scores = self.scores.nbytes if self.scores else 0
        return (0 if self.state is None else len(self.state)) + size_besides(len(self.tokens), self.logits) + scores

    def has(self, scores: Scores | None) -> bool:
        """Whether it has these log-probabilities. If some of its text's are lacking, there is nothing to have."""
        if scores is None or scores.end < self.end:
            return True
        return self.scores is not None and self.scores.top >= scores.top


@dataclass(frozen=True, slots=True)
class Hit:
    """The cached beginning of a text.

    Attributes:
        n_tokens: its length.
        entries: those that have these tokens, each with its first position and the position after its last.
        exact: the entry with the logits after the whole text, if these are known.
    """

    n_tokens: int
    entries: list[tuple[CacheEntry, int, int]]
    exact: CacheEntry | None

    def up_to(self, n_tokens: int) -> "Hit | None":
        """Returns its first `n_tokens`, if there are any; all of it if it is the whole text."""
        if self.exact or n_tokens == self.n_tokens:
            return self
        entries = [(entry, start, min(end, n_tokens)) for entry, start, end in self.entries if start < n_tokens]
        return Hit(n_tokens, entries, None) if entries else None


def size_besides(n_tokens: int, logits: Logits | None) -> int:
    """Returns the bytes that are cached besides the state of `n_tokens`."""
    return _BYTES_PER_TOKEN * n_tokens + (0 if logits is None else logits.nbytes)


def ancestry(entry: CacheEntry | None) -> Iterator[CacheEntry]:
    """Yields an entry, its parent, and so on up to the first entry of its text."""
    while entry:
        yield entry
        entry = entry.parent


def text_of(entry: CacheEntry) -> list[tuple[CacheEntry, Tokens]]:
    """Returns the entries of a text up to this one, from the first on, each with all tokens up to its end."""
    text, entries = pack(()), list[tuple[CacheEntry, Tokens]]()
    for each in reversed(list(ancestry(entry))):
        text = text[: each.start] + each.tokens
        entries.append((each, text))
    return entries


def at_end(match: Match[CacheEntry], n_tokens: int) -> Iterator[CacheEntry]:
    """Yields the entries that end exactly where the searched text ends, which has `n_tokens`."""
    return (entry for end, entry in match.ends() if end == n_tokens)


def longest(matches: list[Match[CacheEntry]], most: int) -> tuple[CacheEntry | None, int]:
    """Returns where the longest beginning of up to `most` tokens ends that can be continued, and its length."""
    return max((_longest_in(match, most) for match in matches), key=itemgetter(1))


def _longest_in(match: Match[CacheEntry], most: int) -> tuple[CacheEntry | None, int]:
    candidates = [_cut(entry, min(match.n_tokens, most)) for entry in islice(match.below(), 1)]
    candidates += [_cut(entry, min(end, most)) for end, entry in match.ends()]
    return max(candidates, key=itemgetter(1), default=(None, 0))


def _cut(entry: CacheEntry | None, n_tokens: int) -> tuple[CacheEntry | None, int]:
    """Returns where the first `n_tokens` end, or as many of them as can be continued, and their number."""
    while entry and n_tokens < entry.first:
        n_tokens = min(n_tokens, entry.start)
        entry = entry.parent
    return entry, n_tokens


def hit_in(matches: list[Match[CacheEntry]], n_tokens: int, most: int) -> Hit | None:
    """Returns the longest beginning of a text of `n_tokens` that can be continued, of up to `most` tokens."""
    found: list[tuple[CacheEntry | None, int, CacheEntry | None]] = []
    for match in matches:
        exact = next((each for each in at_end(match, n_tokens) if each.has_logits), None)
        found.append((*_longest_in(match, min(most, n_tokens - (exact is None))), exact))
    entry, known, exact = max(found, key=itemgetter(1))
    entries: list[tuple[CacheEntry, int, int]] = []
    end = known
    for each in ancestry(entry):
        entries.insert(0, (each, each.start, end))
        end = each.start
    return Hit(known, entries, exact if known == n_tokens else None) if entries else None


def scored(match: Match[CacheEntry], top: int) -> CacheEntry | None:
    """Returns an entry with the log-probabilities of a text that begins like the searched one.

    Only some of the texts that have most in common are looked at.

    Args:
        top: how many of the likeliest tokens must be known at each place.
    """
    alike = chain(islice(match.below(), _TRIES), (entry for _, entry in match.ends()))
    return next((entry for entry in alike if entry.scores and entry.scores.top >= top), None)
