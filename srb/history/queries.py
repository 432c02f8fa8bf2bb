"""Reads requests from the file: lists them, searches all texts, and finds those that a server's end interrupted.

`owner` is the hash of the reader's API key, or ANYBODY.
"""

import json
import math
import re
import sqlite3
import zlib
from dataclasses import dataclass
from typing import Any

from srb.engine.events import Event, StopEvent
from srb.engine.request import CompletionRequest
from srb.errors import InvalidRequestError, NotFoundError, SrbError
from srb.history import recorder as events
from srb.history.database import ANYBODY, SPACE, from_row, spaced, unpack_tokens
from srb.history.recorder import Submitted, drop_events, end_alternative


@dataclass(frozen=True, slots=True)
class Summary:
    """A request in a list. title: the end of its prompt. count: the number of its alternatives."""

    id: str
    created: int
    status: str
    path: str
    model: str
    title: str
    count: int
    story: str | None


@dataclass(frozen=True, slots=True)
class Alternative:
    """An alternative of a request. Its text and tokens are None until it has ended."""

    index: int
    seed: int
    label: str | None
    settings: dict[str, Any]
    text: str | None
    tokens: tuple[int, ...] | None
    length: int | None
    finish_reason: str | None
    stop_reason: str | None


@dataclass(frozen=True, slots=True)
class Recorded:
    """Everything that the file has of a request. body: that of its HTTP request."""

    summary: Summary
    detached: bool
    finished: int | None
    usage: dict[str, Any] | None
    body: Any
    alternatives: list[Alternative]


@dataclass(frozen=True, slots=True)
class Found:
    """A text that a search has found: of an alternative of a request, of a node of a story, or of both.

    Attributes:
        snippet: the words with the text around them.
        place: continues the search, as its `before`.
    """

    request: str | None
    index: int | None
    story: str | None
    node: int | None
    created: int
    snippet: str
    place: int


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A request from the file, with its events so far.

    Attributes:
        number: its number in the file.
        losses: the number of servers that have started it and were lost since its last token.
    """

    submitted: Submitted
    number: int
    events: list[Event]
    losses: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as its client sent it.

    Attributes:
        path: the route that it came to.
        body: that of the HTTP request.
        model: the model's name at that time.
        nodes: the ids of the nodes that it writes.
    """

    path: str
    body: bytes
    model: str
    nodes: list[int]


def _seen(table: str) -> str:
    return f"({table}.owner IS NULL OR {table}.owner = :owner OR :owner = '{ANYBODY}')"


_SUMMARIES = "SELECT *, (SELECT count(*) FROM alternatives WHERE request = requests.number) AS n FROM requests WHERE "


def list_requests(
    db: sqlite3.Connection,
    owner: str | None,
    *,
    limit: int = 50,
    before: str | None = None,
    story: str | None = None,
) -> list[Summary]:
    """Lists requests of an owner and without one, the latest first; only those before the request with the id `before`.

    Raises `NotFoundError`.
    """
    where, values = [_seen("requests")], {"owner": owner, "limit": limit, "story": story, "before": 0}
    if before is not None:
        values["before"] = _row(db, owner, before)["number"]
        where.append("number < :before")
    if story is not None:
        where.append("story = :story")
    rows = db.execute(f"{_SUMMARIES} {' AND '.join(where)} ORDER BY number DESC LIMIT :limit", values)
    return [_summary(row) for row in rows]


def get_request(db: sqlite3.Connection, owner: str | None, request: str) -> Recorded:
    """Reads a whole request. Raises `NotFoundError`."""
    row = _row(db, owner, request)
    alternatives = db.execute(
        "SELECT alternatives.*, texts.text AS words, texts.tokens FROM alternatives "
        "LEFT JOIN texts ON texts.id = alternatives.text WHERE request = ? ORDER BY number",
        (row["number"],),
    )
    return Recorded(
        _summary(row),
        bool(row["detached"]),
        row["finished"],
        None if row["usage"] is None else json.loads(row["usage"]),
        json.loads(zlib.decompress(row["body"]), parse_float=_number),
        [_alternative(each) for each in alternatives],
    )


def _number(text: str) -> float | str:
    """Parses a number. One that JSON can't have, such as 1e999, stays a text."""
    return number if math.isfinite(number := float(text)) else text


def _row(db: sqlite3.Connection, owner: str | None, request: str) -> sqlite3.Row:
    values = {"owner": owner, "id": request}
    row: sqlite3.Row | None = db.execute(f"{_SUMMARIES} {_seen('requests')} AND id = :id", values).fetchone()
    if row is None:
        raise NotFoundError(f"there is no request {request:.60} in the history", param="id")
    return row


def _summary(row: sqlite3.Row) -> Summary:
    return from_row(Summary, row, count=row["n"])


def _alternative(row: sqlite3.Row) -> Alternative:
    settings, tokens = json.loads(row["settings"]), unpack_tokens(row["tokens"])
    return from_row(Alternative, row, index=row["number"], settings=settings, text=row["words"], tokens=tokens)


def _found_in(index: str) -> str:
    return f"""
        SELECT {index}.rowid AS place, snippet({index}, 0, '', '', ' ... ', 24) AS snippet,
            requests.id AS request, alternatives.number AS "index", stories.id AS story, nodes.id AS node,
            coalesce(requests.created, nodes.created) AS created
        FROM {index}
        LEFT JOIN alternatives ON alternatives.text = {index}.rowid
        LEFT JOIN requests ON requests.number = alternatives.request
        LEFT JOIN nodes ON nodes.text = {index}.rowid
        LEFT JOIN stories ON stories.number = nodes.story
        WHERE {index} MATCH :words AND {index}.rowid < coalesce(:before, {2**62})
            AND (requests.id IS NOT NULL AND {_seen("requests")} OR stories.id IS NOT NULL AND {_seen("stories")})
            AND stories.deleted IS NULL
            AND coalesce(requests.story, '') NOT IN (SELECT id FROM stories WHERE deleted IS NOT NULL)
    """


_FOUND = f"{_found_in('search')} UNION ALL {_found_in('search_spaced')} ORDER BY place DESC LIMIT :limit"


def search(
    db: sqlite3.Connection, owner: str | None, words: str, *, limit: int = 50, before: int | None = None
) -> list[Found]:
    """Searches the texts of an owner and without one that have all of these words, the latest first.

    The words may be "several words in a row", and begin* for the beginning of a word. In scripts without spaces, any
    part of a sentence is several words in a row. To continue a search, `before` is the `place` of the last text found.
    Raises `InvalidRequestError`.
    """
    values = {"owner": owner, "words": _query(words), "limit": limit, "before": before}
    rows = db.execute(_FOUND, values)
    return [from_row(Found, row, snippet=row["snippet"].replace(SPACE, "")) for row in rows]


def _query(words: str) -> str:
    """Translates words into FTS5's notation. "Several wor"* is the beginning of several words."""
    parts = []
    for phrase, begins, word in re.findall(r'"([^"]*)"(\*?)|(\S+)', words.replace("\0", "")):
        text = phrase or word.replace('"', "")
        if re.search(r"\w", text):
            parts.append(f'"{spaced(text) or text}"' + ("*" if begins or word.endswith("*") else ""))
    if not parts:
        raise InvalidRequestError("q takes the words to search for", param="q")
    return " ".join(parts)


# Requests that resume


def interrupt_unreadable(db: sqlite3.Connection) -> None:
    """Marks the running requests of an srb version with other fields as interrupted, because they can't resume."""
    for row in db.execute("SELECT * FROM requests WHERE status = 'running' AND request IS NOT NULL").fetchall():
        if _request(row) is None:
            interrupt_for_good(db, row["number"], row["id"])


def interrupt_for_good(db: sqlite3.Connection, number: int, request: str) -> None:
    """Marks a running request as interrupted, and drops its events, so that nobody can continue it."""
    interrupt(db, number, request)
    drop_events(number, db)


def interrupt(db: sqlite3.Connection, number: int, request: str) -> None:
    """Marks a running request as interrupted. Its alternatives and nodes end with the texts so far."""
    texts = _texts(db, number)
    rows = db.execute("SELECT number FROM alternatives WHERE request = ? AND finish_reason IS NULL", (number,))
    for (index,) in rows.fetchall():
        text, tokens = texts.get(index, ("", []))
        stop = StopEvent(request, index, len(tokens), "abort", "shutdown")
        end_alternative(db, number, request, stop, text, tokens)
    db.execute("UPDATE requests SET status = 'interrupted' WHERE number = ?", (number,))


def _texts(db: sqlite3.Connection, number: int) -> dict[int, tuple[str, list[int]]]:
    """Reads the texts and tokens of a request's alternatives so far. Their events are lists in every version."""
    texts: dict[int, tuple[str, list[int]]] = {}
    for (packed,) in db.execute("SELECT events FROM steps WHERE request = ? ORDER BY number", (number,)):
        for index, text, sampled, *_ in (event for event in json.loads(packed) if isinstance(event, list)):
            before, tokens = texts.get(index, ("", []))
            if tokens or sampled:  # else it is an echoed prompt
                texts[index] = before + text, tokens + sampled
    return texts


def unfinished(db: sqlite3.Connection, status: str = "running") -> list[Unfinished]:
    """Reads the requests with this status, the oldest first. Those of an srb version with other fields are left out."""
    rows = db.execute("SELECT * FROM requests WHERE status = ? AND request IS NOT NULL ORDER BY number", (status,))
    return [each for row in rows if (each := _unfinished(db, row))]


def _request(row: sqlite3.Row) -> CompletionRequest | None:
    try:
        return events.unpack_request(row["request"])
    except (TypeError, ValueError, LookupError, zlib.error, SrbError):
        return None


def _unfinished(db: sqlite3.Connection, row: sqlite3.Row) -> Unfinished | None:
    request = _request(row)
    if request is None:
        return None
    others = {"detach": bool(row["detached"]), "body": zlib.decompress(row["body"]), "node": None}
    submitted = from_row(Submitted, row, request=request, **others)
    steps = db.execute("SELECT events FROM steps WHERE request = ? ORDER BY number", (row["number"],))
    so_far = [event for (packed,) in steps for event in events.unpack(row["id"], packed)]
    return Unfinished(submitted, row["number"], so_far, row["losses"])


def read_events(db: sqlite3.Connection, owner: str | None, request: str) -> Unfinished | str | None:
    """Reads a request with all its events.

    Returns the request; its status if it runs or its events were dropped; None if it isn't in the file.
    """
    row = db.execute("SELECT * FROM requests WHERE id = ? AND owner IS ?", (request, owner)).fetchone()
    if row is None:
        return None
    found = _unfinished(db, row) if row["request"] is not None and row["status"] != "running" else None
    return found or str(row["status"])


def find_sent(db: sqlite3.Connection, owner: str | None, request: str) -> Sent | None:
    """Returns a request as its client sent it, or None if there is no such request."""
    row = db.execute("SELECT * FROM requests WHERE id = ? AND owner IS ?", (request, owner)).fetchone()
    return row and from_row(Sent, row, body=zlib.decompress(row["body"]), nodes=_nodes_of(db, row))


def _nodes_of(db: sqlite3.Connection, row: sqlite3.Row) -> list[int]:
    """Returns the ids of the nodes that a request writes, by the index of the alternative."""
    # Forks and copies name the request, too. They came later, so the first nodes in its own story are those.
    nodes = db.execute(
        "SELECT nodes.id FROM nodes JOIN stories ON stories.number = nodes.story "
        "WHERE nodes.request = ? AND stories.id = ? ORDER BY nodes.id "
        "LIMIT (SELECT count(*) FROM alternatives WHERE request = ?)",
        (row["id"], row["story"], row["number"]),
    )
    return [node for (node,) in nodes]
