"""The SQLite file of a history: its tables, its versions, and the error messages when it can't be used."""

import os
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from srb.errors import HistoryError, SettingsError

Made = TypeVar("Made")

APPLICATION_ID = 0x73726268  # "srbh": marks the file as srb's

MIGRATIONS = (
    """
    CREATE TABLE requests (
        number INTEGER PRIMARY KEY,      -- in the order of arrival
        id TEXT NOT NULL UNIQUE,
        owner TEXT,                      -- a hash of the API key that it came with
        created INTEGER NOT NULL,        -- seconds since 1970, as all times
        path TEXT NOT NULL,              -- the route that it came to
        model TEXT NOT NULL,
        title TEXT NOT NULL,             -- how its prompt ends
        body BLOB NOT NULL,              -- as it was sent; zlib
        detached INTEGER NOT NULL,
        status TEXT NOT NULL,            -- running, interrupted or finished
        story TEXT,
        request BLOB,                    -- all of it, as long as its steps are there; JSON, zlib
        usage TEXT,                      -- JSON, and so the settings
        finished INTEGER
    );
    CREATE INDEX requests_owner ON requests(owner, number);
    CREATE INDEX requests_story ON requests(story, number) WHERE story IS NOT NULL;
    CREATE INDEX requests_unfinished ON requests(status, number) WHERE request IS NOT NULL;

    CREATE TABLE texts (
        id INTEGER PRIMARY KEY,
        text TEXT NOT NULL,
        tokens BLOB                      -- ids, 4 bytes each, the lowest first; where they are known
    );

    CREATE TABLE alternatives (
        request INTEGER NOT NULL REFERENCES requests(number) ON DELETE CASCADE,
        number INTEGER NOT NULL,         -- its index
        seed INTEGER NOT NULL,
        label TEXT,
        settings TEXT NOT NULL,
        text INTEGER REFERENCES texts(id),  -- from its end on
        length INTEGER,                  -- in tokens
        finish_reason TEXT,
        stop_reason TEXT,
        PRIMARY KEY (request, number)
    ) WITHOUT ROWID;
    CREATE INDEX alternatives_text ON alternatives(text);

    -- The events that each step has brought, from which any reader can go on; until some time after its end.
    CREATE TABLE steps (
        number INTEGER PRIMARY KEY,
        request INTEGER NOT NULL REFERENCES requests(number) ON DELETE CASCADE,
        events TEXT NOT NULL             -- JSON
    );
    CREATE INDEX steps_request ON steps(request, number);

    CREATE TABLE stories (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        owner TEXT,
        title TEXT NOT NULL,
        created INTEGER NOT NULL,
        changed INTEGER NOT NULL,
        change INTEGER NOT NULL          -- how many changes it has seen
    );

    CREATE TABLE nodes (
        story INTEGER NOT NULL REFERENCES stories(number) ON DELETE CASCADE,
        id INTEGER NOT NULL,
        parent INTEGER,                  -- null for those that the story begins with
        author TEXT NOT NULL,            -- model or person
        request TEXT,
        number INTEGER,                  -- the index
        seed INTEGER,
        settings TEXT,
        label TEXT,
        text INTEGER REFERENCES texts(id),  -- null while it grows
        length INTEGER,
        finish_reason TEXT,
        stop_reason TEXT,
        kept INTEGER,                    -- 1 kept, 0 discarded
        notes TEXT,
        created INTEGER NOT NULL,
        change INTEGER NOT NULL,         -- the number of the story's change that it was last touched by
        PRIMARY KEY (story, id)
    ) WITHOUT ROWID;
    CREATE INDEX nodes_change ON nodes(story, change);
    CREATE INDEX nodes_text ON nodes(text);
    CREATE INDEX nodes_request ON nodes(request, number) WHERE request IS NOT NULL;

    -- What somebody has said of a node, also what another has said otherwise later.
    CREATE TABLE remarks (
        story INTEGER NOT NULL REFERENCES stories(number) ON DELETE CASCADE,
        change INTEGER NOT NULL,
        node INTEGER NOT NULL,
        field TEXT NOT NULL,             -- kept or notes
        value,
        created INTEGER NOT NULL,
        PRIMARY KEY (story, change, field)
    ) WITHOUT ROWID;

    CREATE VIRTUAL TABLE search USING fts5(
        text, content='texts', content_rowid='id', tokenize='unicode61 remove_diacritics 2', prefix='2 3'
    );
    CREATE TRIGGER texts_added AFTER INSERT ON texts BEGIN
        INSERT INTO search(rowid, text) VALUES (new.id, new.text);
    END;
    CREATE TRIGGER texts_removed AFTER DELETE ON texts BEGIN
        INSERT INTO search(search, rowid, text) VALUES ('delete', old.id, old.text);
    END;
    """,
    """
    ALTER TABLE nodes ADD COLUMN ends_at INTEGER;  -- so many characters of its text belong to the story; null: all
    """,
    """
    -- How many servers have begun it since its last token, and since its last end in order.
    ALTER TABLE requests ADD COLUMN losses INTEGER NOT NULL DEFAULT 0;
    """,
    """
    ALTER TABLE nodes ADD COLUMN suffix_logprob REAL;  -- of a bridge
    """,
    """
    ALTER TABLE stories ADD COLUMN context TEXT;  -- what stands beside the story; JSON
    """,
)
"""Each script brings a file to the next version. A released script is never changed: a new version is a new script."""

_BUSY_SECONDS = 5.0
"""How long a write waits for another process that writes, such as `srb history prune`."""


def check_place(path: Path) -> None:
    """Raises `SettingsError` if there can't be a file at this path."""
    if path.is_dir():
        raise SettingsError(f"--history {path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise SettingsError(f"--history {path}: there is no folder {path.parent}; make it, or name another file")


def prepare(path: Path) -> None:
    """Makes the file if there is none, and brings it to this version. Raises `HistoryError` if it can't be used."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # only the owner may read and write it
    except OSError as error:
        raise HistoryError(
            f"the history {path} can't be written: {error.strerror}; make it writable for this user, or name another "
            "file"
        ) from None
    try:
        db = connect(path)
        try:
            _migrate(db, path)
        finally:
            db.close()
    except sqlite3.Error as error:
        raise explain(path, error) from None


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    version, application = _number(db, "user_version"), _number(db, "application_id")
    is_new = not db.execute("SELECT 1 FROM sqlite_schema").fetchone()
    if not is_new and application != APPLICATION_ID:
        raise HistoryError(f"{path} belongs to another program; give --history a file of its own")
    if version > len(MIGRATIONS):
        raise HistoryError(
            f"the history {path} was written by a newer srb (its version is {version}, this one reads up to "
            f"{len(MIGRATIONS)}); update srb, or name another file"
        )
    if is_new:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # so that a pruned file can be made smaller bit by bit
    if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise HistoryError(f"the file system of {path} can't share memory, as SQLite needs; put it on a local disk")
    for number in range(version, len(MIGRATIONS)):
        begin = f"BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {number + 1};"
        db.executescript(f"{begin} {MIGRATIONS[number]} COMMIT")
    db.execute("BEGIN IMMEDIATE")  # a write that changes nothing, to find out now if the file can't be written
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    db.execute("COMMIT")


def _number(db: sqlite3.Connection, pragma: str) -> int:
    return int(db.execute(f"PRAGMA {pragma}").fetchone()[0])


def connect(path: Path, *, is_reader: bool = False) -> sqlite3.Connection:
    """A connection, for one thread at a time. Its user begins and ends transactions; the columns of rows have names."""
    uri = f"{path.absolute().as_uri()}?mode={'ro' if is_reader else 'rw'}"
    db = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    db.row_factory = sqlite3.Row
    # In WAL mode with NORMAL, SQLite gives each transaction to the operating system, and waits for the disk only at
    # checkpoints.
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("PRAGMA foreign_keys = ON")
    return db


def insert(db: sqlite3.Connection, table: str, values: Mapping[str, Any]) -> int:
    """Inserts a row with these values, and returns its rowid, if the table has any."""
    names, places = ", ".join(values), ", ".join("?" * len(values))
    cursor = db.execute(f"INSERT INTO {table}({names}) VALUES ({places})", tuple(values.values()))
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def made_of(kind: type[Made], row: sqlite3.Row, **others: Any) -> Made:
    """A dataclass with slots, whose fields have the names of the row's columns. others: the fields that haven't."""
    names: Iterable[str] = kind.__slots__  # type: ignore[attr-defined]
    return kind(**{name: row[name] for name in names if name not in others}, **others)


def explain(path: Path, error: sqlite3.Error) -> HistoryError:
    """An error with SQLite's message, and with advice what to do."""
    text = str(error)
    if "disk is full" in text:
        advice = "make room on its disk"
    elif "readonly" in text or "unable to open" in text:
        advice = "make the file and its folder writable for this user, or name another file"
    elif "malformed" in text or "not a database" in text:
        advice = (
            "the file is damaged: move it away and restart, and get back what can be read with "
            f"'sqlite3 {path} .recover | sqlite3 NEW_FILE'"
        )
    elif "locked" in text:
        advice = "another program keeps it locked"
    else:
        advice = "look at the disk and at the file"
    return HistoryError(f"the history {path} can't be used: {text}; {advice}")
