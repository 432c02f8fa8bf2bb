"""A history of any released version becomes one of this version, and keeps what it has."""

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from srb.history import database
from srb.history.database import MIGRATIONS, prepare

RELEASED = (
    "605797e70ee23867",
    "b3f0d14658e81e8e",
    "af3f65c0deddebac",
    "941174aff80d31b9",
    "57d08c668d09abc2",
    "5211e7c92912dd81",
    "689120384a2af4be",
    "3f4f80dbd599b9b7",
)
"""A hash of each script that a release has. A new script needs a new line here; a line never changes."""

TITLE = "INSERT INTO stories(id, title, created, changed, change) VALUES ('story', 'Kept', 1, 2, 3)"


def test_a_released_migration_never_changes() -> None:
    """Files that have gone through it would differ from new ones, and nothing would notice."""
    hashes = tuple(hashlib.sha256(each.encode()).hexdigest()[:16] for each in MIGRATIONS)
    assert hashes == RELEASED


def schema(path: Path) -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(path)) as db:
        tables = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
        return [(name, *(row[1] for row in db.execute(f"PRAGMA table_info({name})"))) for (name,) in tables]


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
def test_every_older_version_becomes_the_same_as_a_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    with monkeypatch.context() as patched:
        patched.setattr(database, "MIGRATIONS", MIGRATIONS[:version])
        prepare(old)
    with closing(sqlite3.connect(old)) as db, db:
        db.execute(TITLE)
    prepare(old)
    prepare(new)
    assert schema(old) == schema(new)
    with closing(sqlite3.connect(old)) as db:
        assert db.execute("SELECT id, title, changed FROM stories").fetchall() == [("story", "Kept", 2)]
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
