"""Makes the file smaller: it removes finished requests, the oldest first. Stories keep all of their texts."""

import sqlite3

from srb.errors import NotFoundError
from srb.history.texts import remove_orphans

_BATCH = 200
"""How many requests are removed in one transaction. A server that writes meanwhile waits only some milliseconds."""


def size_of(db: sqlite3.Connection) -> int:
    """How many bytes of the file are in use."""
    pages, unused, size = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in _SIZES)
    return int((pages - unused) * size)


_SIZES = ("page_count", "freelist_count", "page_size")


def prune(db: sqlite3.Connection, *, before: int | None = None, to_bytes: int | None = None) -> int:
    """Removes requests that ended before a time (seconds since 1970), then more until the file has so many bytes.

    Returns how many were removed. Unfinished requests and stories with their texts stay, so the file may stay larger.
    """
    removed = 0
    if before is not None:
        removed += _prune(db, before, None)
    if to_bytes is not None:
        removed += _prune(db, 2**62, to_bytes)
    _give_back(db)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return removed


def _prune(db: sqlite3.Connection, before: int, to_bytes: int | None) -> int:
    removed = 0
    while to_bytes is None or size_of(db) > to_bytes:
        rows = db.execute(
            "SELECT number FROM requests WHERE status = 'finished' AND finished < ? ORDER BY number LIMIT ?",
            (before, _BATCH),
        ).fetchall()
        if not rows:
            break
        db.execute("BEGIN IMMEDIATE")
        _remove(db, [number for (number,) in rows])
        db.execute("COMMIT")
        if to_bytes is not None:
            _give_back(db)
        removed += len(rows)
    return removed


def remove_request(db: sqlite3.Connection, owner: str | None, request: str) -> None:
    """Removes a request that has ended. Raises `NotFoundError` if there is no such request, or it still runs."""
    row = db.execute(
        "SELECT number FROM requests WHERE id = ? AND status != 'running' AND (owner IS NULL OR owner = ?)",
        (request, owner),
    ).fetchone()
    if row is None:
        raise NotFoundError(f"there is no request {request:.60} in the history that has ended", param="id")
    _remove(db, [row["number"]])


def _remove(db: sqlite3.Connection, numbers: list[int]) -> None:
    texts = [
        text
        for number in numbers
        for (text,) in db.execute("SELECT text FROM alternatives WHERE request = ? AND text IS NOT NULL", (number,))
    ]
    db.executemany("DELETE FROM requests WHERE number = ?", ((number,) for number in numbers))
    remove_orphans(db, texts)


def _give_back(db: sqlite3.Connection) -> None:
    """Gives unused pages of the file back to the disk, a few milliseconds at a time."""
    merged = 2
    while merged >= 2:  # by fewer changes FTS5 shows that nothing is left to merge
        before = db.total_changes
        db.execute("INSERT INTO search(search, rank) VALUES ('merge', 200)")
        merged = db.total_changes - before
    while db.execute("PRAGMA freelist_count").fetchone()[0]:
        db.execute("PRAGMA incremental_vacuum(500)").fetchall()
