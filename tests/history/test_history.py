"""The file: what is written there is there, whatever happens to the disk, the file or the process."""

import dataclasses
import os
import resource
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from waiting import until

from srb.engine.events import DoneEvent, Event, StartEvent, StopEvent, StreamEvent, Timings, Usage
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import HistoryError, InvalidRequestError, SettingsError
from srb.history import database, stories, writer
from srb.history import queries as find
from srb.history.database import UnusableError, prepare
from srb.history.history import History
from srb.history.queries import Unfinished, read_events, unfinished
from srb.history.recorder import Submitted
from srb.history.stories import NewNode
from srb.history.writer import Change


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
def history(path: Path) -> Iterator[History]:
    with History(path) as history:
        history.write(lambda _db: None).result(10)  # after its first look at the file
        yield history


@pytest.fixture
def retrying(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[History]:
    """A history that tries again at once."""
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.001)
    with History(path) as history:
        history.write(lambda _db: None).result(10)
        yield history


def titles(history: History) -> list[str]:
    return [story.title for story in history.read(stories.list_stories, None)]


def test_nobody_else_may_read_the_file(path: Path, history: History) -> None:
    assert path.stat().st_mode & 0o777 == 0o600


def test_another_server_cant_have_the_same_file(path: Path, history: History) -> None:
    with pytest.raises(SettingsError, match="in use by another server"):
        History(path)


@pytest.mark.parametrize(("name", "message"), [("", "is a folder"), ("missing/history.db", "there is no folder")])
def test_a_wrong_path_is_said(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        History(tmp_path / name)


def of_a_newer_version(path: Path) -> None:
    History(path).close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA user_version = 99")


def of_another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE recipes(text)")


def no_database(path: Path) -> None:
    path.write_bytes(b"GGUF" * 1_000)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (of_a_newer_version, r"newer srb \(its version is 99, .* update srb, or name another file"),
        (of_another_program, "belongs to another program"),
        (no_database, "is damaged: move it away"),
    ],
)
def test_a_file_that_srb_cant_use_is_left_alone(path: Path, make: Callable[[Path], None], message: str) -> None:
    make(path)
    before = path.read_bytes()
    with pytest.raises(HistoryError, match=message):
        History(path)
    assert path.read_bytes() == before


def test_old_texts_without_spaces_are_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(database, "MIGRATIONS", database.MIGRATIONS[:5])
        prepare(path)
    texts = ("老船长说", "the old captain", b"\xff\xe8\x88\xb9\xe9\x95\xbf")
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO stories VALUES (1, 'story', NULL, 'title', 0, 0, 0, NULL)")
        for number, text in enumerate(texts):
            db.execute("INSERT INTO texts VALUES (?, CAST(? AS TEXT), NULL)", (number, text))
            row = (1, number, None, "person", *[None] * 4, None, number, *[None] * 5, 0, 0, None, None)
            db.execute(f"INSERT INTO nodes VALUES ({', '.join('?' * len(row))})", row)
    with History(path) as history:
        found = [each.snippet for each in history.read(find.search, None, "船长")]
        assert found == ["\ufffd船长", "老船长说"]
        assert [each.snippet for each in history.read(find.search, None, "capt*")] == ["the old captain"]
        history.write(lambda db: db.execute("DELETE FROM stories")).result()
        history.write(lambda db: database.remove_orphans(db, range(3))).result()
        for index in ("search", "search_spaced"):
            check = f"INSERT INTO {index}({index}) VALUES ('integrity-check')"
            history.write(sqlite3.Connection.execute, check).result()
        assert history.read(find.search, None, "船长") == []


def test_a_migration_that_fails_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    History(path).close()
    bad = "ALTER TABLE stories ADD COLUMN mood TEXT; INSERT INTO nothing VALUES (1);"
    with monkeypatch.context() as patched:
        patched.setattr(database, "MIGRATIONS", (*database.MIGRATIONS, bad))
        with pytest.raises(HistoryError):
            History(path)
    with History(path) as history:
        assert titles(history) == []


def test_a_read_only_file_is_said(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really_open = os.open

    def refuse(name: object, *options: int) -> int:  # as for any user but root, who runs the tests in some places
        if name == path:
            raise PermissionError(13, "Permission denied")
        return really_open(str(name), *options)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(HistoryError, match="can't be written: Permission denied; make it writable for this user"):
        History(path)
    monkeypatch.undo()
    History(path).close()  # and the lock is free again


def limit_size(db: sqlite3.Connection, more: int) -> None:
    """Limits the further pages of the file, like a disk that is nearly full."""
    (size,) = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA max_page_count = {size + more}")


def test_a_full_disk_is_said_until_there_is_room(history: History, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    history.write(limit_size, 2).result()
    with pytest.raises(HistoryError, match=r"disk is full; make room on its disk"):
        history.write(stories.make_story, None, "x" * 100_000).result()
    assert "disk is full" in str(history.writer.problem)
    history.write(stories.make_story, None, "small").result()
    assert history.writer.problem is None
    assert titles(history) == ["small"]
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


@contextmanager
def full_disk() -> Iterator[None]:
    """Files can't grow beyond 16 KiB in this block: less than SQLite needs for the file -shm, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_is_full_at_the_start_is_said(path: Path) -> None:
    with History(path) as history:
        history.write(stories.make_story, None, "A tale").result()
    with full_disk(), pytest.raises(HistoryError, match="the disk is full; make room on its disk") as raised:
        History(path)
    assert not isinstance(raised.value, UnusableError)
    with History(path) as history:
        assert titles(history) == ["A tale"]


def test_what_the_engine_did_is_written_as_soon_as_it_can_be(history: History) -> None:
    is_full = True

    def change(db: sqlite3.Connection) -> None:
        stories.make_story(db, None, "from the engine")
        if is_full:
            raise sqlite3.OperationalError("database or disk is full")

    told = threading.Event()
    history.writer.record(lambda: [change], told.set)
    assert told.wait(10)  # its caller continues
    assert history.writer.problem
    assert titles(history) == []
    with pytest.raises(HistoryError):  # it doesn't say that missing data is there
        history.write(stories.make_story, None, "from a person").result()
    is_full = False
    history.write(stories.make_story, None, "from a person, again").result()
    assert titles(history) == ["from a person, again", "from the engine"]
    assert history.writer.problem is None


class FullDisk:
    """A change that the disk has no room for while `is_full`. tries: how often it was tried."""

    def __init__(self) -> None:
        self.is_full = True
        self.tries = 0

    def __call__(self, db: sqlite3.Connection) -> None:
        self.tries += 1
        stories.make_story(db, None, "from the engine")
        if self.is_full:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error


def record(history: History, *changes: Change) -> None:
    """Records changes like a step of the engine. Waits until its caller continues."""
    told = threading.Event()
    history.writer.record(lambda: changes, told.set)
    assert told.wait(10)


async def test_pending_changes_are_written_when_the_disk_has_room(
    retrying: History, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    record(retrying, change := FullDisk())
    assert (retrying.writer.n_pending, titles(retrying)) == (1, [])
    assert "the disk is full" in str(retrying.writer.problem)
    change.is_full = False
    await until(lambda: retrying.writer.problem is None)
    assert (retrying.writer.n_pending, titles(retrying)) == (0, ["from the engine"])
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


async def test_a_write_that_was_refused_leaves_no_problem_when_there_is_room(retrying: History) -> None:
    with pytest.raises(HistoryError, match="the disk is full"):
        retrying.write(FullDisk()).result()
    await until(lambda: retrying.writer.problem is None)
    assert titles(retrying) == []


def test_the_engine_doesnt_wait_for_a_full_disk_at_each_step(history: History) -> None:
    record(history, change := FullDisk())
    for _ in range(100):
        record(history, lambda _db: None)
    assert change.tries < 10
    assert history.writer.n_pending == 101
    change.is_full = False


def request_with(*words: str) -> tuple[Submitted, list[list[Event]]]:
    """A request, and the events of each of its steps, but for its end."""
    request = CompletionRequest(((1, 2),), (SamplingParams(seed=1),), id="cmpl-1")
    submitted = Submitted(request, None, True, 1, "/v1/completions", "fake", b"{}", "Once")
    steps: list[list[Event]] = [[StartEvent("cmpl-1", 1, 2, 0, 9, (1,), (None,))]]
    return submitted, steps + [[StreamEvent("cmpl-1", 0, word, (), None, (7,))] for word in words]


def end(length: int) -> list[Event]:
    usage, timings = Usage(2, length, 0), Timings(0.0, 2, 1.0, length, 1.0)
    return [StopEvent("cmpl-1", 0, length, "length", None), DoneEvent("cmpl-1", 1, usage, timings)]


async def test_a_change_that_is_tried_again_is_made_once(retrying: History) -> None:
    """A request begins and ends in each transaction that fails."""
    retrying.begin(request_with()[0])
    retrying.take(end(0))
    record(retrying, change := FullDisk())
    await until(lambda: change.tries > 5)
    change.is_full = False
    await until(lambda: retrying.writer.problem is None)
    assert retrying.read(lambda db: db.execute("SELECT number, status FROM requests").fetchone()[:]) == (1, "finished")


def test_events_are_dropped_some_time_after_the_end_of_their_request(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(name: str) -> list[Event]:
        submitted, (start, one) = request_with("one")
        renamed = dataclasses.replace(submitted.request, id=name)
        file.begin(dataclasses.replace(submitted, request=renamed))
        return [dataclasses.replace(event, request_id=name) for event in (*start, *one, *end(1))]

    def found(name: str) -> object:
        file.write(lambda _db: None).result()
        return file.read(read_events, None, name)

    now = time.time()
    with History(path, keep_seconds=900) as file:
        running = begin("running")[:2]
        file.take(running)
        for minutes, name in ((0, "first"), (10, "second"), (20, "third")):
            monkeypatch.setattr(time, "time", lambda at=now + 60 * minutes: at)
            file.take(begin(name))
            found(name)  # waits until it is written
        assert [isinstance(found(name), Unfinished) for name in ("first", "second", "third")] == [False, True, True]
        assert found("first") == "finished"
        (left,) = file.read(unfinished)
        assert left.events == running


@pytest.mark.parametrize("ends", [False, True])
async def test_a_request_that_lost_steps_is_never_read_with_a_gap(
    path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    monkeypatch.setattr(writer, "RETRY_SECONDS", 0.001)
    monkeypatch.setattr(writer, "MAX_PENDING", 2)
    with History(path) as history:
        submitted, (start, one, *others) = request_with("one", " two", " three")
        history.begin(submitted)
        for step in (start, one):
            history.take(step)
        history.write(lambda _db: None).result()
        record(history, change := FullDisk())
        history.take(others[0])
        await until(lambda: history.writer.n_pending == 2)
        record(history, lambda _db: None)
        await until(lambda: history.writer.problem is None)
        change.is_full = False
        history.take(others[1])
        if ends:
            history.take(end(3))
        history.write(lambda _db: None).result()
        if ends:
            assert history.read(read_events, None, "cmpl-1") == "finished"
            (choice,) = history.read(find.get_request, None, "cmpl-1").alternatives
            assert choice.text == "one two three"
        else:  # after a crash it goes on where the gap begins
            (left,) = history.read(unfinished)
            assert left.events == start + one


def test_a_failed_job_leaves_no_trace_and_does_not_affect_others(history: History) -> None:
    blocked, free = threading.Event(), threading.Event()

    def block(_db: sqlite3.Connection) -> None:
        blocked.set()
        free.wait(10)

    history.writer.record(lambda: [block], lambda: None)  # so that all wait together
    assert blocked.wait(10)
    loop = [NewNode("a", id=1, parent=2), NewNode("b", id=2, parent=1)]
    good = history.write(stories.make_story, None, "good")
    bad = history.write(stories.make_story, None, "bad", loop)
    given_up = history.write(stories.make_story, None, "given up")
    given_up.cancel()
    also_good = history.write(stories.make_story, None, "also good")
    free.set()
    with pytest.raises(InvalidRequestError, match="are their own ancestors"):
        bad.result()
    assert good.result().title, also_good.result().title
    assert titles(history) == ["also good", "good"]


def root_page(db: sqlite3.Connection, table: str) -> int:
    return int(db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).fetchone()[0])


def test_a_damaged_file_is_said(path: Path) -> None:
    with History(path) as history:
        for _ in range(20):
            history.write(stories.make_story, None, "x" * 4_000).result()
        page = history.read(root_page, "stories")
    data = bytearray(path.read_bytes())
    data[4_096 * (page - 1) : 4_096 * page] = bytes(4_096)
    path.write_bytes(data)
    with History(path) as history:
        with pytest.raises(HistoryError, match="is damaged: move it away"):
            history.read(stories.list_stories, None)
        with pytest.raises(HistoryError):
            history.write(stories.make_story, None, "y").result()


def test_nobody_waits_for_a_history_that_is_closed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An engine that still runs then would wait for ever for its last events, and its server with it."""
    with History(path) as history:
        pass
    told = threading.Event()
    history.take([], told.set)
    assert told.is_set()
    assert "further events are lost" in caplog.text
    with pytest.raises(HistoryError, match="is closed"):
        history.write(stories.make_story, None, "A tale").result()
