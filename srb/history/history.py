"""`History`: the history of a server, with its file, its writer and its readers; exports as JSON and Markdown."""

import dataclasses
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from srb.engine.events import Event
from srb.engine.resume import ending
from srb.errors import HistoryError, NotFoundError, SettingsError
from srb.history.database import check_place, connect, explained, prepare, remove_orphans
from srb.history.queries import Recorded, Unfinished, interrupt, unfinished
from srb.history.recorder import Recorder, Submitted
from srb.history.stories import Draft, Node, Story, empty_trash, read_nodes
from srb.history.writer import Change, Writer


def as_json(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass, whose names are those in the JSON of the HTTP API."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def listed_json(story: Story) -> dict[str, Any]:
    """Returns a story as it is in a list: without its context, which may be large."""
    data = {"id": story.id, "object": "story"} | as_json(story)
    del data["context"]
    return data


def story_json(story: Story, nodes: list[Node] | None = None, drafts: Sequence[Draft] = ()) -> dict[str, Any]:
    """Returns a story, without nodes, or with these nodes and drafts."""
    data = listed_json(story) | {"context": story.context}
    if nodes is None:
        return data
    return data | {"nodes": [as_json(node) for node in nodes], "drafts": [as_json(draft) for draft in drafts]}


def request_json(request: Recorded) -> dict[str, Any]:
    """Returns everything that the file has of a request."""
    return as_json(request.summary) | {
        "detached": request.detached,
        "finished": request.finished,
        "usage": request.usage,
        "body": request.body,
        "choices": [as_json(each) for each in request.alternatives],
    }


def request_as_markdown(request: Recorded) -> str:
    """Formats a request for people: its time, its prompt, and each alternative."""
    summary, body = request.summary, request.body
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(summary.created))
    parts = [f"## {when}, {summary.id}", "", f"{summary.model}, {summary.count} alternatives, {summary.status}", ""]
    prompt = body.get("prompt") if isinstance(body, dict) else None
    parts += [_quote(prompt if isinstance(prompt, str) else summary.title), ""]
    for each in request.alternatives:
        settings = "".join(f", {name} {value}" for name, value in each.settings.items())
        parts += [f"### {each.label or f'Alternative {each.index + 1}'}", "", f"Seed {each.seed}{settings}", ""]
        parts += [each.text if each.text is not None else "(it hasn't ended)", ""]
    return "\n".join(parts)


def _quote(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.split("\n"))


def story_as_markdown(db: sqlite3.Connection, owner: str | None, story: str, node: int | None = None) -> str:
    """Formats the text of a story from its beginning to a node. Raises `NotFoundError`.

    Without a node, it is the last one that a person wrote or that is kept.
    """
    found, nodes = read_nodes(db, owner, story)
    if node is None:
        node = max((each.id for each in nodes if each.author == "person" or each.kept), default=None)
    elif not any(each.id == node for each in nodes):
        raise NotFoundError(f"there is no node {node} in this story", param="node")
    text = "".join(reversed(list(_upwards({each.id: each for each in nodes}, node))))
    return f"# {found.title}\n\n{text}\n"


def _upwards(nodes: dict[int, Node], at: int | None) -> Iterator[str]:
    while at in nodes:
        yield nodes[at].text
        parent = nodes[at].parent
        at = parent if parent is not None and parent < at else None  # in a damaged file there may be a circle


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def read(
    path: Path,
    function: Callable[Concatenate[sqlite3.Connection, Arguments], Result],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result:
    """Calls a function with a connection that reads the file. Takes milliseconds: in an event loop, use a thread.

    Raises `HistoryError`, and what the function raises.
    """
    with explained(path), closing(connect(path, is_reader=True)) as db:
        db.execute("BEGIN")  # in one transaction, so that everything it reads is of the same moment
        return function(db, *args, **kwargs)


class History:
    """The history of one server, until it is closed. Its methods may be called from any thread.

    The events of a finished request stay for `keep_seconds`, so that its readers can resume. Raises `SettingsError` and
    `HistoryError`.

    Attributes:
        on_recovery: called in a thread when a problem is over, and everything pending is written.
        interrupted: the requests that ran when the last server ended.
        writer: the thread that writes the file.
    """

    def __init__(self, path: Path, keep_seconds: float = 0) -> None:
        self.path = path
        self.on_recovery: Callable[[], object] = lambda: None
        check_place(path)
        self._lock = _lock(path)
        try:
            prepare(path)
            self.interrupted = self.read(unfinished)
            self._recorder = self.read(Recorder, keep_seconds)  # only the writer's thread uses it
            with explained(path):
                self.writer = Writer(path, self._recorder.lose_steps, lambda: self.on_recovery())
        except BaseException:
            os.close(self._lock)
            raise
        self._record(lambda _recorder: [empty_trash])

    def read(
        self,
        function: Callable[Concatenate[sqlite3.Connection, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> Result:
        """Calls a function that reads the file; see the function `read`."""
        return read(self.path, function, *args, **kwargs)

    def write(
        self,
        function: Callable[Concatenate[sqlite3.Connection, Arguments], Result],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> "Future[Result]":
        """Calls a function that writes, in the writer's thread and in one transaction.

        The future has its result when the transaction is in the file.
        """
        return self.writer.submit(lambda db: function(db, *args, **kwargs))

    def begin(self, submitted: Submitted) -> "Future[list[int]]":
        """Adds a request that the engine will get. The future has the ids of its alternatives' nodes."""
        nodes: list[int] = []
        future: Future[list[int]] = Future()
        future.set_running_or_notify_cancel()  # from now on it can't be cancelled, because the request will be written
        self._record(
            lambda recorder: recorder.begin(submitted, nodes),
            lambda: future.set_result(nodes),
            is_awaited=submitted.story is not None,
        )
        return future

    def forget(self, request_id: str) -> None:
        """Removes a request that the engine has refused."""
        self._record(lambda recorder: recorder.forget(request_id))

    def take(self, events: list[Event], done: Callable[[], object] = lambda: None) -> None:
        """Writes the events of a step, and then calls `done`: readers may get them now."""
        self._record(lambda recorder: recorder.take(events), done)

    def resume(self, each: Unfinished) -> None:
        """Resumes a request that is in the file. Pass its further events to `take`."""
        self._record(lambda recorder: recorder.resume(each.submitted, each.number, each.events, each.losses))

    def interrupt(self, each: Unfinished) -> None:
        """Marks a request as interrupted, as soon as the file can be written. A person may continue it."""
        change = partial(interrupt, number=each.number, request=each.submitted.request.id)
        self._record(lambda _recorder: [change])

    def end(self, each: Unfinished) -> None:
        """Ends an interrupted request that won't be resumed."""
        self.resume(dataclasses.replace(each, submitted=dataclasses.replace(each.submitted, detach=False)))
        self.take(ending(each.submitted.request, each.events, "abort", "shutdown"))

    def _record(
        self,
        changes: Callable[[Recorder], list[Change]],
        done: Callable[[], object] = lambda: None,
        *,
        is_awaited: bool = False,
    ) -> None:
        self.writer.record(lambda: changes(self._recorder), done, is_awaited=is_awaited)

    def close(self) -> None:
        """Writes what is pending, and closes the file."""
        self.writer.close()
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: Any) -> None:
        self.close()


def _lock(path: Path) -> int:
    """Locks the file against other servers, which would resume this one's requests. Returns a file descriptor.

    The lock is on a second file: SQLite's own locks on a file are lost if another descriptor of it is closed.
    """
    lock = path.with_name(path.name + "-lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise HistoryError(
            f"the history {path} can't be used: {lock} can't be made ({error.strerror}); make its folder writable for "
            "this user, or name another file"
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise SettingsError(f"--history {path} is in use by another server; give this one a file of its own") from None
    return descriptor


_BATCH = 200
"""The number of requests that one transaction removes. A server that writes meanwhile waits some milliseconds."""


def size_of(db: sqlite3.Connection) -> int:
    """Returns the size of the used part of the file, in bytes."""
    names = ("page_count", "freelist_count", "page_size")
    pages, unused, size = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    return int((pages - unused) * size)


def prune(db: sqlite3.Connection, *, before: int | None = None, to_bytes: int | None = None) -> int:
    """Removes finished requests, the oldest first, and returns their number. Unfinished ones, and stories, stay.

    Removes all that ended `before` a time, in seconds since 1970, and more until the file isn't larger than `to_bytes`,
    or only has what stays.
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
    """Removes a request that has ended. Raises `NotFoundError` if there is none, or it still runs."""
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
    for index in ("search", "search_spaced"):
        merged = 2
        while merged >= 2:  # fewer changes mean that FTS5 has nothing left to merge
            before = db.total_changes
            db.execute(f"INSERT INTO {index}({index}, rank) VALUES ('merge', 200)")
            merged = db.total_changes - before
    while db.execute("PRAGMA freelist_count").fetchone()[0]:
        db.execute("PRAGMA incremental_vacuum(500)").fetchall()
