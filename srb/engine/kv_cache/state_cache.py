"""Cached states: what was computed for earlier requests, in memory and in a state store, for prompts that begin alike.

States don't stay in cells, because there they would slow every step down: attention walks all cells in use. They are
cached in entries (`entries.py`). If there is a store, each entry is written there, too, and its state may leave the
memory. Its tokens stay, and its state is read when it's needed. If the store has lost the state by then, the entry is
forgotten, and the text is computed again.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator

from srb.engine.backend import Backend, Logits, State
from srb.engine.kv_cache.entries import (
    CacheEntry,
    Hit,
    ancestry,
    at_end,
    hit_in,
    longest,
    scored,
    size_besides,
    text_of,
)
from srb.engine.kv_cache.radix import FOR_ALL, WORTH_SHARING, Keys, Match, PrefixTree, Tokens, keys_of, pack
from srb.engine.kv_cache.state_store import EntryCopy, StateStore
from srb.engine.media import whole_blocks
from srb.engine.prompt_scores import Scores
from srb.errors import InvalidRequestError

Save = Callable[[int, int, int], bytearray | None]
"""Called with (start, end, max_bytes); returns the state of these positions, or None if it has more bytes."""


class StateCache:
    """States of sequences, up to `max_bytes` in memory. The least recently used leave first.

    Args:
        max_bytes: 0: none is cached in memory.
        store: where they outlive the process.
    """

    def __init__(self, backend: Backend, max_bytes: int, store: StateStore | None = None) -> None:
        self.max_bytes = max_bytes
        self.size = 0  # bytes
        self.n_set_aside = 0  # bytes of states that are swapped out; they count as if they were cached here
        self.is_persistent = store is not None
        self.is_enabled = max_bytes > 0 or self.is_persistent
        self._backend = backend
        self._store = store
        self._tree: PrefixTree[CacheEntry] = PrefixTree()
        self._by_use: dict[CacheEntry, None] = {}  # in memory, the least recently used first, children before parents
        self._families: set[str] = set()  # those that were read from the store already
        self._by_name: dict[str, CacheEntry] = {}  # entries that the store has, or had
        self.slots: dict[tuple[str, int], Tokens] = {}
        """The tokens that alternatives ended with, by `CompletionRequest.shared_within` and the number of a slot."""

    # Lookup

    def find(self, tokens: Tokens, keys: Keys = FOR_ALL, most: int | None = None) -> tuple[Hit | None, int]:
        """Finds the longest cached beginning of a text that can be continued.

        It leaves out the last token if its logits aren't known.

        Args:
            keys: those that it is looked for with.
            most: the most tokens of the beginning; None: it may be the whole text.

        Returns:
            The beginning, and how many of the tokens are known in all: more than can be continued if the model forgets.
        """
        matches = self._matches(tokens, keys)
        hit = hit_in(matches, len(tokens), len(tokens) if most is None else most)
        for entry in (hit.entries[-1][0], hit.exact) if hit else ():
            self._touch(entry)
        return hit, max(match.n_tokens for match in matches)

    def texts(self) -> dict[str, list[tuple[int, Tokens]]]:
        """Returns the tokens of all cached texts by `CompletionRequest.shared_within` (`PrefixTree.runs`)."""
        names = {"", *(within for within, _ in self.slots)}
        return {name: [(start, run[:]) for start, run in self._tree.runs(keys_of(name)[0])] for name in names}

    def score(self, scores: Scores, keys: Keys = FOR_ALL) -> None:
        """Fills in the log-probabilities that are known of a text's first tokens."""
        for match in self._matches(scores.tokens, keys):
            if (entry := scored(match, scores.top)) and entry.scores:
                scores.take(entry.scores)
                self._touch(entry)

    def states(self, hit: Hit, after: int) -> Iterator[tuple[State, int, int]]:
        """Yields the states of a hit from the position `after` on, in order, until one is lost."""
        self._mark(hit.entries[-1][0])
        for entry, start, end in hit.entries:
            if start == end or start < after:
                continue
            state = self._state(entry)
            if state is None:
                self._forget(entry)
                return
            yield state, start, end

    def logits(self, hit: Hit) -> Logits | None:
        """Returns the logits after the whole text of a hit; None if they aren't known, or were lost."""
        entry = hit.exact
        if entry is None:
            return None
        if entry.logits is not None:
            return entry.logits
        stored = self._read(entry)
        if stored is None:
            self._forget(entry)
        elif stored[1] is not None:
            return self._backend.logits_of(stored[1])
        return None

    # Caching

    def add(
        self,
        tokens: Tokens,
        save: Save,
        logits: Logits | None = None,
        keys: Keys = FOR_ALL,
        scores: Scores | None = None,
    ) -> None:
        """Caches what isn't cached yet of a text.

        Args:
            keys: those that it is looked for with; the first one is its own.
        """
        if not self.is_enabled or len(tokens) < WORTH_SHARING:
            return
        matches = self._matches(tokens, keys)
        there = (each for match in matches for each in at_end(match, len(tokens)))
        enough = (each for each in there if each.has_logits or logits is None)
        known = next((each for each in enough if each.key == keys[0] or each.has(scores)), None)
        entry = known or self._add_new(tokens, save, logits, keys[0], matches)
        if entry is None:
            return
        if entry in self._by_use and not entry.has(scores):
            before, entry.scores = entry.size, scores
            self.size += entry.size - before
            self._shrink()
        self._touch(entry)
        self._mark(entry)

    def _add_new(
        self, tokens: Tokens, save: Save, logits: Logits | None, key: str, matches: list[Match[CacheEntry]]
    ) -> CacheEntry | None:
        """Caches the rest of a text, after what is known; returns None if it is too large.

        If the whole text is known but for the logits after it, these get an entry without tokens.
        """
        n_tokens = len(tokens)
        parent, start = longest(matches, n_tokens)
        start = whole_blocks(tokens, start, self._backend.block_size)
        if start == n_tokens and logits is None:
            return None
        if start < WORTH_SHARING:
            parent, start = None, 0
        room = max(self.max_bytes, self._store.room if self._store else 0) - size_besides(n_tokens - start, logits)
        if room < 0:
            return None
        state = save(start, n_tokens, room) if start < n_tokens else bytearray()
        return None if state is None else self._insert(key, start, tokens, parent, state, logits)

    # Texts that are stored elsewhere, or erased

    def copies(self, tokens: Tokens, keys: Keys = FOR_ALL) -> list[EntryCopy]:
        """Returns the entries of what is cached of some tokens, as `put` takes them."""
        matches = self._matches(tokens, keys)
        entry, end = longest(matches, len(tokens))
        exact = next((each for match in matches for each in at_end(match, end) if each.has_logits), None)
        last = self.logits(Hit(end, [], exact))  # they may have an entry of their own
        copies: list[EntryCopy] = []
        for each in ancestry(entry):
            if each.state is not None:
                state, logits = each.state, None if each.logits is None else each.logits.tobytes()
            elif stored := self._read(each):
                state, logits = stored
            else:
                self._forget(each)
                return self.copies(tokens, keys)
            if copies:
                copies.insert(0, EntryCopy(each.start, each.tokens, state, logits))
            elif own := each.tokens[: end - each.start]:
                copies = [EntryCopy(each.start, own, state, None if last is None else last.tobytes())]
        return copies

    def put(self, copies: Iterable[EntryCopy], keys: Keys = FOR_ALL) -> Tokens:
        """Caches a text of which `copies` returned the entries, here or in another process. Returns its tokens.

        Raises `InvalidRequestError` if there is no room for all of it.
        """
        parent, tokens = None, pack(())
        for each in copies:
            tokens = tokens[: each.start] + each.tokens
            entry = next((each for match in self._matches(tokens, keys) for each in at_end(match, len(tokens))), None)
            if entry is None and (parent is None or parent in self._tree):
                logits = None if each.logits is None else self._backend.logits_of(each.logits)
                entry = self._insert(keys[0], each.start, tokens, parent, each.state, logits)
            parent = entry or parent
        known = longest(self._matches(tokens, keys), len(tokens))[1]
        if known < len(tokens):
            raise InvalidRequestError(
                f"there is room for {known} of the {len(tokens)} tokens in the file; start the server with a larger "
                "--cache-ram, or with --cache-disk",
                param="filename",
            )
        return tokens

    def erase(self, tokens: Tokens, keys: Keys = FOR_ALL) -> int:
        """Forgets a text, but not the entries that other texts share. Returns how many tokens were cached."""
        entry, n_tokens = longest(self._matches(tokens, keys), len(tokens))
        for each in list(ancestry(entry)):
            if each.key != keys[0] or any(child.tokens or child.key != each.key for child in each.children):
                break
            for gone in (*each.children, each):  # such children have nothing but the logits after it
                if self._store and gone.name:
                    self._store.remove(gone.name)
            self._forget(each)
        return n_tokens

    def _matches(self, tokens: Tokens, keys: Keys) -> list[Match[CacheEntry]]:
        """Returns what is cached of some tokens with each of these keys."""
        self._read_families(tokens, keys)
        return [self._tree.find(tokens, key) for key in keys]

    def _insert(
        self, key: str, start: int, tokens: Tokens, parent: CacheEntry | None, state: State, logits: Logits | None
    ) -> CacheEntry:
        """Adds an entry with the tokens from `start` on."""
        entry = self._new(key, start, tokens[start:], parent, state, logits, has_logits=logits is not None)
        self._write(entry, tokens)
        self._tree.add(entry, tokens, key)
        if entry.size > self.max_bytes:
            self._leave(entry)
        else:
            self._by_use[entry] = None
            self.size += entry.size
            self._touch(entry)
            self._shrink()
        return entry

    def _new(
        self,
        key: str,
        start: int,
        tokens: Tokens,
        parent: CacheEntry | None,
        state: State | None = None,
        logits: Logits | None = None,
        *,
        has_logits: bool,
        name: str | None = None,
    ) -> CacheEntry:
        window = self._backend.window
        can_be_cut = window is None or len(tokens) < window
        first = start + (1 if can_be_cut else len(tokens))
        entry = CacheEntry(key, start, tokens, first, parent, state, logits, has_logits, name)
        if parent:
            parent.children.add(entry)
        return entry

    # In memory

    @property
    def room(self) -> int:
        """How many bytes can be set aside."""
        return max(0, self.max_bytes - self.n_set_aside)

    def set_aside(self, n_bytes: int) -> None:
        """Sets memory aside for states that are swapped out, or gives it back (a negative number)."""
        self.n_set_aside += n_bytes
        self._shrink()

    def _shrink(self) -> None:
        while self._by_use and self.size + self.n_set_aside > self.max_bytes:
            oldest = next(iter(self._by_use))
            del self._by_use[oldest]
            self.size -= oldest.size
            self._leave(oldest)

    def _leave(self, entry: CacheEntry) -> None:
        """Takes an entry out of memory. If it is stored, it can still be found."""
        if self._is_stored(entry):
            entry.state = entry.logits = entry.scores = None
        else:
            self._forget(entry)

    def _forget(self, entry: CacheEntry) -> None:
        """Forgets an entry, and with it all entries that continue it. Forgetting one twice does no harm."""
        if entry not in self._tree:  # several prompts may begin with it, and each finds out that its state was lost
            return
        if entry.parent:
            entry.parent.children.discard(entry)
        lost = [entry]
        while lost:
            each = lost.pop()
            lost += each.children
            if each in self._by_use:
                del self._by_use[each]
                self.size -= each.size
            if each.name:
                self._by_name.pop(each.name, None)
            self._tree.remove(each)

    def _touch(self, entry: CacheEntry | None) -> None:
        for each in ancestry(entry):
            if each in self._by_use:
                del self._by_use[each]
                self._by_use[each] = None

    # In the store

    def check(self, tokens: Tokens, keys: Keys = FOR_ALL) -> None:
        """Lets the store check its files for some tokens. May be called from any thread (`StateStore.check`)."""
        if self._store:
            self._store.check([_family_of(tokens, key) for key in reversed(keys)], tokens)

    def _read_families(self, tokens: Tokens, keys: Keys) -> None:
        """Adds what the store had of the families of a text at its start, once for each family."""
        store, texts = self._store, dict[CacheEntry, Tokens]()
        if store is None:
            return
        for key in reversed(keys):  # the own one last, because its texts may continue those of the others
            family = _family_of(tokens, key)
            if family in self._families:
                continue
            self._families.add(family)
            for record in store.find(family):
                parent = self._by_name.get(record.parent) if record.parent else None
                if record.parent and parent is None:  # it was lost since
                    continue
                if parent and parent not in texts:
                    texts |= text_of(parent)
                all_tokens = (texts[parent][: record.start] if parent else pack(())) + record.tokens
                entry = self._new(
                    record.key, record.start, record.tokens, parent, has_logits=record.has_logits, name=record.name
                )
                self._by_name[record.name] = entry
                self._tree.add(entry, all_tokens, record.key)
                texts[entry] = all_tokens

    def _is_stored(self, entry: CacheEntry) -> bool:
        return self._store is not None and entry.name is not None and entry.name in self._store

    def _read(self, entry: CacheEntry) -> tuple[State, bytes | None] | None:
        """Returns the state and the logits of an entry; None if the store doesn't have it any more."""
        return self._store.get(entry.name) if self._store and entry.name else None

    def _state(self, entry: CacheEntry) -> State | None:
        if entry.state is not None:
            return entry.state
        return (stored := self._read(entry)) and stored[0]

    def _write(self, entry: CacheEntry, tokens: Tokens) -> None:
        """Stores an entry, and first those of its ancestors that the store doesn't have."""
        if self._store is None:
            return
        for each in reversed(list(ancestry(entry))):
            if each is entry or not self._is_stored(each):
                if each.state is None:
                    return
                logits = None if each.logits is None else each.logits.tobytes()
                parent = each.parent.name if each.parent else None
                family = _family_of(tokens, each.key)
                each.name = self._store.put(family, parent, each.start, each.tokens, each.key, each.state, logits)
                if each.name is None:
                    return
                self._by_name[each.name] = each

    def _mark(self, entry: CacheEntry) -> None:
        """Tells the store that an entry and its ancestors were used."""
        if self._store:
            self._store.touch([each.name for each in ancestry(entry) if each.name])


def _family_of(tokens: Tokens, key: str) -> str:
    """Returns the family of a text: texts with the same key and first tokens have the same, and can share entries."""
    return hashlib.sha256(tokens[:WORTH_SHARING].tobytes() + key.encode()).hexdigest()[:16]
