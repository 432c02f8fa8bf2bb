"""The texts in the file, each with its token ids if they are known."""

import sqlite3
from array import array
from collections.abc import Iterable
from typing import Final

from srb.history.database import insert

ANYBODY: Final = "*"
"""Stands in place of the hash of a reader's key, and may see everything: for programs that read the file itself."""


def add_text(db: sqlite3.Connection, text: str, tokens: Iterable[int] | None) -> int:
    """Adds a text, and returns its number. A search finds the text from now on."""
    return insert(db, "texts", {"text": text, "tokens": pack(tokens)})


def pack(tokens: Iterable[int] | None) -> bytes | None:
    """Packs token ids for the file."""
    return None if tokens is None else array("I", tokens).tobytes()


def unpack(packed: bytes | None) -> tuple[int, ...] | None:
    """Unpacks token ids from the file."""
    return None if packed is None else tuple(array("I", packed))


def remove_orphans(db: sqlite3.Connection, texts: Iterable[int]) -> None:
    """Removes those of these texts that no node and no alternative has any more."""
    db.executemany(
        "DELETE FROM texts WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM nodes WHERE text = ?1) "
        "AND NOT EXISTS (SELECT 1 FROM alternatives WHERE text = ?1)",
        ((text,) for text in texts),
    )


def clean(text: str | None) -> str | None:
    """The text with "?" in place of half surrogate pairs: JSON may have them, and SQLite refuses them."""
    return None if text is None else text.encode(errors="replace").decode()
