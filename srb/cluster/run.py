"""`Run` sends a part of a request to a replica, and to another one if that is lost, until the part has ended."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Protocol

from srb.cluster.parts import Part, Whole
from srb.cluster.placement import Placement, blocks_of
from srb.cluster.replicas import BEAT_SECONDS, SILENCE_SECONDS, BusyError, ReplicaLostError, Replicas
from srb.engine.events import AbortReason, ErrorEvent, Event, NodeEvent, StopEvent, StreamEvent
from srb.engine.request import CompletionRequest
from srb.errors import BackendError, EngineDeadError, SrbError, UnavailableError
from srb.serving.prefetch import draws_ahead

logger = logging.getLogger("srb")

MOST_LOSSES = 3
"""A part that has lost so many replicas in a row, without a token from any, is ended: it may be the cause."""


class Front(Protocol):
    """What a `Run` needs of its front."""

    replicas: Replicas
    placement: Placement

    @property
    def lost(self) -> frozenset[str]: ...

    def put(self, events: list[Event]) -> None: ...

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]: ...


class Run:
    """Sends a part of a request to a replica and takes its events, and does so again whenever the replica is lost."""

    def __init__(self, engine: Front, whole: Whole, part: Part) -> None:
        self.part = part
        self.task: asyncio.Task[None] | None = None
        self._engine = engine
        self._whole = whole
        self._replica: str | None = None
        self._aborts: dict[int | None, AbortReason] = {}
        self._losses = 0
        self._tried: set[str] = set()  # replicas that it was sent to: any other one is better now
        self._without_model: set[str] = set()  # replicas that couldn't use their model, but may do so later

    def abort(self, index: int | None, reason: AbortReason) -> None:
        """Ends the part, or one alternative of it. index: its number in the part."""
        self._aborts[index] = reason
        if self._replica:
            self._tell(index, reason)
        elif index is None and self.task:
            self.task.cancel()

    def _tell(self, index: int | None, reason: AbortReason) -> None:
        self._engine.spawn(self._pass_on(index, reason))

    async def _pass_on(self, index: int | None, reason: AbortReason) -> None:
        """Tells the replica to end the part or an alternative. If it can't be reached, its stream is left."""
        assert self._replica
        told = await self._engine.replicas.abort(self._replica, self.part.request.id, index, reason)
        if not told and index is None and self.task:
            self.task.cancel()

    async def follow(self) -> None:
        """Sends the part, and sends what is left of it again whenever its replica is lost."""
        whole, part, put = self._whole, self.part, self._engine.put
        try:
            while not part.done:
                if None in self._aborts:  # the part has no replica yet, or lost it, so nobody else can end it
                    return put(whole.end(part, "abort", self._aborts[None]))
                try:
                    request = part.said.remainder()
                    if request is None:  # the part is complete, only its last event is missing
                        return put(whole.end(part, "stop", None))
                    await self._listen(request)
                except BusyError:
                    return put(whole.end(part, "abort", "ahead"))
                except SrbError as error:
                    return put(whole.end(part, "error", None, error))
        except asyncio.CancelledError:
            if not part.done and None in self._aborts:
                return put(whole.end(part, "abort", self._aborts[None]))
            raise

    async def _listen(self, request: CompletionRequest) -> None:
        """Takes the events of a replica, until the part has ended or the replica is lost.

        Raises the error with which the replica refuses the request, and `BackendError` if too many were lost.
        """
        self._replica = None
        try:
            await self._read(request)
        except ReplicaLostError as error:
            if self._replica:
                self._count(error)
            else:  # there is no replica now
                await asyncio.sleep(BEAT_SECONDS)

    async def _read(self, request: CompletionRequest) -> None:
        """Takes the events of a replica.

        Raises `ReplicaLostError`, and the error with which the replica refuses the request.
        """
        stream = self._engine.replicas.run(request, self._place(request))
        try:
            while not self.part.done:
                try:
                    async with asyncio.timeout(SILENCE_SECONDS):
                        said = await anext(stream)
                except TimeoutError:
                    raise ReplicaLostError(f"it has said nothing for {SILENCE_SECONDS:g} s") from None
                except StopAsyncIteration:
                    raise ReplicaLostError("it has stopped in the middle") from None
                if isinstance(said, str):
                    self._replica = said
                    for index, reason in self._aborts.items():
                        self._tell(index, reason)
                elif isinstance(said, SrbError):
                    raise ReplicaLostError(said.message) if isinstance(said, UnavailableError) else said
                elif said:
                    self._raise_if_ending(said)
                    if self._goes_elsewhere(said):
                        return
                    if any(map(_is_progress, said)):
                        self._losses = 0
                    self._engine.put(self._whole.take(self.part, said))
        finally:
            self._engine.placement.end(request.id)
            await stream.aclose()

    def _place(self, request: CompletionRequest) -> str:
        """Chooses a replica, where the request counts as in flight until `Placement.end`. Raises `ReplicaLostError`."""
        placement = self._engine.placement
        prompts = [blocks_of(prompt, within=request.shared_within) for prompt in request.token_ids]
        # What is drawn ahead is in nobody's way, so others go where they would go without it.
        weight = 0 if draws_ahead(request.id) else len(request.prompts) * (request.n_rows or len(request.branches))
        name = placement.choose(prompts, self._engine.lost | self._without_model | self._tried)
        if name is None:
            raise ReplicaLostError("there is none")
        placement.begin(request.id, name, weight, prompts)
        if name in self._tried:  # all were
            self._tried.clear()
        self._tried.add(name)
        return name

    def _goes_elsewhere(self, events: list[Event]) -> bool:
        """Whether the replica can't use its model now, and another one should be asked: each is asked once."""
        is_refused = any(
            isinstance(event, ErrorEvent) and isinstance(event.error, UnavailableError) for event in events
        )
        if not is_refused or self._replica is None or self._replica in self._without_model:
            return False
        self._without_model.add(self._replica)
        return True

    def _raise_if_ending(self, events: list[Event]) -> None:
        """Raises `ReplicaLostError` if these events come from the end of the replica, and not from that of the part."""
        for event in events:
            if isinstance(event, ErrorEvent) and isinstance(event.error, EngineDeadError):
                raise ReplicaLostError(event.error.message)
            if not isinstance(event, StopEvent) or event.finish_reason != "abort":  # "shutdown" may be a stop string
                continue
            if event.stop_reason == "shutdown" and not self._is_asked(event.index):
                raise ReplicaLostError("it is shutting down")

    def _is_asked(self, index: int) -> bool:
        """Whether somebody here wanted an end of this alternative, or of the part."""
        return not self._aborts.keys().isdisjoint((index, None))

    def _count(self, error: ReplicaLostError) -> None:
        """Counts and logs the loss of a replica. Raises `BackendError` if there were too many."""
        self._losses += 1
        logger.warning("request %s has lost replica %s: %s", self.part.request.id, self._replica, error.message)
        if self._losses >= MOST_LOSSES:
            raise BackendError(
                f"{self._losses} replicas were lost, one after the other, without a further token; the last one: "
                f"{error.message}"
            ) from None


def _is_progress(event: Event) -> bool:
    """Whether an event brings something that is not lost with the replica, and needn't be done again: tokens."""
    return isinstance(event, NodeEvent) or (isinstance(event, StreamEvent) and bool(event.drawn))
