"""Random faults of the machine, thrown into an engine that serves random requests; each run has a seed.

What may fail: each call of the backend and its samplers, with an exit code of llama.cpp, an `OSError`, a `MemoryError`
or a bug; a state for which llama.cpp finds no cells; a change of the layout, also for want of memory; the store on the
disk; the history's file; the start of a thread; the event loop's queue. Each stream must end, with the text of an
undisturbed run unless it ends with an error, nothing may be left over, and never may requests wait while nothing runs.
"""

import asyncio
import copy
import dataclasses
import errno
import random
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from driver import check_order, request
from fake_backend import END, FakeBackend, FakeSampler
from memory_store import MemoryStore
from mixed import ascii_babble
from waiting import until

from srb.engine.engine import Engine
from srb.engine.events import ErrorEvent, Event, StartEvent, StopEvent, StreamEvent
from srb.engine.kv_cache.allocator import Layout
from srb.engine.kv_cache.cells import Cells
from srb.engine.request import CompletionRequest
from srb.errors import BackendError, ModelLoadError, SrbError
from srb.history import writer
from srb.history.database import connect
from srb.history.history import History
from srb.history.recorder import Submitted
from srb.serving.async_engine import AsyncEngine
from srb.serving.request_registry import RequestRegistry

N_CLIENTS = 6


class BugError(Exception):
    """Stands for whatever nobody has thought of."""


class Faults:
    """Throws an error in one of `every` calls of what it breaks, in the mean, while `is_on`."""

    def __init__(self, seed: int, every: int) -> None:
        self._random = random.Random(seed)
        self._every = every
        self.is_on = False
        self.n_thrown = 0

    def happens(self) -> bool:
        happens = self.is_on and self._random.random() * self._every < 1
        self.n_thrown += happens
        return happens

    def may_throw(self, *errors: Exception) -> None:
        if self.happens():
            raise copy.copy(self._random.choice(errors))  # a raised error keeps the frames that it came through

    @contextmanager
    def before(self, owner: Any, name: str, *errors: Exception) -> Iterator[None]:
        """In this block, calls of owner.name may raise one of these errors in place of their work."""
        whole = getattr(owner, name)

        def broken(*args: Any, **kwargs: Any) -> Any:
            self.may_throw(*errors)
            return whole(*args, **kwargs)

        with mock.patch.object(owner, name, broken):
            yield


class FaultyDisk:
    """A connection to a history's file whose statements may find the disk full or broken."""

    def __init__(self, faults: Faults, db: sqlite3.Connection) -> None:
        self._faults, self._db = faults, db

    def execute(self, *args: Any) -> sqlite3.Cursor:
        if not args[0].startswith(("ROLLBACK", "PRAGMA busy_timeout")):  # which need no room
            self._faults.may_throw(_of_sqlite("SQLITE_FULL"), _of_sqlite("SQLITE_IOERR"), MemoryError())
        return self._db.execute(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)


def _of_sqlite(name: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(name)
    error.sqlite_errorcode, error.sqlite_errorname = getattr(sqlite3, name), name
    return error


class FaultyQueue(AsyncEngine):
    """An engine that can't always put something into the event loop's queue."""

    def __init__(self, faults: Faults, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._faults = faults

    def start(self) -> None:
        super().start()
        loop, faults = self._loop, self._faults

        class Loop:
            call_soon = loop.call_soon

            def call_soon_threadsafe(self, *args: Any) -> object:
                faults.may_throw(MemoryError())
                return loop.call_soon_threadsafe(*args)

            def time(self) -> float:
                return loop.time()

        self._loop = Loop()  # type: ignore[assignment]


class WatchedEngine(Engine):
    """Notes when requests wait while nothing runs."""

    n_idle = 0
    starves = False

    def step(self) -> list[Event]:
        n_decodes, events = self.stats().steps, super().step()
        WatchedEngine.n_idle = 0 if events or self.stats().steps > n_decodes or not self.has_work else self.n_idle + 1
        WatchedEngine.starves |= self.n_idle > 20
        return events


OS_ERRORS = tuple(OSError(number, errno.errorcode[number]) for number in (errno.EMFILE, errno.ENOSPC, errno.EIO))
OF_C = (BackendError("llama_decode failed with code -3"), BackendError("llama_sampler_init returned NULL"))
ANY = (*OS_ERRORS, *OF_C, MemoryError(), BugError())


async def run(seed: int, path: Path, *, n_requests: int, every: int) -> int:
    """Runs requests through an engine with a history, with faults. Returns how many faults there were."""
    faults, chance = Faults(seed, every), random.Random(seed)
    layouts, moves = (Layout(True, 400, 12), Layout(True, 800, 12), Layout(False, 64, 9)), random.Random(seed)
    backend = FakeBackend(n_cells=400, n_parallel=6, script=ascii_babble, window=moves.choice((None, None, 0, 8)))
    backend.chooser = lambda _backend, _loads: moves.choice(layouts)
    restore = backend.restore
    backend.restore = lambda *args: not faults.happens() and restore(*args)  # type: ignore[method-assign]
    backend.has_memory = lambda layout: not faults.is_on or moves.random() < 0.7
    pieces: dict[str, Any] = {}
    WatchedEngine.starves = False

    def make(made: Any) -> Engine:
        return WatchedEngine(made, cache_bytes=20_000, store=MemoryStore(pieces))

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(writer, "connect", lambda path: FaultyDisk(faults, connect(path))))
        history = stack.enter_context(History(path, keep_seconds=900))
        for owner, name in (
            (FakeSampler, "sample"),
            (backend, "decode"),
            (backend, "choose"),
            (backend, "prepare"),
            (Cells, "lay_out"),
            (backend, "fork"),
            (backend, "save"),
            (backend, "restore"),
            (MemoryStore, "put"),
            (MemoryStore, "get"),
            (Engine, "step"),
        ):
            stack.enter_context(faults.before(owner, name, *ANY))
        stack.enter_context(faults.before(RequestRegistry, "put", MemoryError(), BugError()))
        stack.enter_context(faults.before(asyncio, "to_thread", RuntimeError("can't start new thread")))
        stack.enter_context(faults.before(backend, "prepare", ModelLoadError("no memory for any context")))
        faults.is_on = True
        options = {"make": make, "record": history.take, "max_failures": 1_000_000}
        async with FaultyQueue(faults, lambda _progress: backend, **options) as engine:
            async with asyncio.timeout(60):
                clients = [_client(engine, history, chance, n_requests) for _ in range(N_CLIENTS)]
                told = {each.id: (each, events) for client in await asyncio.gather(*clients) for each, events in client}
            faults.is_on = False
            async with asyncio.timeout(10):
                check(*await _ask(engine, history, request(n=4, max_tokens=20)))
            assert engine.health.running == engine.health.waiting == 0
            await until(lambda: engine.health.stats is not None and engine.health.stats.cells == 0)
        assert (backend.cells, backend.open_samplers, backend.open_compiled) == (0, 0, 0)
        history.write(lambda _db: None).result(10)
    for each, events in told.values():
        check(each, events)
    assert not WatchedEngine.starves, "requests wait while nothing runs"
    with sqlite3.connect(path) as db:
        kept = dict(db.execute("SELECT id, status FROM requests").fetchall())
    assert {name: kept.get(name) for name in told} == dict.fromkeys(told, "finished")
    return faults.n_thrown


async def _client(
    engine: AsyncEngine, history: History, chance: random.Random, n_requests: int
) -> list[tuple[CompletionRequest, list[Event]]]:
    told = []
    for _ in range(n_requests):
        each = request(
            chance.choice("pqr") * chance.randint(1, 40),
            n=chance.randint(1, 4),
            seed=chance.randrange(1000),
            max_tokens=chance.randint(1, 20),
        )
        each = dataclasses.replace(each, ahead=chance.choice((0, 0, 2)), priority=chance.randint(0, 2))
        try:
            told.append(await _ask(engine, history, each, aborts=chance.random() < 0.15))
        except (SrbError, MemoryError, RuntimeError, OSError, BugError):
            history.forget(each.id)  # it was refused, and its client knows that
    return told


async def _ask(
    engine: AsyncEngine, history: History, each: CompletionRequest, *, aborts: bool = False
) -> tuple[CompletionRequest, list[Event]]:
    await asyncio.wrap_future(history.begin(Submitted(each, None, False, 0, "/", "fake", b"", "")))
    events: list[Event] = []
    async with await engine.submit(each) as stream:
        async for batch in stream:
            events += batch
            if aborts and len(events) > 3:
                engine.abort(each.id, None if len(events) % 2 else 0)
    return each, events


def check(each: CompletionRequest, events: list[Event]) -> None:
    """Checks what a client has seen of a request."""
    check_order(events, each, started=any(isinstance(event, StartEvent) for event in events))
    failed = {event.index for event in events if isinstance(event, ErrorEvent)}
    for stop in (event for event in events if isinstance(event, StopEvent)):
        said = "".join(event.text for event in events if isinstance(event, StreamEvent) and event.index == stop.index)
        alone = undisturbed(each, stop.index)
        if stop.finish_reason in ("error", "abort"):
            assert stop.finish_reason == "abort" or failed & {None, stop.index}
            assert alone.startswith(said)
        else:
            assert said == alone, (each.prompts, stop, said, alone, events)


def undisturbed(each: CompletionRequest, index: int) -> str:
    """The text of an alternative in a run without faults."""
    params, tokens = each.params(index), list(each.token_ids[0])
    said = bytearray()
    for _ in range(params.max_tokens or 0):
        token = ascii_babble(params, tuple(tokens))
        if token == END:
            break
        tokens.append(token)
        said.append(token)
    return said.decode(errors="replace")
