"""What was evaluated, in files: found again after a restart, whatever has happened to the files."""

import dataclasses
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from driver import request, run, texts, tokens_of
from fake_backend import FakeBackend

from srb.engine.backend import State
from srb.engine.engine import Engine
from srb.engine.events import Event
from srb.engine.kv_cache.radix import pack
from srb.engine.kv_cache.state_store import Record, read_state, write_state
from srb.engine.request import CompletionRequest
from srb.errors import SettingsError
from srb.files import disk_cache
from srb.files.disk_cache import DiskCache

MIB = 1 << 20
TOKENS = pack(tuple(range(10)))


def store(folder: Path, size: int = MIB, identity: str = "fake") -> DiskCache:
    return DiskCache(folder, identity, size)


def one(cache: DiskCache, parent: str | None = None, start: int = 0, state: bytes = b"state") -> str:
    name = cache.put("f", parent, start, TOKENS, "", bytearray(state), b"logits")
    assert name is not None
    return name


def read(cache: DiskCache, name: str) -> tuple[bytes, bytes | None] | None:
    stored = cache.get(name)
    return stored and (bytes(stored[0]), stored[1])


def life(
    folder: Path, *requests: CompletionRequest, window: int | None = None, cache_bytes: int = 0
) -> tuple[int, object]:
    """A process from start to end: the prompt tokens that were evaluated, and what was said."""
    cache = store(folder)
    engine = Engine(FakeBackend(window=window, n_cells=1000), store=cache, cache_bytes=cache_bytes)
    said = [texts(run(engine, each)) for each in requests]
    engine.close()
    return engine.stats().prompt_tokens_evaluated, said


def test_a_piece_is_the_same_before_it_is_written_and_in_the_next_process(tmp_path: Path) -> None:
    cache = store(tmp_path)
    name = one(cache)
    assert read(cache, name) == (b"state", b"logits")
    child = one(cache, name, 10)
    cache.close()
    assert read(cache, name) == (b"state", b"logits")
    again = store(tmp_path)
    first, second = again.find("f")
    assert (first.name, first.parent, first.start, first.tokens, first.has_logits) == (name, None, 0, TOKENS, True)
    assert (second.name, second.parent, second.start) == (child, name, 10)
    assert read(again, child) == (b"state", b"logits")
    again.close()


@pytest.mark.parametrize("cache_bytes", [0, 100_000], ids=["no-memory", "memory"])
@pytest.mark.parametrize("window", [None, 0, 8])
def test_after_a_restart_nothing_is_evaluated_again(tmp_path: Path, window: int | None, cache_bytes: int) -> None:
    each = request("x" * 60, n=3, max_tokens=20, ignore_eos=True)
    evaluated, said = life(tmp_path, each, window=window, cache_bytes=cache_bytes)
    assert evaluated == 60
    again = dataclasses.replace(each, id="again")
    assert life(tmp_path, again, window=window, cache_bytes=cache_bytes) == (0, said)
    answer = "x" * 60 + said[0][0][:19] + "more"  # type: ignore[index]
    if len(answer.encode()) == 83:  # no byte of it was replaced
        assert life(tmp_path, request(answer, max_tokens=1), window=window)[0] == 4


def test_the_keys_of_another_model_are_not_found(tmp_path: Path) -> None:
    cache = store(tmp_path)
    one(cache)
    cache.close()
    other = store(tmp_path, identity="another")
    assert list(other.find("f")) == []
    other.close()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def header(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[16:20] = b"\xff\xff\xff\x7f"  # the bytes of its key
    path.write_bytes(content)


def foreign(path: Path) -> None:
    path.write_bytes(b"GGUF" * 1000)


def unreadable(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "harm", [cut, empty, flip, header, foreign, unreadable, os.unlink], ids=lambda harm: harm.__name__
)
@pytest.mark.parametrize("window", [None, 0, 8])
def test_what_is_damaged_is_evaluated_again(
    tmp_path: Path, harm: Callable[[Path], None], window: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    each = request("x" * 60, max_tokens=20, ignore_eos=True)
    said = life(tmp_path, each, window=window)[1]
    paths = list(tmp_path.rglob("*.state"))
    assert len(paths) >= 2
    for path in paths:
        harm(path)
    assert life(tmp_path, dataclasses.replace(each, id="again"), window=window) == (60, said)
    assert len(caplog.messages) <= len(paths)
    assert harm is os.unlink or caplog.messages


@pytest.mark.parametrize("harm", [cut, flip, os.unlink], ids=lambda harm: harm.__name__)
def test_what_is_damaged_while_the_engine_runs_is_evaluated_again(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    each = request("x" * 60, max_tokens=20, ignore_eos=True)
    said = life(tmp_path, each)[1]
    engine = Engine(FakeBackend(), store=store(tmp_path))
    for path in tmp_path.rglob("*.state"):
        harm(path)
    assert [texts(run(engine, dataclasses.replace(each, id="again")))] == said
    assert engine.stats().prompt_tokens_evaluated == 60
    engine.close()
    assert life(tmp_path, dataclasses.replace(each, id="third")) == (0, said)  # and stored again


def test_a_prompt_whose_logits_are_lost_is_evaluated_again_as_far_as_it_must_be(tmp_path: Path) -> None:
    """Its own piece has nothing but the logits, as it ends in the middle of another."""
    short = request("x" * 40, max_tokens=5, ignore_eos=True)
    said = life(tmp_path, request("x" * 60, max_tokens=1), short)[1]
    cache = store(tmp_path)
    (family,) = cache._unread
    (name,) = (record.name for record in cache.find(family) if not record.tokens)
    cache.close()
    cache = store(tmp_path)
    engine = Engine(FakeBackend(), store=cache)
    next(tmp_path.rglob(f"*{name}.state")).unlink()
    assert texts(run(engine, dataclasses.replace(short, id="again"))) == said[1]  # type: ignore[index]
    assert engine.stats().prompt_tokens_evaluated == 1
    engine.close()


def test_an_orphan_is_of_no_use_and_removed(tmp_path: Path) -> None:
    cache = store(tmp_path)
    parent = one(cache)
    child = one(cache, parent, 10)
    one(cache, child, 20)
    cache.close()
    next(tmp_path.rglob(f"*{parent}.state")).unlink()
    again = store(tmp_path)
    assert list(again.find("f")) == []
    again.close()
    assert list(tmp_path.rglob("*.state")) == []


def test_the_least_recently_used_are_removed_when_it_is_full(tmp_path: Path) -> None:
    cache = store(tmp_path, 10_000)
    names = [cache.put("f", None, 0, pack((number,)), "", bytearray(2000), None) for number in range(4)]
    cache.touch([names[0] or ""])
    names.append(cache.put("f", None, 0, pack((4,)), "", bytearray(2000), None))
    cache.close()
    assert {path.stem[2:] for path in tmp_path.rglob("*.state")} == {names[0], *names[2:]}
    assert cache.stats().disk_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.state")) <= 10_000
    assert cache.put("f", None, 0, TOKENS, "", bytearray(20_000), None) is None
    assert names[1] not in cache


def test_what_another_server_removes_at_the_same_time_makes_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = store(tmp_path, 10_000)
    unlink = disk_cache._unlink
    monkeypatch.setattr(disk_cache, "_unlink", lambda path: (path.unlink(), unlink(path))[1])
    for number in range(5):
        cache.put("f", None, 0, pack((number,)), "", bytearray(2000), None)
    cache.close()
    assert len(list(tmp_path.rglob("*.state"))) == 4
    assert cache.stats().disk_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.state"))


def test_parents_stay_longer_than_their_children(tmp_path: Path) -> None:
    cache = store(tmp_path)
    parent = one(cache)
    child = one(cache, parent, 10)
    cache.touch([child, parent])
    cache.close()
    times = {path.stem[2:]: path.stat().st_mtime_ns for path in tmp_path.rglob("*.state")}
    assert times[parent] > times[child]


def test_two_servers_share_a_folder(tmp_path: Path) -> None:
    one_server, other = store(tmp_path), store(tmp_path)
    name = one(one_server)
    assert one(other) == name
    one_server.close()
    other.close()
    assert len(list(tmp_path.rglob("*.state"))) == 1
    next(tmp_path.rglob("*.state")).unlink()  # as the one may do when it is full
    assert other.get(name) is None
    assert name not in other


def test_prompts_that_begin_with_what_another_server_has_removed_are_evaluated(tmp_path: Path) -> None:
    prefix = "x" * 60
    texts_kept = [prefix + each * 40 for each in "bc"]
    life(tmp_path, *(request(each, max_tokens=1) for each in (prefix, *texts_kept)))
    cache = store(tmp_path)
    engine = Engine(FakeBackend(n_cells=1000), store=cache)
    cache.check([path.name.partition("-")[0] for path in tmp_path.rglob("*.state")], pack(()))  # reads what is there
    for path in tmp_path.rglob("*.state"):
        path.unlink()
    run(engine, request([each + "more" for each in texts_kept], max_tokens=1))
    assert engine.stats().prompt_tokens_evaluated == 104 + 44
    engine.close()


def test_what_a_killed_process_has_left_unfinished_is_removed_after_a_while(tmp_path: Path) -> None:
    store(tmp_path).close()
    folder = next(tmp_path.iterdir())
    (old := folder / "tmpold").write_bytes(b"half")
    (new := folder / "tmpnew").write_bytes(b"half")
    os.utime(old, (0, 0))
    store(tmp_path).close()
    assert new.exists()
    assert not old.exists()


def test_a_folder_that_can_not_be_made_is_said_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SettingsError, match=r"--cache-disk .* can't be used: Not a directory"):
        store(tmp_path / "file" / "folder")


def test_when_it_can_not_be_written_the_engine_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = store(tmp_path)
    folder = next(tmp_path.iterdir())
    folder.rmdir()
    engine = Engine(FakeBackend(), store=cache)
    each = request("x" * 60, n=2, max_tokens=20, ignore_eos=True)
    run(engine, each)
    engine.close()
    assert engine.stats().disk_faults > 0
    assert len([message for message in caplog.messages if "generating goes on" in message]) == 1


def test_running_alternatives_are_saved_now_and_then(tmp_path: Path) -> None:
    """The process is killed in the middle of 16 alternatives; the next one evaluates little of what they had."""
    cache = store(tmp_path)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1e-4
        return now

    engine = Engine(FakeBackend(n_cells=3000, n_parallel=16), store=cache, cache_bytes=MIB, clock=clock)
    each = request("p" * 50, n=16, max_tokens=100, ignore_eos=True)
    engine.add_request(each)
    events: list[Event] = []
    while engine.stats().tokens_generated < 16 * 90:
        now += 0.05
        events += engine.step()
    cache.close()  # what the operating system has is there after a kill, too
    engine = Engine(FakeBackend(n_cells=3000, n_parallel=16), store=(again := store(tmp_path)), cache_bytes=MIB)
    prompts = tuple((*b"p" * 50, *tokens_of(events, index)) for index in range(16))
    run(engine, dataclasses.replace(each, id="again", prompts=prompts, branches=each.branches[:1]))
    again.close()
    assert engine.stats().prompt_tokens_evaluated <= 16 * 32


def test_one_that_comes_again_while_it_waits_is_written_with_its_logits(tmp_path: Path) -> None:
    cache = store(tmp_path)
    for _ in range(50):
        cache.put("f", None, 0, TOKENS, "", bytearray(b"state"), None)
    name = one(cache)
    other = cache.put("f", None, 1, TOKENS, "", bytearray(b"other"), None)
    cache.close()
    assert other
    assert read(cache, other) == (b"other", None)
    assert read(cache, name) == (b"state", b"logits")


def test_a_removed_piece_is_gone_whether_it_was_written_or_not(tmp_path: Path) -> None:
    cache = store(tmp_path)
    for number in range(50):
        name = one(cache, start=number)
        if number % 2:
            while not list(tmp_path.rglob(f"*{name}.state")):
                time.sleep(0.001)
        cache.remove(name)
        assert name not in cache
        assert read(cache, name) is None
    cache.close()
    assert not list(tmp_path.rglob("*.state"))
    assert cache.stats().disk_bytes == 0


def test_a_piece_that_is_removed_the_moment_it_is_written_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = store(tmp_path)

    def write(path: Path, record: Record, *content: Any) -> int:
        size = write_state(path, record, *content)
        cache.remove(record.name)
        return size

    monkeypatch.setattr(disk_cache, "write_state", write)
    one(cache)
    cache.close()
    assert not list(tmp_path.rglob("*.state"))
    assert (cache.stats().disk_bytes, cache.stats().disk_faults) == (0, 0)


def test_what_a_prompt_begins_with_is_compared_with_its_hashes_before_the_engine_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = request("x" * 60, n=2, max_tokens=20, ignore_eos=True)
    life(tmp_path, each, request("x" * 40 + "y" * 40, max_tokens=1))
    cache = store(tmp_path)
    engine = Engine(FakeBackend(n_cells=1000), store=cache)
    compared: list[int] = []

    def note(content: memoryview, *, verify: bool) -> tuple[State, bytes | None]:
        if verify:
            compared.append(len(content))
        return read_state(content, verify=verify)

    monkeypatch.setattr(disk_cache, "read_state", note)
    engine.add_request(dataclasses.replace(each, id="again"))
    before = len(compared)
    assert before in (1, 2)  # the prompt, and an answer or the other prompt where it shares some of it
    run(engine)
    assert len(compared) == before
    assert cache.stats().disk_reads > 0
    engine.close()
