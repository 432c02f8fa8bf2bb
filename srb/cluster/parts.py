"""Splits a request into parts that run on several replicas, and joins the events of the parts again.

An example: 64 alternatives of one prompt, on replicas with room for 32. Part 0 has the alternatives 0 to 31, and part 1
has 32 to 63. Each part evaluates the prompt once. Readers see the seeds and indices of the whole request.
"""

import dataclasses
from collections.abc import Sequence

from srb.engine.events import (
    DoneEvent,
    ErrorEvent,
    Event,
    FinishReason,
    NodeEvent,
    ProgressEvent,
    StartEvent,
    StopEvent,
    StreamEvent,
    Timings,
    Usage,
)
from srb.engine.request import CompletionRequest
from srb.engine.resume import RequestProgress
from srb.errors import SrbError


class Part:
    """Some alternatives of a request, which run together on one replica.

    request: a request for these alternatives alone, with an id of its own. indices: their numbers in the whole request.
    """

    def __init__(self, request: CompletionRequest, indices: Sequence[int]) -> None:
        self.request = request
        self.indices = indices
        self.said = RequestProgress(request)
        self.done: DoneEvent | None = None


def split(request: CompletionRequest, room: int, n_replicas: int) -> list[Part]:
    """The parts of a request: one if a replica has room for all of it, and else at most as many as there are replicas.

    Several prompts are divided among the replicas, so that each prompt is still evaluated only once. The alternatives
    of one prompt are divided among the replicas, too, unless they depend on each other: each should differ from the
    others, or one search finds them all.

    room: how many alternatives, or beams, one replica can run at the same time.
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


class Whole:
    """A request and its parts. It turns the events of the parts into those of the request."""

    def __init__(self, request: CompletionRequest, parts: list[Part]) -> None:
        self.request = request
        self.parts = parts
        self._has_started = bool(request.resumed)

    @property
    def done(self) -> bool:
        """Whether all parts have their last events."""
        return all(part.done for part in self.parts)

    def take(self, part: Part, events: list[Event]) -> list[Event]:
        """Takes events of a part, and returns the events of the request that follow from them."""
        living = part.said.living
        part.said.add(events)
        if part.request.id == self.request.id:
            self._has_started = True
            part.done = next((event for event in events if isinstance(event, DoneEvent)), part.done)
            return events
        return [each for event in events for each in self._translated(part, event, living)]

    def end(self, part: Part, reason: FinishReason, why: str | None, error: SrbError | None = None) -> list[Event]:
        """Ends what is left of a part if no replica can end it. Returns a `StopEvent` for each of its alternatives.

        why: the `stop_reason`. error: the error that ends it, if it is one.
        """
        request_id, lengths, living = part.request.id, part.said.lengths, part.said.living
        events: list[Event] = [ErrorEvent(request_id, index, error) for index in living] if error else []
        events += [StopEvent(request_id, index, lengths[index], reason, why) for index in living]
        usage = Usage(part.request.prompt_tokens, sum(lengths), 0)
        events.append(DoneEvent(request_id, len(lengths), usage, Timings(0.0, 0, 0.0, sum(lengths), 0.0)))
        return self.take(part, events)

    def _translated(self, part: Part, event: Event, living: list[int]) -> list[Event]:
        request = self.request
        match event:
            case NodeEvent():  # a request that explores has one part, which isn't translated
                return [event]
            case StreamEvent() | StopEvent():
                return [dataclasses.replace(event, request_id=request.id, index=part.indices[event.index])]
            case StartEvent():
                if self._has_started:
                    return []
                self._has_started = True
                branches = request.branches * len(request.prompts)
                seeds, labels = (tuple(getattr(each, name) for each in branches) for name in ("seed", "label"))
                return [
                    dataclasses.replace(
                        event,
                        request_id=request.id,
                        count=request.count,
                        prompt_tokens=request.prompt_tokens,
                        seeds=seeds,
                        labels=labels,
                        guided=request.guided,
                    )
                ]
            case ErrorEvent():
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
                max(each.n_cut for each in timings),
                sum(each.n_drafted for each in timings),
                sum(each.n_accepted for each in timings),
            ),
        )
