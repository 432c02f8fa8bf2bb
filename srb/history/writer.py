"""`Writer` has the one thread that writes the file. It puts everything that waits into one transaction.

After a transaction, the operating system has what was written, so a killed process loses nothing of it. A second thread
makes the disk keep it, once a second. So a power failure may lose the last second.
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

MAX_OWED = 200_000
"""How many changes may wait while the disk takes none. 32 alternatives make so many in an hour or two."""

_RETRY_SECONDS = 1.0
"""How long the writer waits before it tries again, at least. After a long try it waits ten times as long."""

_SYNC_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Job:
    """A function whose result somebody waits for. If it fails, it isn't tried again."""

    function: Callable[[sqlite3.Connection], Any]
    future: "Future[Any]"


@dataclass(frozen=True, slots=True)
class _Record:
    """Changes that the engine's events make. The engine goes on anyway, so what can't be written now is tried again."""

    changes: Callable[[], Iterable[Change]]
    done: Callable[[], object]
    is_awaited: bool


class Writer:
    """Writes until it is closed. `submit` and `record` may be called from any thread.

    What comes later is lost, with a line in the log, and those who wait for it are told at once.

    on_loss: is called in the writer's thread when MAX_OWED changes are lost.
    on_recovery: is called in the writer's thread when everything is written that was owed.
    """

    def __init__(self, path: Path, on_loss: Callable[[], object], on_recovery: Callable[[], object]) -> None:
        self._path = path
        self._on_loss = on_loss
        self._on_recovery = on_recovery
        self._queue: SimpleQueue[_Job | _Record | None] = SimpleQueue()
        self._owed: list[Change] = []
        self._problem: HistoryError | None = None
        self._retry_at = 0.0  # on the monotonic clock, while there is a problem
        self._dirty = threading.Event()
        self._closing = threading.Event()
        self._end = threading.Lock()  # nothing is queued behind the end, where nobody would read it
        self._is_open = True
        self._db = connect(path)
        self._db.execute("PRAGMA wal_autocheckpoint = 0")  # so no transaction waits for the disk; _sync does it
        self._thread = threading.Thread(target=self._main, name="srb-history", daemon=True)
        self._syncer = threading.Thread(target=self._sync, name="srb-history-sync", daemon=True)
        self._thread.start()
        self._syncer.start()

    @property
    def problem(self) -> HistoryError | None:
        """Why the last transaction has failed; None if it hasn't."""
        return self._problem

    @property
    def n_owed(self) -> int:
        """How many changes wait until the file can be written again."""
        return len(self._owed) if self._problem else 0

    def submit(self, function: Callable[[sqlite3.Connection], Result]) -> "Future[Result]":
        """Calls a function that writes, in the writer's thread.

        The future has what the function returns or raises, when its transaction is in the file.
        """
        future: Future[Result] = Future()
        self._put(_Job(function, future))
        return future

    def record(
        self, changes: Callable[[], Iterable[Change]], done: Callable[[], object], *, is_awaited: bool = False
    ) -> None:
        """Writes changes, and calls `done` after that, or when it is known that they can't be written now.

        Both functions are called in the writer's thread, in the order of the calls of `record`.

        is_awaited: whether somebody needs what the changes find out, so that they are made at once, even if they are
            only written later.
        """
        self._put(_Record(changes, done, is_awaited))

    def close(self) -> None:
        """Writes what waits, and ends."""
        with self._end:
            self._is_open = False
            self._queue.put(None)
        self._thread.join()
        self._closing.set()
        self._dirty.set()
        self._syncer.join()
        self._db.close()
        if self._owed:
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
            logger.error("%s; it lacks the events that come now", problem)
            entry.done()

    def _main(self) -> None:
        is_open = True
        while is_open:
            queued = self._take()
            is_open = None not in queued
            entries = [entry for entry in queued if entry is not None and _is_wanted(entry)]
            for entry in entries:
                if isinstance(entry, _Record):
                    self._owed += self._changes(entry)
            if not is_open or self._is_due() or any(map(_is_urgent, entries)):
                results = self._write(entries)
            else:
                results = [entry.done for entry in entries if isinstance(entry, _Record)]
            for tell in results:
                try:
                    tell()
                except Exception:  # the thread must go on, because others wait for it
                    logger.exception("a fault in srb: what was written to %s can't be told", self._path)

    def _take(self) -> list[_Job | _Record | None]:
        """Waits for entries, and takes all; none if it is time to try again."""
        entries: list[_Job | _Record | None] = []
        # What may pass is tried again by itself. A damaged file isn't: it would seem whole until the next write.
        is_retried = self._problem is not None and not isinstance(self._problem, UnusableError)
        left = max(0.0, self._retry_at - time.monotonic()) if is_retried else None
        try:
            entries.append(self._queue.get(timeout=left))
            while True:
                entries.append(self._queue.get_nowait())
        except Empty:
            return entries

    def _is_due(self) -> bool:
        return self._problem is None or time.monotonic() >= self._retry_at

    def _write(self, entries: list[_Job | _Record]) -> list[Callable[[], object]]:
        """Writes what is owed and these jobs in one transaction. Returns what tells those who wait."""
        began = time.monotonic()
        results: list[Callable[[], object]]
        try:
            if self._problem:
                self._empty_log()
            self._db.execute("BEGIN IMMEDIATE")
            if self._problem:  # a write that changes nothing, to find out if there is room even if nothing is owed
                self._db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
            for change in self._owed:
                self._make(change)
            results = [entry.done if isinstance(entry, _Record) else self._run(entry) for entry in entries]
            self._db.execute("COMMIT")
        except (sqlite3.DatabaseError, MemoryError) as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            problem = self._fail(error)
            now = time.monotonic()
            self._retry_at = now + max(_RETRY_SECONDS, 10 * (now - began))
            results = [
                entry.done if isinstance(entry, _Record) else partial(entry.future.set_exception, problem)
                for entry in entries
            ]
        else:
            self._owed = []
            self._dirty.set()
            if self._problem:
                self._db.execute("PRAGMA busy_timeout = 5000")
                logger.info("the history %s is written again", self._path)
                self._problem = None
                results.append(self._on_recovery)
        return results

    def _empty_log(self) -> None:
        """Gives the room of the log back to the disk. What failed transactions have left there may be what fills it."""
        with suppress(sqlite3.DatabaseError):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _run(self, job: _Job) -> Callable[[], object]:
        """Runs a job in a savepoint of its own: if the job fails, the transaction goes on without its writes."""
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
        except Exception:  # the thread must go on, because others wait for it
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
            logger.error("%s; until then nothing is written there, and generating goes on", self._problem)
        if len(self._owed) > MAX_OWED:
            logger.error("%d changes are lost that the history %s should have", len(self._owed), self._path)
            self._owed = []
            self._on_loss()
        return problem

    def _sync(self) -> None:
        """Makes the disk keep what was written, and moves it from the log to the file."""
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
    """Whether the entry isn't cancelled. From now on it can't be cancelled."""
    return isinstance(entry, _Record) or entry.future.set_running_or_notify_cancel()


def _is_urgent(entry: _Job | _Record) -> bool:
    """Whether somebody waits for what this entry finds out."""
    return isinstance(entry, _Job) or entry.is_awaited


def _is_of_the_file(error: Exception) -> bool:
    """Whether the file or the disk caused this error, and not a fault in the function that wrote."""
    return isinstance(error, sqlite3.OperationalError | MemoryError) or type(error) is sqlite3.DatabaseError
