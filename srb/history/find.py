"""Finds requests in the file: it lists them, reads a whole one, and searches all texts for words.

All functions here first take a connection and the hash of the reader's key, or ANYBODY.
"""

import json
import math
import re
import sqlite3
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from srb.errors import InvalidRequestError, NotFoundError
from srb.history.database import made_of
from srb.history.nodes import ANYBODY, unpack


def _seen(table: str) -> str:
    return f"({table}.owner IS NULL OR {table}.owner = :owner OR :owner = '{ANYBODY}')"


@dataclass(frozen=True, slots=True)
class Summary:
    """A request in a list. title: the end of its prompt. count: how many alternatives it has."""

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
    """Everything that the file has of a request. body: the body that its client sent."""

    summary: Summary
    detached: bool
    finished: int | None
    usage: dict[str, Any] | None
    body: Any
    alternatives: list[Alternative]


@dataclass(frozen=True, slots=True)
class Found:
    """A text that a search has found: that of an alternative of a request, of a node of a story, or of both.

    snippet: the words with the text around them. place: pass it as `before` to go on with the search.
    """

    request: str | None
    index: int | None
    story: str | None
    node: int | None
    created: int
    snippet: str
    place: int


_SUMMARIES = "SELECT *, (SELECT count(*) FROM alternatives WHERE request = requests.number) AS n FROM requests WHERE "


def list_requests(
    db: sqlite3.Connection,
    owner: str | None,
    *,
    limit: int = 50,
    before: str | None = None,
    story: str | None = None,
) -> list[Summary]:
    """The last requests, the latest first.

    before: lists only requests that came before the one with this id. story: lists only requests of this story.
    Raises `NotFoundError` if there is no request with the id `before`.
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
    """A whole request. Raises `NotFoundError`."""
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
    """A number as JSON can have it: 1e999, in a field without effect for example, stays a text."""
    return number if math.isfinite(number := float(text)) else text


def _row(db: sqlite3.Connection, owner: str | None, request: str) -> sqlite3.Row:
    values = {"owner": owner, "id": request}
    row: sqlite3.Row | None = db.execute(f"{_SUMMARIES} {_seen('requests')} AND id = :id", values).fetchone()
    if row is None:
        raise NotFoundError(f"there is no request {request:.60} in the history", param="id")
    return row


def _summary(row: sqlite3.Row) -> Summary:
    return made_of(Summary, row, count=row["n"])


def _alternative(row: sqlite3.Row) -> Alternative:
    settings, tokens = json.loads(row["settings"]), unpack(row["tokens"])
    return made_of(Alternative, row, index=row["number"], settings=settings, text=row["words"], tokens=tokens)


_FOUND = f"""
    SELECT search.rowid AS place, snippet(search, 0, '', '', ' ... ', 24) AS snippet,
        requests.id AS request, alternatives.number AS "index", stories.id AS story, nodes.id AS node,
        coalesce(requests.created, nodes.created) AS created
    FROM search
    LEFT JOIN alternatives ON alternatives.text = search.rowid
    LEFT JOIN requests ON requests.number = alternatives.request
    LEFT JOIN nodes ON nodes.text = search.rowid
    LEFT JOIN stories ON stories.number = nodes.story
    WHERE search MATCH :words AND search.rowid < :before
        AND (requests.id IS NOT NULL AND {_seen("requests")} OR stories.id IS NOT NULL AND {_seen("stories")})
    ORDER BY search.rowid DESC LIMIT :limit
"""


def search(
    db: sqlite3.Connection, owner: str | None, words: str, *, limit: int = 50, before: int = 2**62
) -> list[Found]:
    """The texts that have all of these words, the latest first. before: the `place` behind which the search goes on.

    Raises `InvalidRequestError` if there is no word.
    """
    values = {"owner": owner, "words": _query(words), "limit": limit, "before": before}
    return [made_of(Found, row) for row in db.execute(_FOUND, values)]


def _query(words: str) -> str:
    """The words in FTS5's notation. People write words, "several words in a row", and begin* for how a word begins.

    "Several wor"* is how several words begin.
    """
    parts = list(_parts(words))
    if not parts:
        raise InvalidRequestError("q takes words to look for", param="q")
    return " ".join(parts)


def _parts(words: str) -> Iterator[str]:
    for phrase, begins, word in re.findall(r'"([^"]*)"(\*?)|(\S+)', words.replace("\0", "")):
        text = phrase or word.replace('"', "")
        if re.search(r"\w", text):
            yield f'"{text}"' + ("*" if begins or word.endswith("*") else "")
