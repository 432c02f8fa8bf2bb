"""The one thread that writes the file: all that waits goes into one transaction.

After a transaction its text is with the operating system: a killed process loses none of it. A second thread has the
disk keep it, once a second, so that is what a power failure may cost.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from srb.errors import HistoryError
from srb.history.database import connect, explain

logger = logging.getLogger("srb")

Change = Callable[[sqlite3.Connection], object]
"""Something to write. It can be done again where the first time was in vain: what it needs, it has with it."""

Result = TypeVar("Result")

MAX_OWED = 200_000
"""How many changes may wait for a disk that takes none; those of 32 alternatives come to that in an hour or two."""

_SYNC_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Job:
    """Somebody waits for what it returns. If it fails, it has failed."""

    function: Callable[[sqlite3.Connection], Any]
    future: "Future[Any]"


@dataclass(frozen=True, slots=True)
class _Record:
    """What the engine has done: it goes on anyway, so what can't be written now is written later."""

    changes: Callable[[], Iterable[Change]]
    done: Callable[[], object]


class Writer:
    """Writes until it is closed. `submit` and `record` may be called from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._queue: SimpleQueue[_Job | _Record | None] = SimpleQueue()
        self._owed: list[Change] = []
        self._problem: HistoryError | None = None
        self._dirty = threading.Event()
        self._closing = threading.Event()
        self._db = connect(path)
        self._db.execute("PRAGMA wal_autocheckpoint = 0")  # no transaction waits for the disk: see _sync
        self._thread = threading.Thread(target=self._main, name="srb-history", daemon=True)
        self._syncer = threading.Thread(target=self._sync, name="srb-history-sync", daemon=True)
        self._thread.start()
        self._syncer.start()

    @property
    def problem(self) -> HistoryError | None:
        """Why the last transaction has failed, if it has."""
        return self._problem

    def submit(self, function: Callable[[sqlite3.Connection], Result]) -> "Future[Result]":
        """Has a function write. The future has what it returns or raises, when that is in the file."""
        future: Future[Result] = Future()
        self._queue.put(_Job(function, future))
        return future

    def record(self, changes: Callable[[], Iterable[Change]], done: Callable[[], object]) -> None:
        """Has changes written, and calls `done` then, or when it's known that they can't be written now.

        Both are called in the writer's thread, in the order in which they came.
        """
        self._queue.put(_Record(changes, done))

    def close(self) -> None:
        """Writes what waits, and ends."""
        self._queue.put(None)
        self._thread.join()
        self._closing.set()
        self._dirty.set()
        self._syncer.join()
        self._db.close()
        if self._owed:
            logger.error("the end of the history is lost: %s", self._problem)

    def _main(self) -> None:
        is_open = True
        while is_open:
            entries = [self._queue.get()]
            while entries[-1] is not None:
                try:
                    entries.append(self._queue.get_nowait())
                except Empty:
                    break
            is_open = entries[-1] is not None
            self._write([entry for entry in entries if entry is not None and _is_wanted(entry)])

    def _write(self, entries: list[_Job | _Record]) -> None:
        """One transaction, and then what follows from it."""
        for entry in entries:
            if isinstance(entry, _Record):
                self._owed += self._changes(entry)
        results: list[Callable[[], object]]
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for change in self._owed:
                self._make(change)
            results = [entry.done if isinstance(entry, _Record) else self._run(entry) for entry in entries]
            self._db.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            problem = self._fail(error)
            results = [
                entry.done if isinstance(entry, _Record) else partial(entry.future.set_exception, problem)
                for entry in entries
            ]
        else:
            self._owed = []
            self._dirty.set()
            if self._problem:
                self._problem = None
                self._db.execute("PRAGMA busy_timeout = 5000")
                logger.info("the history %s is written again", self._path)
        for tell in results:
            tell()

    def _run(self, job: _Job) -> Callable[[], object]:
        """Runs a job by itself: if it fails, it leaves nothing in the transaction that it's part of."""
        self._db.execute("SAVEPOINT job")
        try:
            result = job.function(self._db)
        except Exception as error:
            if _is_of_the_file(error):
                raise
            self._db.execute("ROLLBACK TO job")
            self._db.execute("RELEASE job")
            return partial(job.future.set_exception, error)
        self._db.execute("RELEASE job")
        return partial(job.future.set_result, result)

    def _changes(self, record: _Record) -> Iterable[Change]:
        try:
            return record.changes()
        except Exception:  # nobody who waits may be left waiting
            logger.exception("a fault in srb: the history %s lacks some changes", self._path)
            return ()

    def _make(self, change: Change) -> None:
        try:
            change(self._db)
        except Exception as error:
            if _is_of_the_file(error):
                raise
            logger.exception("a fault in srb: the history %s lacks a change", self._path)

    def _fail(self, error: sqlite3.DatabaseError) -> HistoryError:
        problem = explain(self._path, error)
        if self._problem is None:
            self._problem = problem
            self._db.execute("PRAGMA busy_timeout = 0")  # nobody waits for it a second time
            logger.error("%s; until then nothing is written there, and generating goes on", self._problem)
        if len(self._owed) > MAX_OWED:
            logger.error("%d changes are lost that the history %s should have", len(self._owed), self._path)
            self._owed = []
        return problem

    def _sync(self) -> None:
        """Has the disk keep what was written, and moves it from the log to the file."""
        db = connect(self._path)
        try:
            while not self._closing.is_set():
                self._dirty.wait()
                self._dirty.clear()
                try:
                    db.execute("PRAGMA wal_checkpoint(PASSIVE)")  # it keeps nobody from writing
                except sqlite3.Error as error:
                    logger.debug("no checkpoint of the history: %s", error)
                self._closing.wait(_SYNC_SECONDS)
        finally:
            db.close()


def _is_wanted(entry: _Job | _Record) -> bool:
    """Whether it isn't cancelled; from now on it can't be."""
    return isinstance(entry, _Record) or entry.future.set_running_or_notify_cancel()


def _is_of_the_file(error: Exception) -> bool:
    """Whether it's the file's or the disk's fault, and not a fault of what was to be written."""
    return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError
