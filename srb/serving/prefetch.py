"""`Prefetcher`: generates further alternatives of finished requests while the engine is idle.

A reader who doesn't like a text often sends the same request again: the next swipe. So an idle engine generates the
alternatives of the next seeds. The same request with the next seed, or with any seed, gets the prefetched alternatives
at once, and the rest as it is generated: for the engine, it is an interrupted request that resumes
(`srb.engine.resume`). The texts are the same as without prefetching.

A prefetch is an ordinary request of the lowest priority, so it pauses while any other runs. It isn't logged, and isn't
in the history until a request takes its alternatives.
"""

import asyncio
import dataclasses
import uuid
from collections import OrderedDict, abc
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from srb.engine.events import (
    AbortReason,
    DoneEvent,
    ErrorEvent,
    Event,
    StartEvent,
    StopEvent,
    StreamEvent,
    Timings,
    Usage,
)
from srb.engine.request import LOWEST_PRIORITY, CompletionRequest, new_request_id
from srb.engine.resume import beginning, resume
from srb.engine.sampling_params import MAX_SEED
from srb.engine.validation.exclusions import excludes
from srb.serving.event_log import EventLog

_PREFIX = "ahead-"
"""The prefix of the ids of prefetch requests."""

MOST_REQUESTS = 16
"""The number of requests with prefetched alternatives. Those of the request that ended first are dropped."""

_Key = tuple[str | None, abc.Hashable, CompletionRequest]
"""The owner, the setting, and the request without its ids and seeds."""


@dataclass(eq=False)
class _Continuation:
    """The next alternatives of a request.

    Attributes:
        request: has one branch, with the seed of the first of them.
        max_tokens: of each.
        wanted: the number of alternatives to prefetch.
        running: the id of the request that generates them; None if none does.
        start: the last event of its kind; None before the first.
        events: the others so far, with any id.
    """

    request: CompletionRequest
    max_tokens: int
    wanted: int = 0
    running: str | None = None
    start: StartEvent | None = None
    events: list[StreamEvent | StopEvent] = field(default_factory=list)

    @property
    def seed(self) -> int:
        """The seed of the first one."""
        return self.request.branches[0].seed

    @property
    def is_complete(self) -> bool:
        """Whether all that are wanted have ended."""
        return sum(isinstance(event, StopEvent) and event.index < self.wanted for event in self.events) == self.wanted

    def rest(self, request_id: str) -> CompletionRequest | None:
        """Makes a request for those that aren't complete."""
        branches = self.request.branches[0].alternatives(self.wanted)
        request = dataclasses.replace(self.request, branches=branches, id=request_id, priority=LOWEST_PRIORITY)
        return resume(request, self.events_of(request))

    def events_of(self, request: CompletionRequest) -> list[Event]:
        """Makes the events of a request for the first alternatives, as far as these were prefetched."""
        theirs = [event for event in self.events if event.index < request.count]
        if self.start is None or not theirs:
            return []
        n_truncated = self.start.n_truncated
        start = dataclasses.replace(self.start, cached_tokens=request.prompt_tokens)
        events: list[Event] = [beginning(request, start)]
        lengths = []
        for event in theirs:
            changes: dict[str, Any] = {}
            if isinstance(event, StopEvent):
                lengths.append(event.length)
                changes = {"timings": _at_once(event.length, n_truncated)}
            events.append(dataclasses.replace(event, request_id=request.id, **changes))
        if len(lengths) == request.count:
            usage = Usage(request.prompt_tokens, sum(lengths), request.prompt_tokens)
            events.append(DoneEvent(request.id, request.count, usage, _at_once(sum(lengths), n_truncated)))
        return events

    def drop(self, n: int) -> None:
        """Removes the first n alternatives."""
        self.request = _from_seed(self.request, (self.seed + n) % (MAX_SEED + 1))
        self.events = [dataclasses.replace(event, index=event.index - n) for event in self.events if event.index >= n]
        self.wanted = max(0, self.wanted - n)


def _at_once(n_tokens: int, n_truncated: int) -> Timings:
    """Makes the timings of prefetched tokens."""
    return Timings(
        queued_ms=0.0, prompt_n=0, prompt_ms=0.0, predicted_n=n_tokens, predicted_ms=0.0, n_truncated=n_truncated
    )


def _from_seed(request: CompletionRequest, seed: int) -> CompletionRequest:
    return dataclasses.replace(request, branches=(dataclasses.replace(request.branches[0], seed=seed),))


def is_prefetch(request_id: str) -> bool:
    """Tells whether this is the id of a prefetch, of any engine or server."""
    return request_id.startswith(_PREFIX)


class Prefetcher:
    """Prefetches alternatives on an engine, or on several. It belongs to the event loop.

    Args:
        submit: gives a request to the engine.
        end: ends a request that the engine has taken.
        setting: returns what texts depend on besides their requests: the scales of adapters.

    Attributes:
        max_tokens: the number of prefetched tokens that are held; it may be changed at any time. Each takes 0.23 KB of
            memory, more with `logprobs`.
        n_tokens: the number of prefetched tokens since the start.
        n_taken: the number of prefetched alternatives that requests have taken, complete or in part.
    """

    def __init__(
        self,
        submit: abc.Callable[[CompletionRequest], abc.Awaitable[None]],
        end: abc.Callable[[str, None, AbortReason], object],
        setting: abc.Callable[[], abc.Hashable],
    ) -> None:
        self._submit = submit
        self._end = end
        self._setting = setting
        self._prefix = f"{_PREFIX}{uuid.uuid4().hex[:8]}-"
        self._continuations: OrderedDict[_Key, _Continuation] = OrderedDict()  # the last one to end comes last
        self._running: dict[str, _Continuation] = {}  # by the ids of their requests
        self._is_closed = False
        self.max_tokens = 500_000
        self.n_tokens = 0
        self.n_taken = 0

    @property
    def is_running(self) -> bool:
        """Whether the engine has requests of it, which may pause."""
        return bool(self._running)

    def take(self, request: CompletionRequest, owner: str | None = None) -> tuple[CompletionRequest, list[Event]]:
        """Takes what was prefetched for a request, and ends the request that was prefetching it.

        Returns:
            The request, with the prefetched seeds if it takes any, and its events so far.
        """
        found = self._find(request, owner) if self._continuations else None
        if found is None or (not request.any_seed and request.branches[0].seed != found.seed):
            return request, []
        self._stop(found)
        n = len(request.branches)
        seeds = found.request.branches[0].alternatives(n)
        branches = tuple(
            dataclasses.replace(params, seed=each.seed) for params, each in zip(request.branches, seeds, strict=True)
        )
        request = dataclasses.replace(request, branches=branches)
        events = found.events_of(request)
        self.n_taken += len({event.index for event in events if isinstance(event, StreamEvent | StopEvent)})
        found.drop(n)
        self._run(found)
        return request, events

    def note(self, event_log: EventLog) -> None:
        """Notes what to prefetch after a request that has ended, if it asks for that, and wasn't ended early."""
        request = event_log.request
        if not request.ahead or event_log.aborted or any(stop.finish_reason == "error" for stop in event_log.stops):
            return
        key = self._key(request, event_log.owner)
        seed = (request.branches[-1].seed + 1) % (MAX_SEED + 1)
        found = self._continuations.pop(key, None)
        if found and found.seed != seed:
            self._stop(found)
            found = None
        if found is None:
            first = dataclasses.replace(request.branches[0], seed=seed)
            if first.max_tokens == -1:  # each has as many as these had
                first = dataclasses.replace(first, max_tokens=event_log.max_tokens)
            request = dataclasses.replace(request, branches=(first,), any_seed=False, resumed=())
            found = _Continuation(request, max(1, event_log.max_tokens))
        found.wanted = max(1, min(request.ahead, self.max_tokens // found.max_tokens))
        self._continuations[key] = found
        while len(self._continuations) > MOST_REQUESTS or self._n_tokens > self.max_tokens:
            self._stop(self._continuations.popitem(last=False)[1])
        self._run(found)

    def interrupt(self) -> None:
        """Forgets what an engine was prefetching when it failed, because that may be the cause."""
        for found in list(self._running.values()):
            self._forget(found)

    def close(self) -> None:
        """Ends all prefetches, and starts no more."""
        self._is_closed = True
        for found in list(self._running.values()):
            self._stop(found)

    def _run(self, found: _Continuation) -> None:
        """Gives the engine a request for what isn't complete."""
        if self._is_closed or found.running or found.is_complete or found not in self._continuations.values():
            return
        if request := found.rest(self._prefix + new_request_id()):
            found.running, self._running[request.id] = request.id, found
            submitting = asyncio.ensure_future(self._submit(request))
            submitting.add_done_callback(partial(self._on_submitted, request.id))

    def _stop(self, found: _Continuation) -> None:
        """Ends the request that prefetches this. Its tokens stay."""
        if found.running:
            del self._running[found.running]
            self._end(found.running, None, "ahead")
            found.running = None

    def is_own(self, request_id: str) -> bool:
        """Tells whether this is the id of a prefetch of this server. May be called from any thread."""
        return request_id.startswith(self._prefix)

    def _on_submitted(self, request_id: str, submitting: asyncio.Future[None]) -> None:
        found = self._running.get(request_id)
        if submitting.cancelled() or submitting.exception():  # it isn't tried again
            if found:
                self._forget(found)
        elif found is None:  # it was ended before the engine had it
            self._end(request_id, None, "ahead")

    def put(self, events: abc.Sequence[Event]) -> None:
        """Takes the events of prefetches out of those of a step."""
        for event in events:
            found = self._running.get(event.request_id)
            if found is None:
                continue
            if isinstance(event, StartEvent):
                found.start = event
            elif isinstance(event, StreamEvent):
                found.events.append(event)
                self.n_tokens += len(event.sampled)
            elif isinstance(event, ErrorEvent):  # it would come again
                self._forget(found)
            elif isinstance(event, StopEvent):
                if event.finish_reason != "abort":  # else it resumes: its front or its replica has ended it
                    found.events.append(event)
            elif isinstance(event, DoneEvent):
                del self._running[event.request_id]
                found.running = None
                self._run(found)

    @property
    def _n_tokens(self) -> int:
        """The largest number of tokens that all continuations can have."""
        return sum(each.wanted * each.max_tokens for each in self._continuations.values())

    def _forget(self, found: _Continuation) -> None:
        self._stop(found)
        self._continuations = OrderedDict((key, each) for key, each in self._continuations.items() if each is not found)

    def _find(self, request: CompletionRequest, owner: str | None) -> _Continuation | None:
        return None if excludes(request, "ahead") else self._continuations.get(self._key(request, owner))

    def _key(self, request: CompletionRequest, owner: str | None) -> _Key:
        """Returns what two requests have in common if the same alternatives follow them."""
        asked = dataclasses.replace(_from_seed(request, 0), id="", ahead=0, priority=0, any_seed=False, resumed=())
        return owner, self._setting(), asked
