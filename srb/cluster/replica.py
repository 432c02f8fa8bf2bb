"""`Replica`: one engine of several. `Replicas`: the interface by which the front calls them, however it is
connected."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from srb.cluster.placement import BLOCK, blocks_of, pack_blocks
from srb.engine.events import AbortReason, Event
from srb.engine.kv_cache.radix import Tokens, pack
from srb.engine.kv_cache.state_cache import StateCache
from srb.engine.request import CompletionRequest
from srb.errors import EngineDeadError, NotSupportedError, SrbError, UnavailableError
from srb.serving.async_engine import AsyncEngine
from srb.serving.event_log import EventLog, RequestStream
from srb.serving.health import ReplicaHealth
from srb.serving.prefetch import is_prefetch

BEAT_SECONDS = 1.0
"""The longest time between two messages of a replica that runs a request, in seconds."""

SILENCE_SECONDS = 5.0
"""A replica that has sent nothing for this long counts as lost, in seconds."""


class ReplicaLostError(SrbError):
    """A replica has died, or can't be reached, or its engine has failed."""

    status = 503
    code = "replica_lost"


@dataclass(frozen=True, slots=True)
class Report(ReplicaHealth):
    """The state of a replica, as it reports it.

    Attributes:
        model: the hash of its model file.
        identity: `ModelFacts.identity`.
        n_cells: the longest context of a request.
        load: the number of alternatives that wait or run.
        blocks: of the prompts that it has cached, packed (`Placement.report`).
        embeds: of its `Embedder`: `max_tokens`, `pools` and `rank_template`. None if it has none.
    """

    model: str
    identity: str
    n_cells: int
    load: int
    blocks: bytes
    embeds: tuple[int, bool, str | None] | None = None


Message = str | SrbError | list[Event]
"""A replica's messages for a request: first its name, then lists of events; an error if it refuses the request.

An empty list only shows that the replica is alive.
"""


class Replicas(Protocol):
    """The engines, wherever they are. All methods but `embed` belong to the event loop."""

    async def start(self) -> None:
        """Starts replicas, or joins those that run. Raises `SettingsError` and `UnavailableError`."""

    def run(self, request: CompletionRequest, name: str) -> AsyncGenerator[Message]:
        """Sends a request to a replica, and yields its messages. Closing the generator aborts the request.

        Raises `ReplicaLostError`.
        """

    async def abort(self, name: str, request_id: str, index: int | None, reason: AbortReason) -> bool:
        """Makes a replica end a request, or an alternative of it. Returns False if it can't be reached."""

    async def reports(self) -> list[Report]:
        """Returns the reports of the replicas that answer in time."""

    async def fronts(self, urls: Sequence[str]) -> list[str]:
        """Finds the addresses of the other servers in front of the replicas that this server can reach."""

    async def trouble(self) -> str | None:
        """Returns the reason why replicas are missing; None if it isn't known or none is missing.

        Raises `ModelLoadError` if there will be none.
        """

    def embed(self, tokens: tuple[int, ...]) -> list[list[float]]:
        """Embeds a text (`Embedder.embed`). May be called from any thread except for the event loop's."""

    async def close(self) -> None:
        """Leaves the replicas, and ends those that were started for this process alone."""


FRONT_SECONDS = 15.0
"""A front without a call for this long counts as gone, in seconds. Its requests are ended."""


class Replica:
    """An engine with a name. Its methods belong to the event loop. `close` ends the engine.

    While a request runs, `beat_seconds` is the longest time between two messages. The requests of a front that is
    silent for `front_seconds` end.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        name: str,
        node: str,
        model: str,
        *,
        beat_seconds: float = BEAT_SECONDS,
        front_seconds: float = FRONT_SECONDS,
    ) -> None:
        self._beat_seconds = beat_seconds
        self._front_seconds = front_seconds
        self._engine = engine
        self._name = name
        self._node = node
        self._model = model
        self._fronts: dict[str, float] = {}  # the time of its last call, in seconds of the event loop's clock
        self._blocks = b""

    async def start(self) -> None:
        """Starts the engine, and waits until it takes requests. Raises `ModelLoadError`."""
        self._loop = asyncio.get_running_loop()
        self._engine.start()
        await self._engine.ready()
        self._watching = [self._loop.create_task(each) for each in (self._end_silent_fronts(), self._list_blocks())]

    async def run(
        self, request: CompletionRequest, *, front: str = "", to: str | None = None
    ) -> AsyncGenerator[Message]:
        """Runs a request that was sent to the replica `to`, which may be gone.

        If the front is silent for `front_seconds`, the request ends here with an error, as if this replica were lost: a
        front that comes back resumes it elsewhere.
        """
        if to not in (None, self._name):
            yield UnavailableError(f"the replica {to} isn't there")
            return
        # If the front took this replica for lost and came back, the events of the request are of no use.
        self._engine.forget(request.id)
        if self._has(request.id, front):
            yield UnavailableError(f"request {request.id} is still being ended here; try again soon")
            return
        self._fronts[front] = self._loop.time()
        event_log = EventLog(request, owner=front, exact=True)
        submitting = asyncio.ensure_future(self._engine.submit(request, event_log=event_log))
        try:
            await asyncio.sleep(0)
            if not submitting.done():  # else it was refused at once
                yield self._name  # from now on `abort` can end it here, and the front knows which replica has it
            while not (await asyncio.wait({submitting}, timeout=self._beat_seconds))[0]:
                yield []  # compiling a grammar, or checking files of `--cache-disk`, may take longer than a beat
            async with submitting.result() as stream:
                while not stream.at_end:
                    events: list[Event] = []
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._beat_seconds):
                            events = await anext(stream, [])
                    if event_log.is_cut_off:
                        raise UnavailableError("it has ended the request, whose server has been silent for too long")
                    yield events
        except SrbError as error:
            yield error
        finally:
            submitting.cancel()
            submitting.add_done_callback(_leave)

    def _has(self, request_id: str, front: str) -> bool:
        """Tells whether a request of this front waits or runs here."""
        try:
            self._engine.find(request_id, front)
        except SrbError:
            return False
        return True

    async def abort(self, request_id: str, index: int | None, reason: AbortReason, *, to: str) -> None:
        """Ends a request, or an alternative of it. Raises `UnavailableError` if `to` is another replica."""
        if to != self._name:
            raise UnavailableError(f"the replica {to} isn't there")
        self._engine.abort(request_id, index, reason)

    async def report(self, front: str, *, to: str = "") -> Report:
        """Reports the state of this replica to a front. `to` is only for the router."""
        self._fronts[front] = self._loop.time()
        engine, health = self._engine, self._engine.health
        assert health.stats is not None
        embedder = engine.model.embedder
        return Report(
            self._name,
            self._node,
            "ready",
            sum(event_log.started for event_log in self._asked),
            sum(not event_log.started for event_log in self._asked),
            health.stats,
            self._model,
            engine.model.identity,
            engine.model.n_cells,
            self._load,
            self._blocks,
            (embedder.max_tokens, embedder.pools, embedder.rank_template) if embedder else None,
        )

    async def embed(self, tokens: tuple[int, ...]) -> list[list[float]]:
        """Embeds a text (`Embedder.embed`)."""
        embedder = self._engine.model.embedder
        if embedder is None:
            raise NotSupportedError("this replica makes no embeddings")
        return await asyncio.to_thread(embedder.embed, tokens)

    @property
    def _asked(self) -> list[EventLog]:
        """The requests here, without prefetches."""
        return [event_log for event_log in self._engine.requests if not is_prefetch(event_log.request.id)]

    @property
    def _load(self) -> int:
        """The number of alternatives that wait or run here."""
        return sum(len(event_log.unfinished) for event_log in self._asked)

    async def _end_silent_fronts(self) -> None:
        """Ends the requests of silent fronts, until this replica ends."""
        while True:
            await asyncio.sleep(self._front_seconds / 3)
            gone = {name for name, at in self._fronts.items() if self._loop.time() - at > self._front_seconds}
            for event_log in self._engine.requests:
                if event_log.owner in gone:
                    event_log.cut_off()  # before the events of the abort, which isn't its client's
                    self._engine.abort(event_log.request.id)
            for name in gone:
                del self._fronts[name]

    async def _list_blocks(self) -> None:
        """Lists the cached blocks until this replica ends, so that a report needn't wait for the engine."""
        while True:
            with suppress(SrbError):  # the engine has failed, or ends
                self._blocks = pack_blocks(await self._cached_blocks())
            await asyncio.sleep(self._beat_seconds)

    async def _cached_blocks(self) -> set[int]:
        """Returns the blocks of the prompts that are cached or running here."""
        blocks = {
            block
            for each in (event_log.request for event_log in self._engine.requests)
            for prompt in each.token_ids
            for block in blocks_of(prompt, within=each.shared_within)
        }
        for within, runs in (await self._engine.ask(-1, StateCache.texts)).items():
            blocks |= await asyncio.to_thread(_blocks_of_runs, runs, within)
        return blocks

    # Ray Serve calls the next methods by these names

    def check_health(self) -> None:
        """Raises `EngineDeadError` if the engine has failed. Then Serve starts another replica."""
        if self._engine.health.status == "dead":
            raise EngineDeadError("the engine has failed")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Returns the metrics for `replicas_wanted`: the load, and the largest load that runs at a time."""
        stats = self._engine.health.stats
        assert stats is not None
        return {"load": self._load, "room": stats.max_sequences}

    async def close(self) -> None:
        """Ends the engine and its requests."""
        for each in self._watching:
            each.cancel()
        await self._engine.stop()


def _leave(submitting: asyncio.Future[RequestStream]) -> None:
    """Closes the stream of a request, if the engine has taken it."""
    if not submitting.cancelled() and not submitting.exception():
        submitting.result().close()


def _blocks_of_runs(runs: list[tuple[int, Tokens]], within: str) -> set[int]:
    """Hashes the blocks of the texts in a prefix tree (`StateCache.texts`), each once, whoever begins with it."""
    found: set[int] = set()
    blocks: list[int] = []
    tokens = pack(())
    for start, run in runs:
        tokens = tokens[:start] + run
        blocks = blocks_of(tokens, blocks[: start // BLOCK], within=within)
        found.update(blocks)
    return found
