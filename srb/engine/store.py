"""Where retained states outlive the process: what the engine needs of such a place. `srb.disk_cache` is one."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from srb.engine.backend import State
from srb.engine.radix import Tokens


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a stored piece without reading its state; see `srb.engine.retained`.

    parent: the name of the piece that holds what comes before `start`; None where nothing does.
    tokens: those from `start` on. key: what must be alike beside the tokens; empty where that is nothing.
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

    disk_bytes: in its files now, of at most `max_disk_bytes`.
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
    """Pieces by their names. Nothing here raises: what can't be read isn't there, what can't be written isn't kept."""

    def __contains__(self, name: object) -> bool:
        """Whether it has a piece, as far as it knows, or is about to have it."""

    @property
    def room(self) -> int:
        """How many bytes it would take now."""

    def find(self, family: str) -> Iterable[Record]:
        """The pieces of a family that were there at the start and still are, parents before their children."""

    def check(self, family: str, tokens: Tokens) -> None:
        """Reads the pieces that hold the first of these tokens, so that `get` needn't compare them with their hashes.

        May be called from any thread, and takes about a second for each gigabyte.
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
        """Takes a piece, to be written soon by another thread, and returns its name.

        family: of those that are looked for together; up to 16 hexadecimal digits.
        None if the parent isn't there, or as much waits to be written as may.
        """

    def get(self, name: str) -> tuple[State, bytes | None] | None:
        """The state and the logits of a piece; None if it's gone or damaged."""

    def remove(self, name: str) -> None:
        """Removes a piece, which nothing continues."""

    def touch(self, names: Iterable[str]) -> None:
        """Marks pieces as just used, children before their parents. The least recently used are removed first."""

    def stats(self) -> StoreStats:
        """What it holds and has done."""

    def close(self) -> None:
        """Returns when all is written that was taken."""
