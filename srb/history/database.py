"""The SQLite file of a history: its tables, its versions, its texts, and the errors when it can't be used."""

import logging
import os
import re
import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from traceback import clear_frames
from typing import Any, Final, TypeVar

from srb.errors import HistoryError, SettingsError, SrbError

logger = logging.getLogger("srb")

Row = TypeVar("Row")

ANYBODY: Final = "*"
"""The owner that may see everything, in place of the hash of an API key: for programs that read the file itself."""

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
    """
    ALTER TABLE texts ADD COLUMN spaced TEXT;  -- as `spaced` makes it; null: there is nothing to space
    UPDATE texts SET spaced = spaced(CAST(text AS BLOB)) WHERE spaced(CAST(text AS BLOB)) IS NOT NULL;

    -- Each text is in one of the two indices.
    CREATE VIRTUAL TABLE search_spaced USING fts5(
        spaced, content='texts', content_rowid='id', tokenize='unicode61 remove_diacritics 2', prefix='2 3'
    );
    INSERT INTO search(search, rowid, text) SELECT 'delete', id, text FROM texts WHERE spaced IS NOT NULL;
    INSERT INTO search_spaced(rowid, spaced) SELECT id, spaced FROM texts WHERE spaced IS NOT NULL;
    DROP TRIGGER texts_added;
    DROP TRIGGER texts_removed;
    CREATE TRIGGER texts_added AFTER INSERT ON texts WHEN new.spaced IS NULL BEGIN
        INSERT INTO search(rowid, text) VALUES (new.id, new.text);
    END;
    CREATE TRIGGER texts_removed AFTER DELETE ON texts WHEN old.spaced IS NULL BEGIN
        INSERT INTO search(search, rowid, text) VALUES ('delete', old.id, old.text);
    END;
    CREATE TRIGGER spaced_added AFTER INSERT ON texts WHEN new.spaced IS NOT NULL BEGIN
        INSERT INTO search_spaced(rowid, spaced) VALUES (new.id, new.spaced);
    END;
    CREATE TRIGGER spaced_removed AFTER DELETE ON texts WHEN old.spaced IS NOT NULL BEGIN
        INSERT INTO search_spaced(search_spaced, rowid, spaced) VALUES ('delete', old.id, old.spaced);
    END;
    """,
    """
    ALTER TABLE stories ADD COLUMN deleted INTEGER;  -- when it was put into the trash; null: it isn't there
    ALTER TABLE stories ADD COLUMN place TEXT;  -- where its writer is; JSON

    -- Typed texts that aren't in the tree yet, at most one per place. They aren't in the search.
    CREATE TABLE drafts (
        story INTEGER NOT NULL REFERENCES stories(number) ON DELETE CASCADE,
        node INTEGER NOT NULL,           -- the place; 0: the beginning
        text TEXT,                       -- null: the draft was removed
        metadata TEXT,                   -- JSON
        changed INTEGER NOT NULL,
        change INTEGER NOT NULL,
        PRIMARY KEY (story, node)
    ) WITHOUT ROWID;
    """,
    """
    -- The numbers of the story's changes that wrote its title and its context.
    ALTER TABLE stories ADD COLUMN title_change INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE stories ADD COLUMN context_change INTEGER NOT NULL DEFAULT 0;
    """,
)
"""Each script brings a file to the next version. A released script is never changed: a new version is a new script."""

SPACE = "\x1f"
"""Separates the characters of scripts without spaces in what a search sees."""

_UNSPACED = (  # Thai, Lao, Tibetan, Burmese; Khmer; Tai scripts; Chinese and Japanese
    "[\u0e00-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u2e80-\u312f\u31a0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\uff66-\uff9f\U00016fe0-\U0001b2ff\U00020000-\U0003ffff]"
)
_SPACES = re.compile(f"(?<={_UNSPACED})|(?={_UNSPACED})")

_BUSY_SECONDS = 5.0
"""How long a write waits for another process that writes, such as `srb history prune`, in seconds."""


def check_place(path: Path) -> None:
    """Raises `SettingsError` if there can't be a file at this path."""
    if path.is_dir():
        raise SettingsError(f"--history {path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise SettingsError(f"--history {path}: there is no folder {path.parent}; make it, or name another file")


def prepare(path: Path) -> None:
    """Creates the file if there is none, and migrates it to this version. Raises `HistoryError` if it can't be used."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # only the owner may read and write it
    except OSError as error:
        raise HistoryError(
            f"the history {path} can't be written: {error.strerror}; make it writable for this user, or name another "
            "file"
        ) from None
    with explained(path), closing(connect(path)) as db:
        _migrate(db, path)


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    version, application = _number(db, "user_version"), _number(db, "application_id")
    is_new = not db.execute("SELECT 1 FROM sqlite_schema").fetchone()
    if not is_new and application != APPLICATION_ID:
        raise UnusableError(f"{path} belongs to another program; give --history a file of its own")
    if version > len(MIGRATIONS):
        raise UnusableError(
            f"the history {path} was written by a newer srb (its version is {version}, this one reads up to "
            f"{len(MIGRATIONS)}); update srb, or name another file"
        )
    if is_new:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")  # so that a pruned file can be made smaller bit by bit
    if db.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise UnusableError(f"the file system of {path} can't share memory, as SQLite needs; put it on a local disk")
    db.create_function("spaced", 1, lambda data: spaced(data.decode(errors="replace")), deterministic=True)
    for number in range(version, len(MIGRATIONS)):
        begin = f"BEGIN IMMEDIATE; PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {number + 1};"
        db.executescript(f"{begin} {MIGRATIONS[number]} COMMIT")
    db.execute("BEGIN IMMEDIATE")  # a write that changes nothing, to find out now if the file can't be written
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
    db.execute("COMMIT")


def _number(db: sqlite3.Connection, pragma: str) -> int:
    return int(db.execute(f"PRAGMA {pragma}").fetchone()[0])


def connect(path: Path, *, is_reader: bool = False) -> sqlite3.Connection:
    """Opens a connection for one thread at a time. The caller begins and ends transactions. Rows have named columns."""
    uri = f"{path.absolute().as_uri()}?mode={'ro' if is_reader else 'rw'}"
    db = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    try:
        _replace_bad_bytes(db, path)
        # In WAL mode with NORMAL, SQLite gives each transaction to the operating system, and waits for the disk only
        # at checkpoints.
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
    except BaseException:
        db.close()
        raise
    return db


def _replace_bad_bytes(db: sqlite3.Connection, path: Path) -> None:
    """Makes a connection replace bytes that aren't UTF-8 with U+FFFD, and log their places."""
    has_bad = False

    def text(data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            nonlocal has_bad
            has_bad = True
            return data.decode(errors="replace")

    def row(cursor: sqlite3.Cursor, values: tuple[Any, ...]) -> sqlite3.Row:
        nonlocal has_bad
        if has_bad:
            has_bad = False
            names = [each[0] for each in cursor.description]
            columns = [name for name, value in zip(names, values, strict=True) if "\ufffd" in str(value)]
            place = [f"{name}={value}" for name, value in zip(names, values, strict=True) if _is_place(name, value)]
            _log_bad_bytes(path, f"column {', '.join(columns)} of the row with {', '.join(place) or 'no number'}")
        return sqlite3.Row(cursor, values)

    db.text_factory = text
    db.row_factory = row


def _is_place(name: str, value: object) -> bool:
    return name in ("id", "number", "story", "node", "request", "place") and isinstance(value, int)


@lru_cache(maxsize=1_000)  # each place is logged once, however often it is read
def _log_bad_bytes(path: Path, place: str) -> None:
    logger.error("the history %s has bytes that aren't UTF-8, read as U+FFFD: %s", path, place)


def insert(db: sqlite3.Connection, table: str, values: Mapping[str, Any]) -> int:
    """Inserts a row with these values. Returns its rowid, if the table has any."""
    names, places = ", ".join(values), ", ".join("?" * len(values))
    cursor = db.execute(f"INSERT INTO {table}({names}) VALUES ({places})", tuple(values.values()))
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def from_row(kind: type[Row], row: sqlite3.Row, **others: Any) -> Row:
    """Makes a dataclass with slots of a row. others: the fields that aren't columns with the same name."""
    names: Iterable[str] = kind.__slots__  # type: ignore[attr-defined]
    values = {name: others[name] if name in others else row[name] for name in names}
    for name, value in values.items():
        if isinstance(value, bytes) and kind.__annotations__[name] is not bytes:
            raise TypeError(f"{name} is a blob")  # in a damaged file
    return kind(**values)


def add_text(db: sqlite3.Connection, text: str, tokens: Iterable[int] | None) -> int:
    """Adds a text, which a search finds from now on. Returns its number."""
    return insert(db, "texts", {"text": text, "tokens": pack_tokens(tokens), "spaced": spaced(text)})


def spaced(text: str) -> str | None:
    """Return a text in which each character of a script without spaces is a word. None: the text has no such script.

    FTS5 takes a whole Chinese sentence for a word. As single characters it is found by any part of it.
    """
    # The first search is much faster than the second, and most texts in other languages end there.
    return _SPACES.sub(SPACE, text) if not text.isascii() and re.search(_UNSPACED, text) else None


def pack_tokens(tokens: Iterable[int] | None) -> bytes | None:
    """Packs token ids for the file."""
    return None if tokens is None else array("I", tokens).tobytes()


def unpack_tokens(packed: bytes | None) -> tuple[int, ...] | None:
    """Unpacks token ids from the file."""
    return None if packed is None else tuple(array("I", packed))


def remove_orphans(db: sqlite3.Connection, texts: Iterable[int]) -> None:
    """Removes those of these texts that no node and no alternative refers to."""
    db.executemany(
        "DELETE FROM texts WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM nodes WHERE text = ?1) "
        "AND NOT EXISTS (SELECT 1 FROM alternatives WHERE text = ?1)",
        ((text,) for text in texts),
    )


def clean(text: str | None) -> str | None:
    """Replaces half surrogate pairs with "?": JSON may have them, and SQLite refuses them."""
    return None if text is None else text.encode(errors="replace").decode()


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Raises `HistoryError` for errors in this block, also if the file isn't as srb has written it."""
    try:
        yield
    except (SrbError, MemoryError):
        raise
    except Exception as error:
        problem = explain(path, error)
        clear_frames(error.__traceback__)  # they have cursors, which would keep a closed connection open
        raise problem from None


def explain(path: Path, error: Exception) -> HistoryError:
    """Makes an error that says what is wrong with the file, and what to do.

    It doesn't quote SQLite's and Python's own messages: they may have texts, and this message is logged.
    """
    if isinstance(error, MemoryError):
        return HistoryError(f"the history {path} can't be used: no memory is left; end other programs")
    kind = f"{type(error).__module__}.{type(error).__name__}".removeprefix("builtins.")
    name = getattr(error, "sqlite_errorname", kind)
    match getattr(error, "sqlite_errorcode", None):
        case sqlite3.SQLITE_IOERR_SHMSIZE:  # SQLite makes the -shm file larger, and there is no room for it
            code: int | None = sqlite3.SQLITE_FULL
        case int(extended):
            code = extended & 0xFF
        case _:
            code = None
    reason, advice = _REASONS.get(code, (f"it isn't as srb has written it ({name})", None))
    if advice is None:
        if not isinstance(error, sqlite3.Error | UnicodeError):  # then it may also be a fault in srb
            logger.error("the history %s has something that can't be read", path, exc_info=error)
        return UnusableError(f"the history {path} can't be used: {reason}; {_DAMAGED.format(path)}")
    reason = f"{reason} ({name})" if code == sqlite3.SQLITE_IOERR else reason
    return HistoryError(f"the history {path} can't be used: {reason}; {advice}")


class UnusableError(HistoryError):
    """The file stays as it is until a person does something: it is damaged, another program's, or a newer srb's."""


_WRITABLE = "make the file and its folder writable for this user, or name another file"
_LOCKED = ("it is locked", "another program uses it; end that one")
_DAMAGED = (
    "the file is damaged: move it away and restart, and get back what can be read with "
    "'sqlite3 {0} .recover | sqlite3 NEW_FILE'"
)
_REASONS: dict[int | None, tuple[str, str]] = {
    sqlite3.SQLITE_FULL: ("the disk is full", "make room on its disk"),
    sqlite3.SQLITE_IOERR: ("the disk can't be read or written", "look at the disk"),
    sqlite3.SQLITE_READONLY: ("it is read-only", _WRITABLE),
    sqlite3.SQLITE_CANTOPEN: ("it can't be opened", _WRITABLE),
    sqlite3.SQLITE_PERM: ("it can't be opened", _WRITABLE),
    sqlite3.SQLITE_BUSY: _LOCKED,
    sqlite3.SQLITE_LOCKED: _LOCKED,
    sqlite3.SQLITE_PROTOCOL: _LOCKED,
}
"""What is wrong and what to do, by SQLite's error code. These faults may pass; all others are in the file itself."""
