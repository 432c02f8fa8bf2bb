"""`Stored`: the pieces that a store has, so that `Retained` needn't ask whether there is a store."""

from collections.abc import Iterator

from srb.engine.backend import State
from srb.engine.kept.pieces import Piece, ancestry, family_of
from srb.engine.kept.store import Record, Store
from srb.engine.kv.keys import Keys
from srb.engine.kv.radix import Tokens


class Stored:
    """Writes pieces to a store, and finds them there. Without a store it has none."""

    def __init__(self, store: Store | None) -> None:
        self._store = store
        self._families: set[str] = set()  # those that were read already
        self._named: dict[str, Piece] = {}  # pieces that the store has, or had, by their names

    @property
    def lasts(self) -> bool:
        """Whether there is a store."""
        return self._store is not None

    @property
    def room(self) -> int:
        """How many bytes it can take now."""
        return self._store.room if self._store else 0

    def __contains__(self, piece: Piece) -> bool:
        return self._store is not None and piece.name is not None and piece.name in self._store

    def check(self, tokens: Tokens, keys: Keys) -> None:
        """Lets the store check its files for some tokens. May be called from any thread; see `Store.check`."""
        if self._store:
            self._store.check([family_of(tokens, key) for key in reversed(keys)], tokens)

    def new(self, tokens: Tokens, keys: Keys) -> Iterator[tuple[Record, Piece | None]]:
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

    def add(self, piece: Piece) -> None:
        """Remembers a piece by its name."""
        if piece.name:
            self._named[piece.name] = piece

    def read(self, piece: Piece) -> tuple[State, bytes | None] | None:
        """The state and the logits of a piece; None if the store doesn't have it any more."""
        return self._store.get(piece.name) if self._store and piece.name else None

    def write(self, piece: Piece, tokens: Tokens) -> None:
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

    def mark(self, piece: Piece) -> None:
        """Tells the store that a piece and its ancestors were used."""
        if self._store:
            self._store.touch([each.name for each in ancestry(piece) if each.name])

    def remove(self, piece: Piece) -> None:
        """Removes a piece from the store. No other piece continues it."""
        if self._store and piece.name:
            self._store.remove(piece.name)

    def forget(self, piece: Piece) -> None:
        """Forgets the name of a piece."""
        if piece.name:
            self._named.pop(piece.name, None)
