"""Finds the requests in the file that were interrupted by a server's end, and reads the events of requests."""

import json
import sqlite3
import zlib
from dataclasses import dataclass

from srb.engine.events import DoneEvent, Event, StopEvent, StreamEvent, Timings, Usage
from srb.engine.request import CompletionRequest
from srb.errors import SrbError
from srb.history import recorder
from srb.history.database import made_of
from srb.history.events import unpack, unpack_request
from srb.history.recorder import Submitted


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A request from the file, with its events so far. number: its number in the file.

    losses: how many servers have begun it, and were lost, since its last token.
    """

    submitted: Submitted
    number: int
    events: list[Event]
    losses: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A request as its client sent it. path: the route that it came to. model: the model's name at that time.

    nodes: the ids of the nodes that it writes.
    """

    path: str
    body: bytes
    model: str
    nodes: list[int]


def interrupt_unreadable(db: sqlite3.Connection) -> None:
    """Marks the running requests of an srb version with other fields as interrupted, because they can't go on."""
    for row in db.execute("SELECT * FROM requests WHERE status = 'running' AND request IS NOT NULL").fetchall():
        if _request(row) is None:
            interrupt(db, row["number"], row["id"])


def interrupt(db: sqlite3.Connection, number: int, request: str) -> None:
    """Marks a running request as interrupted for good. Its alternatives and nodes end with the texts so far."""
    recorder.interrupt_request(db, number, request, _texts(db, number))


def _texts(db: sqlite3.Connection, number: int) -> dict[int, tuple[str, list[int]]]:
    """The texts and tokens of a request's alternatives so far. The events of texts are lists in every version."""
    said: dict[int, tuple[str, list[int]]] = {}
    for (events,) in db.execute("SELECT events FROM steps WHERE request = ? ORDER BY number", (number,)):
        for index, text, drawn, *_ in (event for event in json.loads(events) if isinstance(event, list)):
            before, tokens = said.get(index, ("", []))
            if tokens or drawn:  # else it is an echoed prompt
                said[index] = before + text, tokens + drawn
    return said


def unfinished(db: sqlite3.Connection, status: str = "running") -> list[Unfinished]:
    """The requests with this status, the oldest first. Those of an srb version with other fields are left out."""
    rows = db.execute("SELECT * FROM requests WHERE status = ? AND request IS NOT NULL ORDER BY number", (status,))
    return [each for row in rows if (each := _unfinished(db, row))]


def _request(row: sqlite3.Row) -> CompletionRequest | None:
    try:
        return unpack_request(row["request"])
    except (TypeError, ValueError, LookupError, zlib.error, SrbError):
        return None


def _unfinished(db: sqlite3.Connection, row: sqlite3.Row) -> Unfinished | None:
    request = _request(row)
    if request is None:
        return None
    others = {"detach": bool(row["detached"]), "body": zlib.decompress(row["body"]), "node": None}
    submitted = made_of(Submitted, row, request=request, **others)
    return Unfinished(submitted, row["number"], events_of(db, row["number"], row["id"]), row["losses"])


def read_journal(db: sqlite3.Connection, owner: str | None, request: str) -> Unfinished | str | None:
    """A request with all its events, also a finished one; None if the file doesn't have it.

    It is the request's status instead, if the request runs or its events are no longer in the file.
    """
    row = db.execute("SELECT * FROM requests WHERE id = ? AND owner IS ?", (request, owner)).fetchone()
    if row is None:
        return None
    kept = _unfinished(db, row) if row["request"] is not None and row["status"] != "running" else None
    return kept or str(row["status"])


def find_sent(db: sqlite3.Connection, owner: str | None, request: str) -> Sent | None:
    """What a client has sent as a request, and what became of it; None if there is no such request."""
    row = db.execute("SELECT * FROM requests WHERE id = ? AND owner IS ?", (request, owner)).fetchone()
    return row and made_of(Sent, row, body=zlib.decompress(row["body"]), nodes=_nodes_of(db, row))


def _nodes_of(db: sqlite3.Connection, row: sqlite3.Row) -> list[int]:
    """The ids of the nodes that a request writes, in the order of its alternatives."""
    # Forks and copies name the request, too. They came later, so the first nodes in its own story are the request's.
    nodes = db.execute(
        "SELECT nodes.id FROM nodes JOIN stories ON stories.number = nodes.story "
        "WHERE nodes.request = ? AND stories.id = ? ORDER BY nodes.id "
        "LIMIT (SELECT count(*) FROM alternatives WHERE request = ?)",
        (row["id"], row["story"], row["number"]),
    )
    return [node for (node,) in nodes]


def end_of(each: Unfinished) -> list[Event]:
    """The events that end a request that can't go on."""
    request = each.submitted.request
    lengths = [0] * request.count
    living = dict.fromkeys(range(request.count))
    for event in each.events:
        if isinstance(event, StreamEvent):
            lengths[event.index] += len(event.drawn)
        elif isinstance(event, StopEvent):
            lengths[event.index] = event.length
            living.pop(event.index)
    usage = Usage(request.prompt_tokens, sum(lengths), 0)
    stops = [StopEvent(request.id, index, lengths[index], "abort", "shutdown") for index in living]
    return [*stops, DoneEvent(request.id, request.count, usage, Timings(0.0, 0, 0.0, usage.completion_tokens, 0.0))]


def events_of(db: sqlite3.Connection, number: int, request: str) -> list[Event]:
    """All events of a request that are still in the file."""
    steps = db.execute("SELECT events FROM steps WHERE request = ? ORDER BY number", (number,))
    return [event for (events,) in steps for event in unpack(request, events)]
