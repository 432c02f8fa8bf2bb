"""`Writer`: the one thread that writes the file. It puts everything that waits into one transaction.

After a transaction, the operating system has the data, so a killed process loses none. A second thread syncs the disk
once a second, so a power failure may lose the last second.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from srb.errors import HistoryError, SrbError
from srb.history.database import MIGRATIONS, UnusableError, connect, explain

logger = logging.getLogger("srb")

Change = Callable[[sqlite3.Connection], object]
"""Something to write. The writer may call it again if its transaction has failed."""

Result = TypeVar("Result")

MAX_PENDING = 200_000
"""The most changes that wait while the disk takes none: about what 32 alternatives make in an hour or two."""

RETRY_SECONDS = 1.0
"""The shortest wait before the next try. After a long try it waits ten times as long."""

_SYNC_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Job:
    """A function whose caller waits for the result. If it fails, it isn't tried again."""

    function: Callable[[sqlite3.Connection], Any]
    future: "Future[Any]"


@dataclass(frozen=True, slots=True)
class _Record:
    """Changes that the engine's events make. The engine doesn't wait, so failed changes are tried again."""

    changes: Callable[[], Iterable[Change]]
    done: Callable[[], object]
    is_awaited: bool


class Writer:
    """Writes until it is closed. `submit` and `record` may be called from any thread.

    After `close`, changes are lost with a line in the log, and their callers are told at once. In the writer's thread,
    `on_loss` is called when `MAX_PENDING` changes are lost, and `on_recovery` when everything pending is written.
    """

    def __init__(self, path: Path, on_loss: Callable[[], object], on_recovery: Callable[[], object]) -> None:
        self._path = path
        self._on_loss = on_loss
        self._on_recovery = on_recovery
        self._queue: SimpleQueue[_Job | _Record | None] = SimpleQueue()
        self._pending: list[Change] = []
        self._problem: HistoryError | None = None
        self._retry_at = 0.0  # on the monotonic clock, while there is a problem
        self._dirty = threading.Event()
        self._closing = threading.Event()
        self._end = threading.Lock()  # nothing is queued after the end, where nobody would read it
        self._is_open = True
        self._db = connect(path)
        self._db.execute("PRAGMA wal_autocheckpoint = 0")  # so no transaction waits for the disk; _sync does it
        self._thread = threading.Thread(target=self._main, name="srb-history", daemon=True)
        self._syncer = threading.Thread(target=self._sync, name="srb-history-sync", daemon=True)
        self._thread.start()
        self._syncer.start()

    @property
    def problem(self) -> HistoryError | None:
        """The reason why the last transaction has failed; None if it hasn't."""
        return self._problem

    @property
    def n_pending(self) -> int:
        """The number of changes that wait until the file can be written again."""
        return len(self._pending) if self._problem else 0

    def submit(self, function: Callable[[sqlite3.Connection], Result]) -> "Future[Result]":
        """Calls a function that writes, in the writer's thread.

        The future gets the function's result or error when its transaction is in the file.
        """
        future: Future[Result] = Future()
        self._put(_Job(function, future))
        return future

    def record(
        self, changes: Callable[[], Iterable[Change]], done: Callable[[], object], *, is_awaited: bool = False
    ) -> None:
        """Writes changes, which a function makes in the writer's thread, in the order of the calls of `record`.

        `done` is called after that in the same thread, even if the changes can't be written now. If their results are
        awaited, they are tried at once.
        """
        self._put(_Record(changes, done, is_awaited))

    def close(self) -> None:
        """Writes what is pending, and ends."""
        with self._end:
            self._is_open = False
            self._queue.put(None)
        self._thread.join()
        self._closing.set()
        self._dirty.set()
        self._syncer.join()
        self._db.close()
        if self._pending:
            logger.error("the end of the history is lost: %s", self._problem)

    def _put(self, entry: _Job | _Record) -> None:
        with self._end:
            if self._is_open:
                self._queue.put(entry)
                return
        problem = HistoryError(f"the history {self._path} is closed, because the server ends")
        if isinstance(entry, _Job):
            entry.future.set_exception(problem)
        else:
            logger.error("%s; further events are lost", problem)
            entry.done()

    def _main(self) -> None:
        is_open = True
        while is_open:
            queued = self._take()
            is_open = None not in queued
            entries = [entry for entry in queued if entry is not None and _is_wanted(entry)]
            for entry in entries:
                if isinstance(entry, _Record):
                    self._pending += self._changes(entry)
            if not is_open or self._is_due() or any(map(_is_urgent, entries)):
                results = self._write(entries)
            else:
                results = [entry.done for entry in entries if isinstance(entry, _Record)]
            for tell in results:
                try:
                    tell()
                except Exception:  # the thread must continue, because others wait for it
                    logger.exception("a fault in srb: a result of writing %s can't be delivered", self._path)

    def _take(self) -> list[_Job | _Record | None]:
        """Waits for entries, and takes all. Returns none if it is time to try again."""
        entries: list[_Job | _Record | None] = []
        # A damaged file isn't tried again without a new entry: it would seem whole until the next write.
        is_retried = self._problem is not None and not isinstance(self._problem, UnusableError)
        left = max(0.0, self._retry_at - time.monotonic()) if is_retried else None
        try:
            entries.append(self._queue.get(timeout=left))
            while True:
                entries.append(self._queue.get_nowait())
        except Empty:
            return entries

    def _is_due(self) -> bool:
        return time.monotonic() >= self._retry_at if self._problem else bool(self._pending)

    def _write(self, entries: list[_Job | _Record]) -> list[Callable[[], object]]:
        """Writes the pending changes and these jobs in one transaction. Returns functions that tell the callers."""
        began = time.monotonic()
        results: list[Callable[[], object]]
        try:
            if self._problem:
                self._empty_log()
            self._db.execute("BEGIN IMMEDIATE")
            if self._problem:  # a write that changes nothing, which tests the disk even if nothing is pending
                self._db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
            for change in self._pending:
                self._make(change)
            results = [entry.done if isinstance(entry, _Record) else self._run(entry) for entry in entries]
            self._db.execute("COMMIT")
        except (sqlite3.DatabaseError, MemoryError) as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            problem = self._fail(error)
            now = time.monotonic()
            self._retry_at = now + max(RETRY_SECONDS, 10 * (now - began))
            results = [
                entry.done if isinstance(entry, _Record) else partial(entry.future.set_exception, problem)
                for entry in entries
            ]
        else:
            self._pending = []
            self._dirty.set()
            if self._problem:
                self._db.execute("PRAGMA busy_timeout = 5000")
                logger.info("the history %s is written again", self._path)
                self._problem = None
                results.append(self._on_recovery)
        return results

    def _empty_log(self) -> None:
        """Truncates SQLite's log. Failed transactions may have left so much there that the disk is full."""
        with suppress(sqlite3.DatabaseError):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _run(self, job: _Job) -> Callable[[], object]:
        """Runs a job in a savepoint of its own: if it fails, the transaction continues without its writes."""
        self._db.execute("SAVEPOINT job")
        try:
            result = job.function(self._db)
        except Exception as error:
            if _is_of_the_file(error):
                raise
            self._db.execute("ROLLBACK TO job")
            self._db.execute("RELEASE job")
            refused = error if isinstance(error, SrbError) else explain(self._path, error)
            return partial(job.future.set_exception, refused)
        self._db.execute("RELEASE job")
        return partial(job.future.set_result, result)

    def _changes(self, record: _Record) -> Iterable[Change]:
        try:
            return record.changes()
        except Exception:  # the thread must continue, because others wait for it
            logger.exception("a fault in srb: the history %s lacks some changes", self._path)
            return ()

    def _make(self, change: Change) -> None:
        try:
            change(self._db)
        except Exception as error:
            if _is_of_the_file(error):
                raise
            logger.exception("a fault in srb: the history %s lacks a change", self._path)

    def _fail(self, error: sqlite3.DatabaseError | MemoryError) -> HistoryError:
        problem = explain(self._path, error)
        if self._problem is None:
            self._problem = problem
            self._db.execute("PRAGMA busy_timeout = 0")  # from now on no write waits for a lock
            logger.error("%s; until then nothing is written there, and requests continue", self._problem)
        if len(self._pending) > MAX_PENDING:
            logger.error("%d changes are lost that the history %s should have", len(self._pending), self._path)
            self._pending = []
            self._on_loss()
        return problem

    def _sync(self) -> None:
        """Syncs the disk, and moves the data from the log to the file."""
        while not self._closing.is_set():
            self._dirty.wait()
            self._dirty.clear()
            try:
                with closing(connect(self._path)) as db:
                    db.execute("PRAGMA wal_checkpoint(PASSIVE)")  # PASSIVE doesn't block the writer
            except (sqlite3.Error, MemoryError) as error:
                logger.debug("no checkpoint of the history: %s", error)
            self._closing.wait(_SYNC_SECONDS)


def _is_wanted(entry: _Job | _Record) -> bool:
    """Tells whether the entry isn't cancelled. From now on it can't be."""
    return isinstance(entry, _Record) or entry.future.set_running_or_notify_cancel()


def _is_urgent(entry: _Job | _Record) -> bool:
    """Tells whether a caller waits for the result of this entry."""
    return isinstance(entry, _Job) or entry.is_awaited


def _is_of_the_file(error: Exception) -> bool:
    """Tells whether the file or the disk caused this error, and not a fault in the function that wrote."""
    return isinstance(error, sqlite3.OperationalError | MemoryError) or type(error) is sqlite3.DatabaseError
