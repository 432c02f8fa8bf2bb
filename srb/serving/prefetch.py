"""`Prefetcher`: draws further alternatives of requests that have ended, while nobody waits.

A reader who doesn't like a text mostly asks for the same again: the next swipe. So an idle engine goes on with the
seeds that follow. Who then asks for the same with the next seed, or with any, gets what is there, and the rest as it
comes: for the engine, this is a request that was interrupted, and goes on (`srb.engine.resume`). So the texts
are the same as if nothing had been drawn ahead.

What is drawn here runs only while nothing else does. It is ended before the next request is looked at, and goes on from
its last token when the engine is idle again. It has no journal, no line in the log and no place in the history, until
somebody asks for it.
"""

import asyncio
import dataclasses
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

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
from srb.engine.request import CompletionRequest, new_request_id
from srb.engine.resume import resume
from srb.engine.sampling_params import MAX_SEED
from srb.engine.validation.exclusions import hinders_ahead
from srb.serving.event_log import EventLog

_PREFIX = "ahead-"
"""How the ids of the requests begin that draw ahead."""

MOST_REQUESTS = 16
"""For so many requests the alternatives that were drawn ahead are kept. The request that ended first makes room."""

MOST_TOKENS = 500_000
"""So many tokens may the alternatives have that are kept: each takes 0.23 KB of memory, more with `logprobs`."""

_Key = tuple[str | None, Hashable, CompletionRequest]
"""The owner, the setting, and what is asked for."""


@dataclass
class _Drawn:
    """What there is of an alternative: its events so far, with whatever id and index, and the last one."""

    events: list[StreamEvent] = field(default_factory=list)
    stop: StopEvent | None = None


@dataclass
class _Next:
    """The alternatives that come next for a request.

    request: it has one branch, with the seed of the first of them. wanted: how many are to be there.
    max_tokens: how many tokens each may have.
    """

    request: CompletionRequest
    max_tokens: int
    wanted: int = 0
    start: StartEvent | None = None
    drawn: list[_Drawn] = field(default_factory=list)

    @property
    def seed(self) -> int:
        """The seed of the first one."""
        return self.request.branches[0].seed

    @property
    def is_complete(self) -> bool:
        """Whether all that are wanted have ended."""
        return sum(each.stop is not None for each in self.drawn[: self.wanted]) == self.wanted

    def to_draw(self, request_id: str) -> CompletionRequest | None:
        """The request for those that aren't complete."""
        self.drawn += [_Drawn() for _ in range(self.wanted - len(self.drawn))]
        branches = self.request.branches[0].alternatives(self.wanted)
        request = dataclasses.replace(self.request, branches=branches, id=request_id)
        return resume(request, self.said(request))

    def said(self, request: CompletionRequest) -> list[Event]:
        """The events of a request for the first of them, as far as they were drawn."""
        drawn = self.drawn[: request.count]
        if self.start is None or not any(each.events or each.stop for each in drawn):
            return []
        events: list[Event] = [
            dataclasses.replace(
                self.start,
                request_id=request.id,
                count=request.count,
                cached_tokens=request.prompt_tokens,
                seeds=tuple(params.seed for params in request.branches),
                labels=tuple(params.label for params in request.branches),
                guided=request.guided,
            )
        ]
        for index, each in enumerate(drawn):
            events += _renamed(each, request.id, index, self.start.n_cut)
        stops = [each.stop for each in drawn if each.stop]
        if len(stops) == request.count:
            n_tokens = sum(stop.length for stop in stops)
            usage = Usage(request.prompt_tokens, n_tokens, request.prompt_tokens)
            events.append(DoneEvent(request.id, request.count, usage, _at_once(n_tokens, self.start.n_cut)))
        return events

    def take(self, n: int) -> Callable[[], None]:
        """Takes the first n out: somebody has them. What it returns puts them back, unless others were taken since."""
        taken, wanted, before = self.drawn[:n], self.wanted, self.request
        del self.drawn[:n]
        self.wanted = max(0, self.wanted - n)
        self.request = after = _from_seed(self.request, (self.seed + n) % (MAX_SEED + 1))

        def put_back() -> None:
            if self.request is after:
                self.drawn[:0], self.request, self.wanted = taken, before, max(self.wanted, wanted)

        return put_back


def _renamed(drawn: _Drawn, request_id: str, index: int, n_cut: int) -> Iterator[Event]:
    for event in drawn.events:
        yield dataclasses.replace(event, request_id=request_id, index=index)
    if drawn.stop:
        timings = _at_once(drawn.stop.length, n_cut)
        yield dataclasses.replace(drawn.stop, request_id=request_id, index=index, timings=timings)


def _at_once(n_tokens: int, n_cut: int) -> Timings:
    """The timings of what was there when it was asked for."""
    return Timings(queued_ms=0.0, prompt_n=0, prompt_ms=0.0, predicted_n=n_tokens, predicted_ms=0.0, n_cut=n_cut)


def _from_seed(request: CompletionRequest, seed: int) -> CompletionRequest:
    return dataclasses.replace(request, branches=(dataclasses.replace(request.branches[0], seed=seed),))


def draws_ahead(request_id: str) -> bool:
    """Whether the request with this id draws ahead, for whichever engine or server."""
    return request_id.startswith(_PREFIX)


class Prefetcher:
    """What is drawn ahead for an engine, or for several. It belongs to the event loop.

    take: makes the engine take a request. end: makes it end this request, once it has taken it.
    setting: what the texts depend on beside their requests: the scales of adapters.
    is_idle: whether the engine takes requests, and has none.
    """

    def __init__(
        self,
        take: Callable[[CompletionRequest], Awaitable[None]],
        end: Callable[[str, None, AbortReason], object],
        setting: Callable[[], Hashable],
        is_idle: Callable[[], bool],
    ) -> None:
        self._take = take
        self._end = end
        self._setting = setting
        self._is_idle = is_idle
        self._prefix = f"{_PREFIX}{uuid.uuid4().hex}-"
        self._n_paused = 0
        self._next: OrderedDict[_Key, _Next] = OrderedDict()  # those of the request that ended last come last
        self._drawing: tuple[str, _Next] | None = None  # the id of the request that runs now
        self.n_tokens = 0
        """How many tokens were drawn ahead since the start."""
        self.n_given = 0
        """How many alternatives were there, or had begun, when somebody asked for them."""

    @property
    def is_drawing(self) -> bool:
        """Whether it has the engine now."""
        return self._drawing is not None

    def give(
        self, request: CompletionRequest, owner: str | None = None
    ) -> tuple[CompletionRequest, list[Event], Callable[[], None]]:
        """The request with the seeds of what was drawn ahead, if it wants this, and the events that there are of it.

        They are given once. The last value takes them back, if the request is refused. What is drawn now is ended.
        """
        self.make_way()
        found = self._find(request, owner) if self._next else None
        if found is None or (not request.any_seed and request.branches[0].seed != found.seed):
            return request, [], lambda: None
        n = len(request.branches)
        seeds = found.request.branches[0].alternatives(n)
        branches = tuple(
            dataclasses.replace(params, seed=each.seed) for params, each in zip(request.branches, seeds, strict=True)
        )
        request = dataclasses.replace(request, branches=branches)
        events = found.said(request)
        self.n_given += len({event.index for event in events if isinstance(event, StreamEvent | StopEvent)})
        return request, events, found.take(n)

    def note(self, journal: EventLog) -> None:
        """Notes what comes next for a request that has ended, if it asks for that, and wasn't ended early."""
        request = journal.request
        if not request.ahead or journal.aborted or any(stop.finish_reason == "error" for stop in journal.stops):
            return
        key = self._key(request, journal.owner)
        seed = (request.branches[-1].seed + 1) % (MAX_SEED + 1)
        found = self._next.pop(key, None)
        if found is None or found.seed != seed:
            first = dataclasses.replace(request.branches[0], seed=seed)
            if first.max_tokens == -1:  # each has as many as these had
                first = dataclasses.replace(first, max_tokens=journal.max_tokens)
            request = dataclasses.replace(request, branches=(first,), any_seed=False, resumed=())
            found = _Next(request, max(1, journal.max_tokens))
        found.wanted = max(1, min(request.ahead, MOST_TOKENS // found.max_tokens))
        self._next[key] = found
        while len(self._next) > MOST_REQUESTS or self._n_tokens > MOST_TOKENS:
            self._next.popitem(last=False)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While the block runs, nothing is drawn, because somebody waits."""
        self._n_paused += 1
        self.make_way()
        try:
            yield
        finally:
            self._n_paused -= 1
            self.draw()

    def draw(self) -> None:
        """Goes on with what isn't complete, of the request that ended last, if nobody waits now."""
        if not self._next or self.is_drawing or self._n_paused or not self._is_idle():
            return
        setting = self._setting()
        there = [each for (_, its, _), each in self._next.items() if its == setting and not each.is_complete]
        if there and (request := (found := there[-1]).to_draw(self._prefix + new_request_id())):
            self._drawing = request.id, found
            taking = asyncio.ensure_future(self._take(request))
            taking.add_done_callback(partial(self._on_taken, request.id))

    def make_way(self) -> None:
        """Ends what is drawn now. What it has is kept."""
        if self._drawing:
            request_id, _ = self._drawing
            self._drawing = None
            self._end(request_id, None, "ahead")

    def interrupt(self) -> str | None:
        """Says that the engine has lost what is drawn now. Returns the id of its request. What it has is kept."""
        request_id = self._drawing[0] if self._drawing else None
        self._drawing = None
        return request_id

    def is_own(self, request_id: str) -> bool:
        """Whether this draws, or has drawn, with the request of this id. May be called from any thread."""
        return request_id.startswith(self._prefix)

    def _drawn_with(self, request_id: str) -> _Next | None:
        """What is drawn now, if it is with the request of this id."""
        return self._drawing[1] if self._drawing and self._drawing[0] == request_id else None

    def _on_taken(self, request_id: str, taking: asyncio.Future[None]) -> None:
        found = self._drawn_with(request_id)
        if taking.cancelled() or taking.exception():  # it isn't tried again
            if found:
                self._forget(found)
        elif found is None:  # it had to make way meanwhile
            self._end(request_id, None, "ahead")

    def put(self, events: Sequence[Event]) -> None:
        """Takes what it was given of the events of a step."""
        for event in events:
            found = self._drawn_with(event.request_id)
            if found is None:
                continue
            if isinstance(event, StartEvent):
                found.start = event
            elif isinstance(event, StreamEvent):
                found.drawn[event.index].events.append(event)
                self.n_tokens += len(event.drawn)
            elif isinstance(event, ErrorEvent):  # it would come again
                self._forget(found)
            elif isinstance(event, StopEvent):
                if event.finish_reason != "abort":  # else it goes on later: a replica has made way for somebody
                    found.drawn[event.index].stop = event
            elif isinstance(event, DoneEvent):
                self._drawing = None
                if found.is_complete:
                    self.draw()

    @property
    def _n_tokens(self) -> int:
        """How many tokens there may be, when all is drawn."""
        return sum(each.wanted * each.max_tokens for each in self._next.values())

    def _forget(self, found: _Next) -> None:
        self.make_way()
        self._next = OrderedDict((key, each) for key, each in self._next.items() if each is not found)

    def _find(self, request: CompletionRequest, owner: str | None) -> _Next | None:
        return None if hinders_ahead(request) else self._next.get(self._key(request, owner))

    def _key(self, request: CompletionRequest, owner: str | None) -> _Key:
        """What two requests have in common for which the same comes next."""
        asked = dataclasses.replace(_from_seed(request, 0), id="", ahead=0, any_seed=False, resumed=())
        return owner, self._setting(), asked
