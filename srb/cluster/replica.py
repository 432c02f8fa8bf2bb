"""`Replica`: one engine of several, with the methods that the front and Ray Serve call."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

from srb.cluster.placement import BLOCK, blocks_of, pack_blocks
from srb.cluster.replicas import BEAT_SECONDS, BusyError, Report, Said
from srb.engine.events import AbortReason, DoneEvent, Event, by_request
from srb.engine.kv_cache.radix import Tokens, pack
from srb.engine.kv_cache.slots import Slots
from srb.engine.request import CompletionRequest
from srb.errors import EngineDeadError, NotSupportedError, SrbError, UnavailableError
from srb.serving.async_engine import AsyncEngine
from srb.serving.engine_client import Record
from srb.serving.event_log import EventLog, RequestStream
from srb.serving.prefetch import draws_ahead

FRONT_SECONDS = 15.0
"""A front that hasn't asked for a report for so long counts as gone, and the requests that it has sent are ended."""


class Replica:
    """An engine with a name. Its methods belong to the event loop. `close` ends the engine.

    make: makes the engine; it gets the function that the engine must record its events with.
    node: the address of its machine. model: the hash of its model file.
    """

    def __init__(self, make: Callable[[Record], AsyncEngine], name: str, node: str, model: str) -> None:
        self._engine = make(self._record)
        self._name = name
        self._node = node
        self._model = model
        self._fronts: dict[str, float] = {}  # when each was last heard of, in seconds of the event loop's clock
        self._said: dict[str, asyncio.Queue[list[Event] | SrbError]] = {}
        self._blocks = b""
        self._n_embedding = 0

    async def start(self) -> None:
        """Returns when the engine takes requests. Raises `ModelLoadError`."""
        self._loop = asyncio.get_running_loop()
        self._engine.start()
        await self._engine.ready()
        self._watching = [self._loop.create_task(each) for each in (self._watch(), self._look())]

    def _record(self, events: list[Event], told: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(self._hand_over, events)
        told()

    def _hand_over(self, events: list[Event]) -> None:
        for request_id, batch in by_request(events).items():
            if said := self._said.get(request_id):
                said.put_nowait(batch)

    async def run(self, request: CompletionRequest, *, front: str = "", to: str | None = None) -> AsyncGenerator[Said]:
        """Runs a request, and yields what `Said` describes. to: the replica that it was sent to; it may be gone.

        If the front is silent for FRONT_SECONDS, the request ends here with an error, as if this replica were lost: a
        front that comes back goes on elsewhere.

        Events are passed on as the engine has made them, and not from the journal: a journal doesn't keep everything
        that another replica needs to go on with them.
        """
        if to not in (None, self._name):
            yield UnavailableError(f"the replica {to} isn't there")
            return
        # The front may have taken this replica for lost, and come back. What is kept of the request is of no use then.
        self._engine.forget(request.id)
        if request.id in self._said or self._has(request.id, front):
            yield UnavailableError(f"request {request.id} is still being ended here; try again soon")
            return
        if not draws_ahead(request.id):
            self._make_way()
        elif self._load or self._n_embedding:
            yield BusyError("somebody waits here; try again when nobody does")
            return
        self._said[request.id] = said = asyncio.Queue[list[Event] | SrbError]()
        self._fronts[front] = self._loop.time()
        submitting = asyncio.ensure_future(self._engine.submit(request, journal=EventLog(request, owner=front)))
        try:
            await asyncio.sleep(0)
            if not submitting.done():  # else it was refused at once
                yield self._name  # from now on `abort` can end it here, and the front knows which replica it may kill
            while not (await asyncio.wait({submitting}, timeout=BEAT_SECONDS))[0]:
                yield []  # to compile a grammar, or to check files of `--cache-disk`, may take longer than a beat
            async with submitting.result():
                is_done = False
                while not is_done:
                    events: list[Event] = []
                    with suppress(TimeoutError):
                        async with asyncio.timeout(BEAT_SECONDS):
                            events += _events(await said.get())
                    while not said.empty():
                        events += _events(said.get_nowait())
                    is_done = bool(events) and isinstance(events[-1], DoneEvent)
                    yield events
        except SrbError as error:
            yield error
        finally:
            submitting.cancel()
            submitting.add_done_callback(_leave)
            del self._said[request.id]

    def _has(self, request_id: str, front: str) -> bool:
        """Whether a request of this front waits or runs here."""
        try:
            self._engine.find(request_id, front)
        except SrbError:
            return False
        return True

    async def abort(self, request_id: str, index: int | None, reason: AbortReason, *, to: str) -> None:
        """Ends a request, or an alternative of it, if it is here. to: the replica that was meant.

        Raises `UnavailableError` if that is another one.
        """
        if to != self._name:
            raise UnavailableError(f"the replica {to} isn't there")
        self._engine.abort(request_id, index, reason)

    async def report(self, front: str, *, to: str = "") -> Report:
        """The state of this replica. front: who asks. to: only for the router."""
        self._fronts[front] = self._loop.time()
        engine, health = self._engine, self._engine.health
        assert health.stats is not None
        embedder = engine.embedder
        return Report(
            self._name,
            self._node,
            self._model,
            engine.identity,
            engine.n_cells,
            health.stats.max_sequences,
            sum(journal.started for journal in self._asked),
            sum(not journal.started for journal in self._asked),
            self._load,
            self._blocks,
            health.stats,
            (embedder.max_tokens, embedder.pools, embedder.rank_template) if embedder else None,
        )

    async def embed(self, tokens: tuple[int, ...]) -> list[list[float]]:
        """The vectors of a text; see `Embedder.embed`."""
        if self._engine.embedder is None:
            raise NotSupportedError("this replica makes no embeddings")
        self._make_way()
        self._n_embedding += 1
        try:
            return await asyncio.to_thread(self._engine.embedder.embed, tokens)
        finally:
            self._n_embedding -= 1

    @property
    def _asked(self) -> list[EventLog]:
        """The requests here that somebody waits for: all but those that draw ahead."""
        return [journal for journal in self._engine.requests if not draws_ahead(journal.request.id)]

    @property
    def _load(self) -> int:
        """How many alternatives wait or run here."""
        return sum(len(journal.living) for journal in self._asked)

    def _make_way(self) -> None:
        """Ends what is drawn ahead here, for any server, because somebody waits now."""
        for journal in self._engine.requests:
            if draws_ahead(journal.request.id):
                self._engine.abort(journal.request.id, reason="ahead")

    async def _watch(self) -> None:
        """Ends the requests of fronts that are silent, again and again until this replica ends."""
        while True:
            await asyncio.sleep(FRONT_SECONDS / 3)
            gone = {name for name, at in self._fronts.items() if self._loop.time() - at > FRONT_SECONDS}
            silent = UnavailableError("it has heard nothing of the server that has sent the request")
            for journal in self._engine.requests:
                request_id = journal.request.id
                if journal.owner in gone:
                    if request_id in self._said:  # before the events of the abort: nobody has cancelled the request
                        self._said[request_id].put_nowait(silent)
                    self._engine.abort(request_id)
            for name in gone:
                del self._fronts[name]

    async def _look(self) -> None:
        """Looks which blocks are known, so that a report needn't wait for the engine, until this replica ends."""
        while True:
            with suppress(SrbError):  # the engine has failed, or ends
                self._blocks = pack_blocks(await self._known())
            await asyncio.sleep(BEAT_SECONDS)

    async def _known(self) -> set[int]:
        """The blocks of prompts that are known here."""
        known = {
            block
            for each in (journal.request for journal in self._engine.requests)
            for prompt in each.token_ids
            for block in blocks_of(prompt, within=each.shared_within)
        }
        for within, runs in (await self._engine.ask(-1, Slots.known)).items():
            known |= await asyncio.to_thread(_blocks_of_runs, runs, within)
        return known

    # Ray Serve calls the next methods by these names

    def check_health(self) -> None:
        """Raises `EngineDeadError` if the engine has failed. Then Serve starts another replica."""
        if self._engine.health.status == "dead":
            raise EngineDeadError("the engine has failed")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The numbers that decide how many replicas there should be; see `srb.cluster.placement`."""
        stats = self._engine.health.stats
        assert stats is not None
        return {"there": self._load, "room": stats.max_sequences}

    async def close(self) -> None:
        """Ends the engine, and everything that runs there."""
        for each in self._watching:
            each.cancel()
        await self._engine.stop()


def _leave(submitting: asyncio.Future[RequestStream]) -> None:
    """Leaves a request that was submitted, if the engine has taken it."""
    if not submitting.cancelled() and not submitting.exception():
        submitting.result().close()


def _events(said: list[Event] | SrbError) -> list[Event]:
    """The events that were said. Raises the error that was said in their place."""
    if isinstance(said, SrbError):
        raise said
    return said


def _blocks_of_runs(runs: list[tuple[int, Tokens]], within: str) -> set[int]:
    """The blocks of the texts in a `PrefixTree`. Blocks that several texts begin with are hashed only once.

    runs: the tokens of each edge of the tree, and the place where they begin; see `Slots.known`.
    """
    known: set[int] = set()
    blocks: list[int] = []
    tokens = pack(())
    for start, run in runs:
        tokens = tokens[:start] + run
        blocks = blocks_of(tokens, blocks[: start // BLOCK], within=within)
        known.update(blocks)
    return known
