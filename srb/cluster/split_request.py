"""Splits a request into parts, runs each on a replica, and joins their events.

An example: 64 alternatives of one prompt, on replicas that run 32 at a time. Part 0 has the alternatives 0 to 31, and
part 1 has 32 to 63. Each part evaluates the prompt once. Readers see the seeds and indices of the whole request.

A part is sent to a replica, and to another one if that is lost, until it has ended.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from srb.cluster.placement import blocks_of
from srb.cluster.replica import SILENCE_SECONDS, ReplicaLostError
from srb.engine.events import (
    AbortReason,
    DoneEvent,
    ErrorEvent,
    Event,
    FinishReason,
    NodeEvent,
    ProgressEvent,
    PromptLogprobsEvent,
    StartEvent,
    StopEvent,
    StreamEvent,
    Timings,
    Usage,
)
from srb.engine.request import CompletionRequest
from srb.engine.resume import beginning, ending, progress, resume
from srb.errors import BackendError, EngineDeadError, SrbError, UnavailableError
from srb.serving.prefetch import is_prefetch

if TYPE_CHECKING:
    from srb.cluster.cluster_engine import ClusterEngine

logger = logging.getLogger("srb")

MOST_LOSSES = 3
"""The number of replicas that a part may lose in a row, without a token from any. It may be the cause."""


class Part:
    """Some alternatives of a request, which run on one replica: as a request for them alone, with an id of its own."""

    def __init__(self, request: CompletionRequest, indices: Sequence[int]) -> None:
        self.request = request
        self.indices = indices
        self.events: list[Event] = []  # all so far, of whichever replica
        self.done: DoneEvent | None = None


def split(request: CompletionRequest, room: int, n_replicas: int) -> list[Part]:
    """Splits a request: into one part if a replica has `room` for all its alternatives, or beams; else into several.

    Several prompts are divided among the replicas, so that each prompt is still evaluated only once. The alternatives
    of one prompt are divided among the replicas, too, unless they depend on each other: each should differ from the
    others, or a search finds them all.
    """
    n_prompts, n_branches = len(request.prompts), len(request.branches)
    n_rows = n_prompts * (request.n_rows or n_branches)
    n_parts = min(-(-n_rows // room), n_replicas, max(n_prompts, n_branches))
    by_prompts = n_prompts >= n_parts
    if n_parts < 2 or (request.is_joint and not by_prompts):
        return [Part(request, range(request.count))]
    parts = []
    for k in range(n_parts):
        prompts = _share(n_prompts, k, n_parts) if by_prompts else range(n_prompts)
        branches = range(n_branches) if by_prompts else _share(n_branches, k, n_parts)
        indices = [prompt * n_branches + branch for prompt in prompts for branch in branches]
        resumed = tuple(request.resumed[index] for index in indices) if request.resumed else ()
        if resumed and all(each.finished is not None for each in resumed):
            continue
        candidates = tuple(request.candidates[index] for index in indices) if request.candidates else ()
        part = dataclasses.replace(
            request,
            id=f"{request.id}.{k}",
            prompts=tuple(request.prompts[prompt] for prompt in prompts),
            branches=tuple(request.branches[branch] for branch in branches),
            resumed=resumed,
            candidates=candidates,
        )
        parts.append(Part(part, indices))
    return parts


def _share(count: int, k: int, n_parts: int) -> range:
    return range(count * k // n_parts, count * (k + 1) // n_parts)


class SplitRequest:
    """A request and its parts. Turns the events of the parts into those of the request."""

    def __init__(self, request: CompletionRequest, parts: list[Part]) -> None:
        self.request = request
        self.parts = parts
        self._has_started = bool(request.resumed)

    @property
    def done(self) -> bool:
        """Whether all parts have ended."""
        return all(part.done for part in self.parts)

    def take(self, part: Part, events: list[Event]) -> list[Event]:
        """Takes events of a part. Returns the events of the request that follow from them."""
        taken = events
        if part.request.id == self.request.id:
            self._has_started = True
            part.done = next((event for event in events if isinstance(event, DoneEvent)), part.done)
        else:
            taken = [each for event in events for each in self._translated(part, event)]
        part.events += events
        return taken

    def end(
        self, part: Part, reason: FinishReason, stop_reason: str | None, error: SrbError | None = None
    ) -> list[Event]:
        """Ends the rest of a part that no replica can end."""
        return self.take(part, ending(part.request, part.events, reason, stop_reason, error=error))

    def _translated(self, part: Part, event: Event) -> list[Event]:
        request = self.request
        match event:
            case NodeEvent():  # a request that explores has one part, which isn't translated
                return [event]
            case StreamEvent() | StopEvent():
                return [dataclasses.replace(event, request_id=request.id, index=part.indices[event.index])]
            case PromptLogprobsEvent():
                theirs = tuple(part.indices[index] for index in event.indices)
                return [dataclasses.replace(event, request_id=request.id, indices=theirs)]
            case StartEvent():
                if self._has_started:
                    return []
                self._has_started = True
                return [beginning(request, event)]
            case ErrorEvent():
                living = [k for k, each in enumerate(progress(part.request, part.events)) if each.finished is None]
                indices = living if event.index is None else [event.index]
                return [ErrorEvent(request.id, part.indices[index], event.error) for index in indices]
            case DoneEvent():
                part.done = event
                return [self._sum()] if self.done else []
            case ProgressEvent():  # only the first part's: every part counts from the beginning
                return [dataclasses.replace(event, request_id=request.id)] if part is self.parts[0] else []

    def _sum(self) -> DoneEvent:
        ends = [part.done for part in self.parts if part.done]
        usages, timings = [end.usage for end in ends], [end.timings for end in ends]
        is_by_prompts = len(self.parts[0].request.prompts) < len(self.request.prompts)
        cached = [usage.cached_tokens for usage in usages]
        sent = {index for part in self.parts for index in part.indices}
        before = sum(each.finished or 0 for index, each in enumerate(self.request.resumed) if index not in sent)
        return DoneEvent(
            self.request.id,
            self.request.count,
            Usage(
                self.request.prompt_tokens,
                sum(usage.completion_tokens for usage in usages) + before,
                sum(cached) if is_by_prompts else min(cached),
            ),
            Timings(
                min(each.queued_ms for each in timings),
                sum(each.prompt_n for each in timings),
                max(each.prompt_ms for each in timings),
                sum(each.predicted_n for each in timings),
                max(each.predicted_ms for each in timings),
                max(each.n_truncated for each in timings),
                sum(each.n_drafted for each in timings),
                sum(each.n_accepted for each in timings),
            ),
        )


class PartRun:
    """Sends a part of a request to a replica and takes its events, again whenever the replica is lost."""

    def __init__(self, engine: "ClusterEngine", whole: SplitRequest, part: Part) -> None:
        self.part = part
        self.task: asyncio.Task[None] | None = None
        self._engine = engine
        self._whole = whole
        self._replica: str | None = None
        self._aborts: dict[int | None, AbortReason] = {}
        self._losses = 0
        self._tried: set[str] = set()  # replicas that it was sent to; others are preferred
        self._without_model: set[str] = set()  # replicas that can't use their model now

    def abort(self, index: int | None, reason: AbortReason) -> None:
        """Ends the part, or its alternative `index`, counted in the part."""
        self._aborts[index] = reason
        if self._replica:
            self._engine.spawn(self._pass_on(index, reason))
        elif index is None and self.task:
            self.task.cancel()

    async def _pass_on(self, index: int | None, reason: AbortReason) -> None:
        """Makes the replica end the part or an alternative. If it can't be reached, its stream is closed."""
        assert self._replica
        is_reached = await self._engine.replicas.abort(self._replica, self.part.request.id, index, reason)
        if not is_reached and index is None and self.task:
            self.task.cancel()

    async def follow(self) -> None:
        """Sends the part, and sends the rest again whenever its replica is lost."""
        whole, part, put = self._whole, self.part, self._engine.put
        try:
            while not part.done:
                if None in self._aborts:  # the part has no replica that could end it
                    return put(whole.end(part, "abort", self._aborts[None]))
                try:
                    request = resume(part.request, part.events)
                    if request is None:  # the part is complete, except for its last event
                        return put(whole.end(part, "stop", None))
                    await self._listen(request)
                except SrbError as error:
                    return put(whole.end(part, "error", None, error))
        except asyncio.CancelledError:
            if not part.done and None in self._aborts:
                return put(whole.end(part, "abort", self._aborts[None]))
            raise

    async def _listen(self, request: CompletionRequest) -> None:
        """Takes the events of a replica, until the part has ended or the replica is lost.

        Raises the error of a replica that refuses the request, and `BackendError` if too many were lost.
        """
        self._replica = None
        try:
            await self._read(request)
        except ReplicaLostError as error:
            if self._replica:
                self._count(error)
            else:  # there is no replica now
                await asyncio.sleep(self._engine.beat_seconds)

    async def _read(self, request: CompletionRequest) -> None:
        """Takes the events of a replica. Raises `ReplicaLostError`, and the error if the request is refused."""
        stream = self._engine.replicas.run(request, self._place(request))
        try:
            while not self.part.done:
                try:
                    async with asyncio.timeout(SILENCE_SECONDS):
                        message = await anext(stream)
                except TimeoutError:
                    raise ReplicaLostError(f"it has sent nothing for {SILENCE_SECONDS:g} s") from None
                except StopAsyncIteration:
                    raise ReplicaLostError("it has stopped in the middle") from None
                if isinstance(message, str):
                    self._replica = message
                    for index, reason in self._aborts.items():
                        self._engine.spawn(self._pass_on(index, reason))
                elif isinstance(message, SrbError):
                    raise ReplicaLostError(message.message) if isinstance(message, UnavailableError) else message
                elif message:
                    self._raise_if_ending(message)
                    if self._goes_elsewhere(message):
                        return
                    if any(map(_is_progress, message)):
                        self._losses = 0
                    self._engine.put(self._whole.take(self.part, message))
        finally:
            self._engine.placement.end(request.id)
            await stream.aclose()

    def _place(self, request: CompletionRequest) -> str:
        """Chooses a replica, where the request counts as in flight until `Placement.end`. Raises `ReplicaLostError`."""
        placement = self._engine.placement
        prompts = [blocks_of(prompt, within=request.shared_within) for prompt in request.token_ids]
        # A prefetch ends when a request comes, so it has no weight.
        weight = 0 if is_prefetch(request.id) else len(request.prompts) * (request.n_rows or len(request.branches))
        name = placement.choose(prompts, self._engine.lost | self._without_model | self._tried)
        if name is None:
            raise ReplicaLostError("there is none")
        placement.begin(request.id, name, weight, prompts)
        if name in self._tried:  # all were
            self._tried.clear()
        self._tried.add(name)
        return name

    def _goes_elsewhere(self, events: list[Event]) -> bool:
        """Tells whether the replica can't use its model now, and another one should be asked. Each is asked once."""
        is_refused = any(
            isinstance(event, ErrorEvent) and isinstance(event.error, UnavailableError) for event in events
        )
        if not is_refused or self._replica is None or self._replica in self._without_model:
            return False
        self._without_model.add(self._replica)
        return True

    def _raise_if_ending(self, events: list[Event]) -> None:
        """Raises `ReplicaLostError` if these events end the replica, and not the part."""
        for event in events:
            if isinstance(event, ErrorEvent) and isinstance(event.error, EngineDeadError):
                raise ReplicaLostError(event.error.message)
            if not isinstance(event, StopEvent) or event.finish_reason != "abort":  # "shutdown" may be a stop string
                continue
            if event.stop_reason == "shutdown" and not self._is_asked(event.index):
                raise ReplicaLostError("it is shutting down")

    def _is_asked(self, index: int) -> bool:
        """Tells whether this alternative, or the part, was aborted here."""
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
    """Tells whether an event has tokens, which needn't be computed again if the replica is lost."""
    return isinstance(event, NodeEvent) or (isinstance(event, StreamEvent) and bool(event.sampled))
