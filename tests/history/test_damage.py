"""Damaged files: each byte may be wrong, and the server says so. What it can't read never comes into the log."""

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from driver import seeds

from srb.engine.events import DoneEvent, StartEvent, StopEvent, StreamEvent, Timings, Usage
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import HistoryError, SrbError
from srb.history import queries as find
from srb.history import stories
from srb.history.history import (
    History,
    remove_request,
    request_as_markdown,
    request_json,
    story_as_markdown,
    story_json,
)
from srb.history.queries import find_sent, read_events
from srb.history.recorder import Submitted, forget_events
from srb.history.stories import NewNode
from srb.wire.reply import encode

SECRET = "Nobody may read of the golden dragon in a log"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


def submitted(number: int, story: str | None = None) -> Submitted:
    branches = (SamplingParams(seed=1, label="wild"), SamplingParams(seed=2, top_k=3))
    request = CompletionRequest(((1, 2),), branches, id=f"cmpl-{number}")
    body = b'{"prompt": "Once", "n": 2}'
    node = None if story is None else 1
    return Submitted(request, None, True, 1, "/v1/completions", "fake", body, "Once", story, node)


def events(number: int, text: str) -> list[Any]:
    name = f"cmpl-{number}"
    said = [StreamEvent(name, index, text, (), None, (5, 6)) for index in range(2)]
    stops = [StopEvent(name, index, 2, "length", None) for index in range(2)]
    done = DoneEvent(name, 2, Usage(2, 4, 0), Timings(0.0, 0, 0.0, 4, 0.0))
    return [StartEvent(name, 2, 2, 0, 8, (1, 2), ("wild", None)), *said, *stops, done]


def write_history(path: Path) -> str:
    """A history with a story, finished requests and one that runs: the id of the story."""
    with History(path, keep_seconds=900) as history:
        nodes = [
            NewNode("Once upon a time", id=1),
            NewNode(SECRET, parent=1, id=2, notes="good", settings={"top_k": 1}),
        ]
        story = history.write(stories.make_story, None, "A tale", nodes, '{"memory": "The dragon sleeps."}').result()
        for number in range(4):
            history.begin(submitted(number, story.id if number % 2 else None)).result()
            made = events(number, f" there was {number}")
            history.take(made if number < 3 else made[:2])
        history.write(stories.remark, None, story.id, 2, {"kept": True}).result()
    return story.id


def spoil(path: Path, change: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(change, values)


def bad_text(text: str) -> bytes:
    return text.encode().replace(b"golden", b"g\xfflden")


def test_a_byte_that_is_no_utf8_is_replaced_and_its_place_is_logged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    story = write_history(path)
    spoil(path, "UPDATE texts SET text = CAST(? AS TEXT) WHERE text = ?", bad_text(SECRET), SECRET)
    replaced = SECRET.replace("golden", "g\ufffdlden")
    with History(path) as history:
        for _ in range(2):
            assert history.read(stories.read_nodes, None, story)[1][1].text == replaced
        assert replaced in history.read(story_as_markdown, None, story, 2)
        assert history.read(find.search, None, "Nobody")[0].snippet == replaced
        changed = history.write(stories.remark, None, story, 2, {"notes": "still good"}).result()
        assert (changed.text, changed.notes) == (replaced, "still good")
        assert history.writer.problem is None
    said = [record.getMessage() for record in caplog.records]
    assert len([each for each in said if "column words" in each and "story=1" in each and "id=2" in each]) == 1
    assert "dragon" not in caplog.text


def test_a_story_that_goes_in_a_circle_is_read(path: Path) -> None:
    story = write_history(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE nodes SET parent = 2 WHERE id = 1")
    with History(path) as history:
        assert history.read(stories.prompt_at, None, story, 2) == ["Once upon a time" + SECRET]
        assert "Once upon a time" in history.read(story_as_markdown, None, story, 2)


def test_a_damaged_schema_is_said(path: Path) -> None:
    write_history(path)
    data = path.read_bytes()
    for place in (data.index(b"CREATE TABLE requests"), data.index(b"requestsrequests"), data.index(b"texts_added")):
        for value in (0xFF, 0x80, ord("x")):
            replace(path, data, place, value)
            with pytest.raises(HistoryError, match="is damaged: move it away"):
                use(path, "story-1")


@pytest.mark.parametrize(("table", "column"), [("texts", "text"), ("stories", "title"), ("requests", "title")])
def test_a_text_of_a_wrong_type_is_reported(path: Path, table: str, column: str) -> None:
    story = write_history(path)
    spoil(path, f"UPDATE {table} SET {column} = CAST({column} AS BLOB)")
    with pytest.raises(HistoryError, match="is damaged: move it away"):
        use(path, story)


def replace(path: Path, data: bytes, place: int, value: int) -> None:
    """Makes the file be this data, with another byte at a place, and removes the files of another try."""
    for each in path.parent.glob(f"{path.name}-*"):
        each.unlink()
    path.write_bytes(data[:place] + bytes([value]) + data[place + 1 :])


def use(path: Path, story: str) -> None:
    """Opens a history, reads all of it, and writes to it."""
    with History(path, keep_seconds=900) as history:
        reading: list[Callable[[], Any]] = [
            lambda: use_stories(history),
            lambda: history.read(stories.prompt_at, None, story, 2),
            lambda: history.read(find.search, None, "dragon"),
            lambda: history.read(find.search, None, "there w*"),
            *(lambda number=number: use_request(history, f"cmpl-{number}") for number in range(4)),
            lambda: history.read(find.list_requests, None, story=story),
            *(lambda each=each: history.resume(each) for each in history.interrupted),
            lambda: history.write(stories.make_story, None, "Another", [NewNode("a dragon")]).result(),
            lambda: history.write(stories.add_node, None, story, 1, NewNode(" there was")).result(),
            lambda: history.write(stories.remark, None, story, 2, {"notes": "better", "ends_at": 3}).result(),
            lambda: history.begin(submitted(9, story)).result(),
            lambda: history.take(events(9, "a dragon")),
            lambda: history.write(forget_events, None, "cmpl-0").result(),
            lambda: history.write(remove_request, None, "cmpl-0").result(),
            lambda: history.write(stories.remove_story, None, story).result(),
        ]
        failed = None
        for each in reading:
            try:
                each()
            except SrbError as error:
                failed = failed or error
    if failed:
        raise failed


def use_stories(history: History) -> None:
    for each in history.read(stories.list_stories, None):
        use_story(history, each.id)


def use_story(history: History, story: str) -> None:
    encode(story_json(*history.read(stories.read_nodes, None, story)))
    history.read(story_as_markdown, None, story)


def use_request(history: History, request: str) -> None:
    history.read(read_events, None, request)
    history.read(find_sent, None, request)
    found = history.read(find.get_request, None, request)
    encode(request_json(found))
    request_as_markdown(found)


@pytest.mark.parametrize("seed", seeds(20, first=1))
def test_no_wrong_byte_is_a_fault_in_srb(path: Path, caplog: pytest.LogCaptureFixture, seed: int) -> None:
    story = write_history(path)
    data, rng = path.read_bytes(), random.Random(seed)
    used = [place for place, value in enumerate(data) if value]
    use(path, story)
    for place in rng.sample(used, 10):
        replace(path, data, place, data[place] ^ rng.randrange(1, 256))
        try:
            use(path, story)
        except SrbError:
            pass
        except Exception as error:
            raise AssertionError(f"the byte at {place}") from error
    assert "dragon" not in caplog.text
