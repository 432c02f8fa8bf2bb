"""`Store`: what the engine needs of a place where retained states outlive the process, as `srb.files.disk_cache`.

A thread of the store writes each piece to a file, too. `Retained` has all pieces, also those whose state is only in a
file; this is read when a prompt begins with it. A piece may be lost at any time. The engine notices this when it needs
the piece: it then forgets the piece with everything that continues it, and evaluates it again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from srb.engine.backend import State
from srb.engine.kv.radix import Tokens


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a stored piece without reading its state; see `srb.engine.kept.retained`.

    parent: the name of the piece that holds what comes before `start`; None for the first piece of a text.
    tokens: those from `start` on. key: what must be equal beside the tokens, adapters for example; most often empty.
    """

    name: str
    parent: str | None
    start: int
    tokens: Tokens
    key: str
    has_logits: bool


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What a store holds and has done.

    disk_bytes: the size of its files now; at most `max_disk_bytes`.
    disk_reads, disk_bytes_read, disk_bytes_written: pieces and bytes, counted since the start.
    disk_faults: pieces that couldn't be read or written.
    """

    disk_bytes: int = 0
    max_disk_bytes: int = 0
    disk_reads: int = 0
    disk_bytes_read: int = 0
    disk_bytes_written: int = 0
    disk_faults: int = 0


class Store(Protocol):
    """Pieces by their names.

    No method raises an error: a piece that can't be read counts as gone, and one that can't be written isn't kept.
    """

    def __contains__(self, name: object) -> bool:
        """Whether it has a piece, as far as it knows, or is about to write it."""

    @property
    def room(self) -> int:
        """How many bytes it can take now."""

    def find(self, family: str) -> Iterable[Record]:
        """The pieces of a family that were there at the start and still are, parents before their children."""

    def check(self, families: Iterable[str], tokens: Tokens) -> None:
        """Compares the pieces that hold the first of these tokens with their hashes, so that `get` needn't do it.

        families: the pieces of the later ones may continue those of the earlier ones.
        May be called from any thread. Takes about a second for each gigabyte.
        """

    def put(
        self,
        family: str,
        parent: str | None,
        start: int,
        tokens: Tokens,
        key: str,
        state: State,
        logits: bytes | None,
    ) -> str | None:
        """Takes a piece, which another thread will write soon, and returns its name.

        family: names the pieces that are looked for together; up to 16 hexadecimal digits.
        Returns None if the parent isn't there, or if too much waits to be written.
        """

    def get(self, name: str) -> tuple[State, bytes | None] | None:
        """The state and the logits of a piece; None if it's gone or damaged."""

    def remove(self, name: str) -> None:
        """Removes a piece that no other piece continues."""

    def touch(self, names: Iterable[str]) -> None:
        """Marks pieces as just used, children before their parents. The least recently used are removed first."""

    def stats(self) -> StoreStats:
        """What the store holds and has done."""

    def close(self) -> None:
        """Returns when all pieces that were taken are written."""
