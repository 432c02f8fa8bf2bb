"""`StateCache`: keeps what was evaluated for later prompts that begin alike: in memory, and in a store that lasts.

These states don't stay in cells, because there they would slow every step down: attention walks all cells in use.

States are kept in pieces (`pieces.py`). If there is a store, each piece is written there, too, and its state may leave
the memory. Its tokens stay in memory, and its state is read when it's needed. If the store has lost the state by then,
the piece is forgotten, and the text is evaluated again.
"""

from collections.abc import Callable, Iterable, Iterator

from srb.engine.backend import Backend, Logits, State
from srb.engine.kv_cache.entries import (
    CacheEntry,
    EntryCopy,
    Hit,
    StoredEntries,
    ancestry,
    at_end,
    hit_in,
    longest,
    scored,
    size_beside,
    text_of,
)
from srb.engine.kv_cache.radix import FOR_ALL, WORTH_SHARING, Keys, Match, PrefixTree, Tokens, pack
from srb.engine.kv_cache.state_store import StateStore
from srb.engine.media import whole
from srb.engine.prompt_logprobs import Scores

Save = Callable[[int, int, int], bytearray | None]
"""Called with (start, end, max_bytes); returns the state of these positions, or None if it has more bytes."""


class StateCache:
    """States of sequences, up to `max_bytes` in memory. Those that were used least recently leave first.

    store: where they outlive the process.
    """

    def __init__(self, backend: Backend, max_bytes: int, store: StateStore | None = None) -> None:
        self.max_bytes = max_bytes
        self.size = 0  # bytes
        self.n_set_aside = 0  # bytes of states that are swapped out; they count as if they were kept here
        self._backend = backend
        self._stored = StoredEntries(store)
        self.lasts = self._stored.lasts
        self.keeps = max_bytes > 0 or self.lasts
        self._tree: PrefixTree[CacheEntry] = PrefixTree()
        self._by_use: dict[
            CacheEntry, None
        ] = {}  # pieces in memory, the least recently used first, children before parents

    def find(self, tokens: Tokens, keys: Keys = FOR_ALL, most: int | None = None) -> tuple[Hit | None, int]:
        """The longest known beginning that can be continued, and how many of the tokens are known in all.

        most: the beginning has at most so many tokens; None: it may be the whole text.
        The beginning leaves out the last token if its logits aren't known. More tokens are known than can be continued
        if the model forgets.
        """
        matches = self._matches(tokens, keys)
        hit = hit_in(matches, len(tokens), len(tokens) if most is None else most)
        for piece in (hit.pieces[-1][0], hit.exact) if hit else ():
            self._touch(piece)
        return hit, max(match.n_tokens for match in matches)

    def score(self, scores: Scores, keys: Keys = FOR_ALL) -> None:
        """Fills in the log-probabilities that are known of a text's first tokens."""
        for match in self._matches(scores.tokens, keys):
            if (piece := scored(match, scores.top)) and piece.scores:
                scores.take(piece.scores)
                self._touch(piece)

    def check(self, tokens: Tokens, keys: Keys = FOR_ALL) -> None:
        """Lets the store check its files for some tokens. May be called from any thread; see `StateStore.check`."""
        self._stored.check(tokens, keys)

    def states(self, hit: Hit, after: int) -> Iterator[tuple[State, int, int]]:
        """The states of a hit from the position `after` on, one behind the other, until one is lost."""
        self._stored.mark(hit.pieces[-1][0])
        for piece, start, end in hit.pieces:
            if start == end or start < after:
                continue
            state = self._state(piece)
            if state is None:
                self._forget(piece)
                return
            yield state, start, end

    def logits(self, hit: Hit) -> Logits | None:
        """The logits behind the whole text of a hit; None if they aren't known, or were lost."""
        piece = hit.exact
        if piece is None:
            return None
        if piece.logits is not None:
            return piece.logits
        stored = self._stored.read(piece)
        if stored is None:
            self._forget(piece)
        elif stored[1] is not None:
            return self._backend.logits_of(stored[1])
        return None

    def add(
        self,
        tokens: Tokens,
        save: Save,
        logits: Logits | None = None,
        keys: Keys = FOR_ALL,
        scores: Scores | None = None,
    ) -> None:
        """Keeps what isn't known yet of a state, and log-probabilities. `save` is told how many bytes can be kept."""
        if not self.keeps or len(tokens) < WORTH_SHARING:
            return
        matches = self._matches(tokens, keys)
        own, *others = (at_end(match, len(tokens)) for match in matches)
        others = [each for each in others if each and each.has(scores)]
        enough = (each for each in (own, *others) if each and (each.has_logits or logits is None))
        piece, n_tokens = next(enough, own), len(tokens)
        if piece is None:
            parent, start = longest(matches, n_tokens)
            start = self._in_whole_blocks(tokens, start)
            if start == n_tokens and logits is None:
                return
            if start < WORTH_SHARING:
                parent, start = None, 0
            most = max(self.max_bytes, self._stored.room)
            room = most - size_beside(n_tokens - start, logits)
            if room < 0:
                return
            state = save(start, n_tokens, room) if start < n_tokens else bytearray()
            if state is None:
                return
            piece = self._piece(keys[0], start, tokens[start:], parent, state, logits, logits is not None)
            self._stored.write(piece, tokens)
            self._tree.add(piece, tokens, piece.key)
            self._hold(piece)
        elif logits is not None and not piece.has_logits:
            self._add_logits(piece, tokens, logits)
        if piece in self._by_use and not piece.has(scores):
            self.size += piece.take(scores)
            self._shrink()
        self._touch(piece)
        self._stored.mark(piece)

    @property
    def room(self) -> int:
        """How many bytes can be set aside."""
        return max(0, self.max_bytes - self.n_set_aside)

    def set_aside(self, n_bytes: int) -> None:
        """Sets memory aside for states that are swapped out, or gives it back (a negative number)."""
        self.n_set_aside += n_bytes
        self._shrink()

    def copies(self, tokens: Tokens, keys: Keys = FOR_ALL) -> tuple[int, list[EntryCopy]]:
        """How many of some tokens are known, and the pieces that hold these, as `put` takes them."""
        piece, n_tokens = longest(self._matches(tokens, keys), len(tokens))
        copies = []
        for each in reversed(list(ancestry(piece))):
            if each.state is not None:
                state, logits = each.state, None if each.logits is None else each.logits.tobytes()
            elif stored := self._stored.read(each):
                state, logits = stored
            else:
                self._forget(each)
                return self.copies(tokens, keys)
            copies.append(EntryCopy(each.start, each.tokens, state, logits))
        return n_tokens, copies

    def known(self, tokens: Tokens, keys: Keys = FOR_ALL) -> int:
        """How many of some tokens are known and can be continued."""
        return longest(self._matches(tokens, keys), len(tokens))[1]

    def runs(self, key: str = "") -> list[tuple[int, Tokens]]:
        """The tokens of all texts that are known; see `PrefixTree.runs`."""
        return [(start, run[:]) for start, run in self._tree.runs(key)]

    def put(self, copies: Iterable[EntryCopy], keys: Keys = FOR_ALL) -> None:
        """Keeps pieces that `copies` returned, here or in another process, parents before their children."""
        parent, before = None, pack(())
        for each in copies:
            tokens = before[: each.start] + each.tokens
            piece = next(filter(None, (at_end(match, len(tokens)) for match in self._matches(tokens, keys))), None)
            if piece is None:
                logits = None if each.logits is None else self._backend.logits_of(each.logits)
                piece = self._piece(keys[0], each.start, each.tokens, parent, each.state, logits, logits is not None)
                self._stored.write(piece, tokens)
                self._tree.add(piece, tokens, piece.key)
                self._hold(piece)
                if piece not in self._tree:  # there was no room for it
                    return
            parent, before = piece, tokens

    def erase(self, tokens: Tokens, keys: Keys = FOR_ALL) -> int:
        """Forgets a text, but not the pieces that other texts share. Returns how many tokens were known."""
        piece, n_tokens = longest(self._matches(tokens, keys), len(tokens))
        for each in list(ancestry(piece)):
            if each.children or each.key != keys[0]:
                break
            self._stored.remove(each)
            self._forget(each)
        return n_tokens

    def _in_whole_blocks(self, tokens: Tokens, start: int) -> int:
        """How many of the first `start` tokens a text can share: where a block ends, logits depend on all of it."""
        block = self._backend.block_size
        while block and (end := whole(tokens, start - start % block)) < start:
            start = end
        return start

    def _matches(self, tokens: Tokens, keys: Keys) -> list[Match[CacheEntry]]:
        """What is known of some tokens with each of these keys."""
        self._read_store(tokens, keys)
        return [self._tree.find(tokens, key) for key in keys]

    def _piece(
        self,
        key: str,
        start: int,
        tokens: Tokens,
        parent: CacheEntry | None,
        state: State | None,
        logits: Logits | None,
        has_logits: bool,
        name: str | None = None,
    ) -> CacheEntry:
        window = self._backend.window
        can_be_cut = window is None or len(tokens) < window
        first = start + (1 if can_be_cut else len(tokens))
        piece = CacheEntry(key, start, tokens, first, parent, state, logits, has_logits, name)
        if parent:
            parent.children.add(piece)
        self._stored.add(piece)
        return piece

    def _add_logits(self, piece: CacheEntry, tokens: Tokens, logits: Logits) -> None:
        state, is_held = self._state(piece), piece in self._by_use
        if state is None:
            self._forget(piece)
            return
        piece.state, piece.logits, piece.has_logits = state, logits, True
        self._stored.write(piece, tokens)
        if is_held:
            self.size += logits.nbytes
            self._shrink()
        else:
            piece.state = piece.logits = None

    # In memory

    def _hold(self, piece: CacheEntry) -> None:
        if piece.size > self.max_bytes:
            self._leave(piece)
            return
        self._by_use[piece] = None
        self.size += piece.size
        self._touch(piece)
        self._shrink()

    def _shrink(self) -> None:
        while self._by_use and self.size + self.n_set_aside > self.max_bytes:
            oldest = next(iter(self._by_use))
            del self._by_use[oldest]
            self.size -= oldest.size
            self._leave(oldest)

    def _leave(self, piece: CacheEntry) -> None:
        """Takes a piece out of memory. If it is stored, it can still be found."""
        if piece in self._stored:
            piece.state = piece.logits = piece.scores = None
        else:
            self._forget(piece)

    def _forget(self, piece: CacheEntry) -> None:
        """Forgets a piece, and with it all pieces that continue it. To forget one twice does no harm."""
        if piece not in self._tree:  # several prompts may begin with it, and each finds out that its state was lost
            return
        if piece.parent:
            piece.parent.children.discard(piece)
        lost = [piece]
        while lost:
            each = lost.pop()
            lost += each.children
            if each in self._by_use:
                del self._by_use[each]
                self.size -= each.size
            self._stored.forget(each)
            self._tree.remove(each)

    def _touch(self, piece: CacheEntry | None) -> None:
        for each in ancestry(piece):
            if each in self._by_use:
                del self._by_use[each]
                self._by_use[each] = None

    # In the store

    def _read_store(self, tokens: Tokens, keys: Keys) -> None:
        texts: dict[CacheEntry, Tokens] = {}
        for record, parent in self._stored.new(tokens, keys):
            if parent and parent not in texts:
                texts |= text_of(parent)
            all_tokens = (texts[parent][: record.start] if parent else pack(())) + record.tokens
            piece = self._piece(
                record.key, record.start, record.tokens, parent, None, None, record.has_logits, record.name
            )
            self._tree.add(piece, all_tokens, record.key)
            texts[piece] = all_tokens

    def _state(self, piece: CacheEntry) -> State | None:
        if piece.state is not None:
            return piece.state
        return (stored := self._stored.read(piece)) and stored[0]
