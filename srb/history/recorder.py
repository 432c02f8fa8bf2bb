"""`Recorder`: turns the engine's events into changes of the file: requests, their events, and their texts.

A recorder belongs to the writer's thread. It has the texts of the running requests in memory. So a step writes only one
row for each request, however long the texts are, and an alternative's own row gets its text when it ends.
"""

import dataclasses
import json
import math
import sqlite3
import time
import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import srb.errors
from srb.engine.events import (
    DoneEvent,
    ErrorEvent,
    Event,
    ProgressEvent,
    PromptLogprobsEvent,
    StartEvent,
    StopEvent,
    StreamEvent,
    Timings,
    Token,
    Usage,
    by_request,
)
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import EngineDeadError, SrbError, restored
from srb.history.database import add_text, clean, insert
from srb.history.stories import count_change, find_number, insert_growing
from srb.history.writer import Change

_KINDS = {kind.__name__: kind for kind in (StartEvent, ProgressEvent, StopEvent, DoneEvent)}


def pack(events: list[Event]) -> str:
    """Packs the events of one request. Most are a StreamEvent, which is packed as a list, because it is short."""
    return json.dumps([_pack(event) for event in events], separators=(",", ":"))


def _pack(event: Event) -> Any:
    if isinstance(event, StreamEvent):
        packed: list[Any] = [event.index, event.text, event.sampled]
        if event.tokens or event.token:
            packed += [event.tokens, event.token and _pack_token(event.token)]
        return packed
    if isinstance(event, ErrorEvent):
        return vars(event.error) | {"error": type(event.error).__name__, "index": event.index}
    if isinstance(event, PromptLogprobsEvent):
        return {"prompt": [_pack_token(token) for token in event.tokens], "indices": event.indices}
    fields = dataclasses.asdict(event)
    del fields["request_id"]
    return {"event": type(event).__name__} | fields


def _pack_token(token: Token) -> list[Any]:
    top = [_pack_token(each) for each in token.top_logprobs]
    packed = [token.id, token.piece.decode("latin-1"), token.logprob, top]
    return packed if token.rank is None else [*packed, token.rank]


def unpack(request_id: str, packed: str) -> list[Event]:
    """Unpacks the events of the request with this id."""
    return [_unpack(request_id, each) for each in json.loads(packed)]


def _unpack(request_id: str, packed: Any) -> Event:
    if isinstance(packed, list):
        index, text, sampled, tokens, token = (*packed, [], None)[:5]
        return StreamEvent(request_id, index, text, tuple(tokens), token and _unpack_token(token), tuple(sampled))
    if "error" in packed:
        kind, index = getattr(srb.errors, packed.pop("error"), SrbError), packed.pop("index")
        fields = {name: _tuples(value) for name, value in packed.items()}
        return ErrorEvent(request_id, index, restored(kind, (fields["message"],), fields))
    if "prompt" in packed:
        tokens = tuple(map(_unpack_token, packed["prompt"]))
        return PromptLogprobsEvent(request_id, tuple(packed["indices"]), tokens)
    kind = _KINDS[packed.pop("event")]
    for name, of in (("usage", Usage), ("timings", Timings)):
        if packed.get(name):
            packed[name] = of(**packed[name])
    return kind(request_id=request_id, **{name: _tuples(value) for name, value in packed.items()})


def _unpack_token(packed: list[Any]) -> Token:
    token, piece, logprob, top, *rank = packed
    return Token(token, piece.encode("latin-1"), logprob, tuple(map(_unpack_token, top)), *rank)


def pack_request(request: CompletionRequest) -> bytes:
    """Packs and compresses what a request needs to resume. A request with media can't resume: they aren't packed."""
    without = ("resumed", "media")
    fields = {
        each.name: getattr(request, each.name) for each in dataclasses.fields(request) if each.name not in without
    }
    fields["branches"] = [
        {each.name: getattr(branch, each.name) for each in dataclasses.fields(branch)} for branch in request.branches
    ]
    return zlib.compress(json.dumps(fields).encode())


def unpack_request(packed: bytes) -> CompletionRequest:
    """Unpacks a request. Raises `TypeError` if the srb that packed it had other fields."""
    fields = {name: _tuples(value) for name, value in json.loads(zlib.decompress(packed)).items()}
    branches = tuple(
        SamplingParams(**{name: _tuples(value) for name, value in branch.items()}) for branch in fields.pop("branches")
    )
    return CompletionRequest(branches=branches, **fields)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


MAX_SETTING_CHARS = 1_000
"""A longer setting, a grammar for example, is only in the body of its request."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request that the engine will get.

    Attributes:
        owner: the hash of its API key.
        detach: whether it continues without readers.
        created: in seconds since 1970.
        path: the route that it came to.
        body: that of the HTTP request.
        title: the end of its prompt.
        story: the id of the story that its alternatives belong to.
        node: the id of the node that they continue.
    """

    request: CompletionRequest
    owner: str | None
    detach: bool
    created: int
    path: str
    model: str
    body: bytes
    title: str
    story: str | None = None
    node: int | None = None


@dataclass(slots=True)
class _Running:
    """A running request.

    Attributes:
        number: its number in the file.
        story: the number of its story in the file.
        nodes: the ids of its nodes.
        texts: the text of each alternative so far, in parts.
        tokens: those of each alternative so far.
        losses: the number of servers that have started it since its last token, or since a server ended in order. All
            but the present one were lost.
        fingerprint: that of the last `StartEvent` in the file; None if there is none.
        is_suspended: whether the server's end has interrupted it.
        has_gap: whether some of its steps are lost. The file gets no further ones: a restart resumes before the gap.
    """

    submitted: Submitted
    number: int
    story: int | None = None
    nodes: list[int] = field(default_factory=list)
    texts: list[list[str]] = field(default_factory=list)
    tokens: list["array[int]"] = field(default_factory=list)
    losses: int = 0
    fingerprint: str | None = None
    is_suspended: bool = False
    has_gap: bool = False

    def __post_init__(self) -> None:
        count = self.submitted.request.count
        self.texts = [[] for _ in range(count)]
        self.tokens = [array("I") for _ in range(count)]

    def take(self, event: StreamEvent) -> None:
        """Adds the text and tokens of an event to its alternative, except for an echoed prompt."""
        index = event.index
        self.tokens[index].extend(event.sampled)
        if self.tokens[index] or not self.submitted.request.echo:
            self.texts[index].append(event.text)


class Recorder:
    """Decides what is written of the running requests. The events of a finished one stay for `keep_seconds`."""

    def __init__(self, db: sqlite3.Connection, keep_seconds: float) -> None:
        self._keep_seconds = keep_seconds
        self._running: dict[str, _Running] = {}
        (self._last_number,) = db.execute("SELECT coalesce(max(number), 0) FROM requests").fetchone()

    def begin(self, submitted: Submitted, nodes: list[int]) -> list[Change]:
        """Adds a request. nodes: gets the ids of its alternatives' nodes when they are written."""
        # SQLite would reuse the number of a removed request, which may still get events under this number.
        self._last_number += 1
        running = self._running[submitted.request.id] = _Running(submitted, self._last_number, nodes=nodes)
        return [partial(_begin, running)]

    def resume(self, submitted: Submitted, number: int, events: list[Event], losses: int) -> list[Change]:
        """Resumes a request that is in the file. events: its events so far. losses: `_Running`."""
        running = self._running[submitted.request.id] = _Running(submitted, number, losses=losses)
        for event in events:
            if isinstance(event, StreamEvent):
                running.take(event)
            elif isinstance(event, StartEvent):
                running.fingerprint = event.fingerprint
        return []

    def forget(self, request_id: str) -> list[Change]:
        """Removes a request that the engine has refused."""
        return [partial(_forget, running)] if (running := self._running.pop(request_id, None)) else []

    def take(self, events: list[Event]) -> list[Change]:
        """Returns the changes that the events of a step make."""
        changes: list[Change] = []
        for request_id, batch in by_request(events).items():
            if running := self._running.get(request_id):
                changes += self._take(running, batch)
        return changes

    def lose_steps(self) -> None:
        """Notes that changes of the running requests are lost."""
        for running in self._running.values():
            running.has_gap = True

    def _take(self, running: _Running, events: list[Event]) -> Iterator[Change]:
        if running.submitted.detach:
            losses = running.losses
            events = list(_lasting(running, events))
            if running.losses != losses:
                yield partial(_set_losses, running, running.losses)
        if events and not running.has_gap:
            yield partial(_add_step, running, pack(events))
        for event in events:
            if isinstance(event, StreamEvent):
                running.take(event)
            elif isinstance(event, StopEvent):
                yield partial(_stop_at, running, event)
            elif isinstance(event, DoneEvent):
                yield partial(_finish, running, event.usage)
                if running.has_gap:
                    yield partial(drop_events, running.number)
                yield partial(_drop_old_events, int(time.time() - self._keep_seconds))
                del self._running[running.submitted.request.id]


def _lasting(running: _Running, events: list[Event]) -> Iterator[Event]:
    """Drops the events that end a request because the server stops, or its engine has failed.

    The request resumes after the next start. Its further starts are dropped, too, but count as losses. Text that comes
    only because the server stops is dropped: the request sends it again when it resumes.
    """
    cut = {event.index for event in events if isinstance(event, StopEvent) and _is_shut_down(event)}
    for event in events:
        if isinstance(event, StartEvent):
            running.losses += 1
            if event.fingerprint == running.fingerprint:
                continue
            running.fingerprint = event.fingerprint
        elif isinstance(event, StreamEvent) and event.sampled:
            running.losses = 0
        if isinstance(event, ErrorEvent) and isinstance(event.error, EngineDeadError):
            running.is_suspended = True
            return
        if isinstance(event, StopEvent) and _is_shut_down(event):
            running.is_suspended = True
            running.losses = 0
        elif isinstance(event, StreamEvent) and event.index in cut:
            continue
        elif not running.is_suspended or not isinstance(event, DoneEvent):
            yield event


def _is_shut_down(event: StopEvent) -> bool:
    """Tells whether the server's end has caused this stop. A stop string may have the same text."""
    return (event.finish_reason, event.stop_reason) == ("abort", "shutdown")


def settings_of(params: SamplingParams) -> dict[str, Any]:
    """Returns the settings of an alternative for the file: those that aren't the defaults."""
    settings: dict[str, Any] = {}
    for each in dataclasses.fields(SamplingParams):
        value = getattr(params, each.name)
        if each.name in ("seed", "label") or value == each.default:
            continue
        if each.name == "logit_bias":
            value = [[token, False if bias == -math.inf else bias] for token, bias in value]
        if len(json.dumps(value)) <= MAX_SETTING_CHARS:
            settings[each.name] = value
    return settings


def _begin(running: _Running, db: sqlite3.Connection) -> None:
    submitted = running.submitted
    request = submitted.request
    values = {
        "number": running.number,
        "id": request.id,
        "owner": submitted.owner,
        "created": submitted.created,
        "path": submitted.path,
        "model": submitted.model,
        "title": clean(submitted.title),
        "body": zlib.compress(submitted.body),
        "detached": submitted.detach,
        "status": "running",
        "story": submitted.story,
        "request": pack_request(request),
    }
    insert(db, "requests", values)
    healed = {"heal": True} if request.heal else {}
    settings = [json.dumps(settings_of(params) | healed) for params in request.branches]
    params = [request.branches[index % len(request.branches)] for index in range(request.count)]
    db.executemany(
        "INSERT INTO alternatives(request, number, seed, label, settings) VALUES (?, ?, ?, ?, ?)",
        [
            (running.number, index, each.seed, clean(each.label), settings[index % len(settings)])
            for index, each in enumerate(params)
        ],
    )
    if submitted.story is not None:
        running.story = find_number(db, submitted.owner, submitted.story)
        if running.story is not None:
            change = count_change(db, running.story)
            running.nodes[:] = insert_growing(
                db, running.story, submitted.node, request.id, change, params, settings, submitted.created
            )


def _forget(running: _Running, db: sqlite3.Connection) -> None:
    db.execute("DELETE FROM requests WHERE number = ?", (running.number,))
    db.execute("DELETE FROM nodes WHERE request = ? AND text IS NULL", (running.submitted.request.id,))


def _set_losses(running: _Running, losses: int, db: sqlite3.Connection) -> None:
    db.execute("UPDATE requests SET losses = ? WHERE number = ?", (losses, running.number))


def _add_step(running: _Running, events: str, db: sqlite3.Connection) -> None:
    # The request may have been removed with its story.
    db.execute(
        "INSERT INTO steps(request, events) SELECT number, ? FROM requests WHERE number = ?", (events, running.number)
    )


def _stop_at(running: _Running, stop: StopEvent, db: sqlite3.Connection) -> None:
    text, tokens = "".join(running.texts[stop.index]), running.tokens[stop.index]
    end_alternative(db, running.number, running.submitted.request.id, stop, text, tokens)


def end_alternative(
    db: sqlite3.Connection, request_number: int, request: str, stop: StopEvent, text: str, tokens: Iterable[int]
) -> None:
    """Writes the text of an alternative and of its node, when it ends."""
    place = (request_number, stop.index)
    if not db.execute("SELECT 1 FROM alternatives WHERE request = ? AND number = ?", place).fetchone():
        return
    number = add_text(db, text, tokens)
    values = (number, stop.length, stop.finish_reason, stop.stop_reason)
    db.execute(
        "UPDATE alternatives SET text = ?, length = ?, finish_reason = ?, stop_reason = ? "
        "WHERE request = ? AND number = ?",
        (*values, *place),
    )
    row = db.execute(
        "SELECT story FROM nodes WHERE request = ? AND number = ? AND text IS NULL",
        (request, stop.index),
    ).fetchone()
    if row:
        db.execute(
            "UPDATE nodes SET text = ?, length = ?, finish_reason = ?, stop_reason = ?, suffix_logprob = ?, change = ? "
            "WHERE request = ? AND number = ? AND story = ?",
            (*values, stop.suffix_logprob, count_change(db, row["story"]), request, stop.index, row["story"]),
        )


def _finish(running: _Running, usage: Usage, db: sqlite3.Connection) -> None:
    db.execute(
        "UPDATE requests SET status = 'finished', finished = ?, usage = ? WHERE number = ?",
        (int(time.time()), json.dumps(dataclasses.asdict(usage)), running.number),
    )


def _drop_old_events(before: int, db: sqlite3.Connection) -> None:
    """Removes the events of the oldest two requests that have any, if they finished before a time.

    There are no more at a time, so that no step waits for long.
    """
    has_events = "status = 'finished' AND request IS NOT NULL"
    oldest = f"SELECT number, finished FROM requests WHERE {has_events} ORDER BY number LIMIT 2"
    rows = db.execute(f"SELECT number FROM ({oldest}) WHERE coalesce(finished, 0) < ?", (before,))
    for (number,) in rows.fetchall():
        drop_events(number, db)


def drop_events(number: int, db: sqlite3.Connection) -> None:
    """Removes the events of a request, and what it would need to resume."""
    db.execute("DELETE FROM steps WHERE request = ?", (number,))
    db.execute("UPDATE requests SET request = NULL WHERE number = ?", (number,))


def forget_events(db: sqlite3.Connection, owner: str | None, request: str) -> bool:
    """Removes the events of a request that has ended, so that it can't be read again. Its texts stay.

    Returns False if there are none.
    """
    row = db.execute(
        "SELECT number FROM requests WHERE id = ? AND owner IS ? AND status != 'running' AND request IS NOT NULL",
        (request, owner),
    ).fetchone()
    if row:
        drop_events(row["number"], db)
    return row is not None
