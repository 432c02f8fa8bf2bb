"""`History`: the history of a server, with its file, its writer and its readers."""

import dataclasses
import fcntl
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from srb.engine.telling.events import Event
from srb.errors import HistoryError, SettingsError
from srb.history.database import check_place, connect, explained, prepare
from srb.history.recorder import Recorder, Submitted
from srb.history.unfinished import Unfinished, end_of, unfinished
from srb.history.writer import Change, Writer

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def read(
    path: Path,
    function: Callable[Concatenate[sqlite3.Connection, Arguments], Result],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result:
    """Calls a function with a connection that reads the file, and returns its result.

    This takes milliseconds: from an event loop, call it in a thread.
    Raises `HistoryError` if the file can't be read, and what the function raises.
    """
    with explained(path), closing(connect(path, is_reader=True)) as db:
        db.execute("BEGIN")  # in one transaction, so that everything it reads is of the same moment
        return function(db, *args, **kwargs)


class History:
    """The history of one server, until it is closed. Its methods may be called from any thread.

    keep_seconds: how long the events of a finished request are kept, so that its readers can go on.

    Raises `SettingsError` if the path is wrong or another server uses it, and `HistoryError` if the file can't be used.
    """

    def __init__(self, path: Path, keep_seconds: float = 0) -> None:
        self.path = path
        self.on_recovery: Callable[[], object] = lambda: None
        """Is called in a thread when everything is written that couldn't be for a while."""
        self._recorder = Recorder(keep_seconds)  # only the writer's thread uses it
        check_place(path)
        self._lock = _lock(path)
        try:
            prepare(path)
            self.interrupted = self.read(unfinished)
            """The requests that ran when the last server ended. They are read before any new request is written."""
            with explained(path):
                self._writer = Writer(path, self._recorder.lose_steps, lambda: self.on_recovery())
        except BaseException:
            os.close(self._lock)
            raise
        self._record(lambda recorder: [recorder.restore])

    @property
    def problem(self) -> HistoryError | None:
        """Why nothing can be written now; None if all is well."""
        return self._writer.problem

    @property
    def n_owed(self) -> int:
        """How many changes wait until the file can be written again."""
        return self._writer.n_owed

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
        return self._writer.submit(lambda db: function(db, *args, **kwargs))

    def begin(self, submitted: Submitted) -> "Future[list[int]]":
        """Adds a request that the engine is about to take. The future has the ids of its alternatives' nodes."""
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
        """Writes the events of a step, and then calls `done`: now readers may get them."""
        self._record(lambda recorder: recorder.take(events), done)

    def resume(self, each: Unfinished) -> None:
        """Goes on with a request that the file has already. Pass its further events to `take`."""
        self._record(lambda recorder: recorder.resume(each.submitted, each.number, each.events, each.losses))

    def interrupt(self, each: Unfinished) -> None:
        """Marks a request as interrupted, and writes its texts so far. Somebody may continue it by hand."""
        self.resume(each)
        self._record(lambda recorder: recorder.interrupt(each.submitted.request.id, end_of(each)))

    def end(self, each: Unfinished) -> None:
        """Ends an interrupted request that nobody waits for any more."""
        self.resume(dataclasses.replace(each, submitted=dataclasses.replace(each.submitted, detach=False)))
        self.take(end_of(each))

    def _record(
        self,
        changes: Callable[[Recorder], list[Change]],
        done: Callable[[], object] = lambda: None,
        *,
        is_awaited: bool = False,
    ) -> None:
        self._writer.record(lambda: changes(self._recorder), done, is_awaited=is_awaited)

    def close(self) -> None:
        """Writes what waits, and closes the file."""
        self._writer.close()
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: Any) -> None:
        self.close()


def _lock(path: Path) -> int:
    """Locks the file against other servers, which would go on with this one's requests. Returns a file descriptor.

    The lock is on a second file beside it: SQLite's own locks on the file are lost if another descriptor of it is
    closed.
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
