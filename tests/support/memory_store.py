"""A state store in memory, which outlives the engines of a test."""

from collections.abc import Iterable
from dataclasses import dataclass

from srb.engine.backend import State
from srb.engine.kv_cache.radix import Tokens
from srb.engine.kv_cache.state_store import Record, StoreStats


@dataclass(frozen=True)
class StoredEntry:
    """An entry that the store has."""

    family: str
    record: Record
    state: State
    logits: bytes | None


class MemoryStore:
    """A store as one process sees it. The dict has the entries by name, and is the same for all processes."""

    def __init__(self, entries: dict[str, StoredEntry]) -> None:
        self._entries = entries
        self._unread = dict(entries)
        self.room = 1 << 30

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def find(self, family: str) -> Iterable[Record]:
        found = [name for name, each in self._unread.items() if each.family == family]
        return [self._unread.pop(name).record for name in found]

    def check(self, families: Iterable[str], tokens: Tokens) -> None:
        pass

    def put(
        self, family: str, parent: str | None, start: int, tokens: Tokens, key: str, state: State, logits: bytes | None
    ) -> str | None:
        assert parent is None or parent in self._entries
        name = repr((parent, start, tokens.tolist(), key))
        self._entries[name] = StoredEntry(
            family, Record(name, parent, start, tokens, key, logits is not None), state, logits
        )
        return name

    def get(self, name: str) -> tuple[State, bytes | None] | None:
        entry = self._entries.get(name)
        return (entry.state, entry.logits) if entry else None

    def remove(self, name: str) -> None:
        self._entries.pop(name, None)

    def touch(self, names: Iterable[str]) -> None:
        assert all(name in self._entries for name in names)

    def stats(self) -> StoreStats:
        return StoreStats()

    def close(self) -> None:
        pass
