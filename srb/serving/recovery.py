"""`Recovery`: resumes the requests of an engine that failed on the engine that replaces it.

An exception in the engine's thread is a bug, or a limit of the machine. Usually no request is to blame, and the events
so far are enough to resume each one, as a server resumes detached requests after a restart
(`srb.engine.resume`). Readers see a pause.

A request may be the cause. The engine can't always name it, because a batch has rows of several. So the requests are
resumed one at a time, the shortest first: the next one waits until the one before has gone on for two steps. The
suspect of a failure is the request that the engine names, or else the one that was being resumed. It is resumed first.
If it is the suspect of the next failure, too, it ends with an error, and the failures since it came count no more.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from srb.engine.engine import Abandoned
from srb.engine.events import AbortReason, DoneEvent, Event, FinishReason, ProgressEvent, StartEvent
from srb.engine.request import CompletionRequest
from srb.engine.resume import RequestProgress
from srb.errors import EngineRestartError, SrbError


@dataclass(eq=False)
class _Taken:
    """A request that was given to an engine.

    Attributes:
        progress: its events so far.
        priority: its present one.
        aborts: those of clients. An engine that fails may have lost them.
        in_engine: whether the present engine has it.
        n_steps: the number of steps of this engine that it has events of, besides its start.
        is_back: set by the second of these. The first one only needs the prompt to be computed.
        since: when it came, in seconds of the monotonic clock.
    """

    request: CompletionRequest
    progress: RequestProgress
    priority: int
    aborts: list[tuple[int | None, AbortReason]] = field(default_factory=list)
    in_engine: bool = False
    n_steps: int = 0
    is_back: asyncio.Event = field(default_factory=asyncio.Event)
    since: float = field(default_factory=time.monotonic)

    @property
    def n_tokens(self) -> int:
        """The number of tokens to compute before it resumes."""
        return self.request.prompt_tokens + sum(self.progress.lengths)


class Recovery:
    """The requests of an engine, and of those that failed before it. It belongs to the event loop.

    Args:
        add: gives a request to the present engine. Raises `EngineRestartError` if that engine has failed.
        abort: aborts a request, or one alternative of it, in the present engine.
        deliver: delivers events that no engine has made.

    Attributes:
        n_ended: the number of requests that have ended as the cause of failures since one has gone on. An engine that
            fails on each request is broken.
    """

    def __init__(
        self,
        add: Callable[[CompletionRequest], Awaitable[object]],
        abort: Callable[[str, int | None, AbortReason], object],
        deliver: Callable[[list[Event]], object],
    ) -> None:
        self._add = add
        self._abort = abort
        self._deliver = deliver
        self._taken: dict[str, _Taken] = {}
        self._pending: dict[str, _Taken] = {}  # in no engine now; resumed in this order
        self._resuming: _Taken | None = None  # given to the engine, without an event so far
        self._suspect: _Taken | None = None  # that of the last failure
        self.n_ended = 0
        self._task: asyncio.Task[None] | None = None
        self._is_over = asyncio.Event()
        self._is_over.set()
        self._generation = 0
        self._failure: SrbError | None = None  # why there will be no engine any more

    async def take(self, request: CompletionRequest) -> None:
        """Gives a new request to the engine, after all requests of a failed one. Raises what `add` raises."""
        taken = self._taken[request.id] = _Taken(request, RequestProgress(request), request.priority)
        try:
            while request.id in self._taken and not taken.in_engine:
                if not self._is_over.is_set():  # also again: the next engine may fail before a woken task goes on
                    await self._is_over.wait()
                    continue
                generation = self._generation
                if rest := taken.progress.remainder():  # else it ended while the engine took it and failed
                    await self._give(rest, taken.priority)
                if self._failure and request.id in self._taken:
                    raise self._failure  # `fail` came before the engine had it
                taken.in_engine |= generation == self._generation
        except BaseException:
            self.drop(request.id)
            raise

    def put(self, events: list[Event]) -> None:
        """Takes the engine's events of one request, after they were delivered."""
        taken = self._taken.get(events[0].request_id)
        if taken is None:
            return
        taken.in_engine = True  # `take` may not know it yet
        taken.progress.add(events)
        if isinstance(events[-1], DoneEvent):
            del self._taken[taken.request.id]
            taken.is_back.set()
        elif not all(isinstance(each, StartEvent | ProgressEvent) for each in events):
            taken.n_steps += 1
            if taken.n_steps == 2:
                taken.is_back.set()
                self.n_ended = 0

    def abort(self, request_id: str, index: int | None, reason: AbortReason) -> None:
        """Ends a request, or one alternative of it, wherever it is."""
        if taken := self._taken.get(request_id):
            taken.aborts.append((index, reason))
        if taken := self._pending.get(request_id):
            self._end(taken, "abort", reason, index=index)
        else:
            self._abort(request_id, index, reason)

    def prioritize(self, request_id: str, priority: int) -> None:
        """Notes the priority that a request resumes with."""
        if taken := self._taken.get(request_id):
            taken.priority = priority

    def interrupt(self, error: Exception, abandoned: Abandoned) -> float | None:
        """Takes the requests of an engine that has failed. They and new ones wait for `resume`.

        Args:
            error: why it failed.
            abandoned: what is known of the failure.

        Returns:
            When the request came that is the cause and has ended now, in seconds of the monotonic clock; None: no
            request is to blame.
        """
        self._is_over.clear()
        self._generation += 1
        if self._task:
            self._task.cancel()
        suspect = self._find_suspect(error, abandoned)
        is_cause = suspect is not None and suspect is self._suspect
        lost = [taken for taken in self._taken.values() if taken.in_engine or taken.request.id in self._pending]
        lost.sort(key=lambda taken: (taken is not suspect, not taken.progress.has_begun, taken.n_tokens))
        self._pending = {taken.request.id: taken for taken in lost}
        for taken in lost:
            taken.in_engine, taken.n_steps = False, 0
            taken.is_back.clear()
            for index, why in taken.aborts:
                self._end(taken, "abort", why, index=index)
        if suspect and is_cause:
            self.n_ended += 1
            reason = f"the engine has failed twice on this request ({type(error).__name__}); its log says why"
            self._end(suspect, "error", error=SrbError(reason, code="engine_failed"))
        self._suspect, self._resuming = suspect, None
        return suspect.since if suspect and is_cause else None

    def resume(self) -> None:
        """Resumes the requests of a failed engine on the present one."""
        self._task = asyncio.ensure_future(self._resume_pending())

    def _find_suspect(self, error: Exception, abandoned: Abandoned) -> _Taken | None:
        if isinstance(error, OSError | MemoryError):
            return None  # a full disk, no memory, too few file descriptors: no request is to blame
        if named := self._taken.get(abandoned.cause or ""):
            return named
        resuming = self._resuming
        if resuming is None or resuming.is_back.is_set() or resuming.request.id in abandoned.unread:
            return None
        return resuming

    def drop(self, request_id: str) -> None:
        """Removes a request without an event."""
        self._taken.pop(request_id, None)
        self._pending.pop(request_id, None)

    def fail(self, error: SrbError) -> list[Event]:
        """Ends all requests, because no engine follows. Returns their last events."""
        if self._task:
            self._task.cancel()
        self._failure = error
        lost = [taken for taken in self._taken.values() if taken.in_engine or taken.request.id in self._pending]
        for taken in lost:
            self.drop(taken.request.id)
        self._is_over.set()
        return [event for taken in lost for event in taken.progress.end("error", error=error)]

    async def _resume_pending(self) -> None:
        while self._pending:
            taken = next(iter(self._pending.values()))
            request_id = taken.request.id
            try:
                rest = taken.progress.remainder()
                if rest is None:
                    self._end(taken, "abort")  # only its last event is missing
                    continue
                del self._pending[request_id]
                self._resuming, taken.in_engine = taken, True
                await self._give(rest, taken.priority)
            except Exception as error:
                reason = error if isinstance(error, SrbError) else SrbError(f"it can't resume: {type(error).__name__}")
                self._end(taken, "error", error=reason)
                continue
            for index, why in taken.aborts:  # those that came while it was being given
                self._abort(request_id, index, why)
            await taken.is_back.wait()
        self._resuming = None
        self._is_over.set()

    async def _give(self, request: CompletionRequest, priority: int) -> None:
        try:
            await self._add(replace(request, priority=priority))
        except EngineRestartError:  # it has failed meanwhile, and `resume` will come
            self._resuming = None

    def _end(
        self,
        taken: _Taken,
        finish_reason: FinishReason,
        stop_reason: str | None = None,
        *,
        error: SrbError | None = None,
        index: int | None = None,
    ) -> None:
        """Ends a request that no engine has, or one alternative of it."""
        if taken.request.id not in self._taken:
            return  # it has ended already
        events = taken.progress.end(finish_reason, stop_reason, error=error, index=index)
        taken.progress.add(events)
        if not taken.progress.living:
            self.drop(taken.request.id)
        self._deliver(events)
