"""`Recovery`: what the engine is doing for whom, so that its successor can go on with it if it fails.

An exception in the engine's thread is a bug, or a limit of the machine. The requests have done nothing, and what was
told of each is enough to go on: its successor resumes them as a server resumes detached ones after its restart
(`srb.engine.asking.resume`). Their readers see a pause.

A request may be the cause. If the engine has failed twice while it worked for one, this one ends with an error, and the
others go on. It can't always say for which one it worked: a batch has rows of several. So the requests come back one at
a time, the shortest first: the next one is given to the successor when it has told something new of the one before. If
it fails again meanwhile, the request that was on its way back is taken for the cause.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from srb.engine.asking.request import CompletionRequest
from srb.engine.asking.resume import Said
from srb.engine.engine import Abandoned
from srb.engine.telling.events import AbortReason, DoneEvent, Event, FinishReason, ProgressEvent, StartEvent
from srb.errors import EngineRestartError, SrbError


@dataclass(eq=False)
class _Taken:
    """A request that an engine was given.

    told: what was told of it. aborts: what is to be aborted of it, which an engine that fails may not have done.
    in_engine: whether the present engine has it. is_back: set when the present engine has told more than its start.
    n_failures: how many engines have failed while they worked for it alone.
    """

    request: CompletionRequest
    told: Said
    aborts: list[tuple[int | None, AbortReason]] = field(default_factory=list)
    in_engine: bool = False
    is_back: asyncio.Event = field(default_factory=asyncio.Event)
    n_failures: int = 0

    @property
    def n_tokens(self) -> int:
        """How many tokens are to be computed before it goes on."""
        return self.request.prompt_tokens + sum(self.told.lengths)


class Recovery:
    """The requests that an engine has, and the way back of those that a failed one had. It belongs to the event loop.

    add: gives a request to the present engine. Raises `EngineRestartError` if that has failed.
    abort: aborts a request, or one alternative of it, in the present engine.
    put: tells events that no engine has made.
    """

    def __init__(
        self,
        add: Callable[[CompletionRequest], Awaitable[object]],
        abort: Callable[[str, int | None, AbortReason], object],
        put: Callable[[list[Event]], object],
    ) -> None:
        self._add = add
        self._abort = abort
        self._put = put
        self._taken: dict[str, _Taken] = {}
        self._on_way: dict[str, _Taken] = {}  # those that no engine has now; the first ones are next
        self._returning: _Taken | None = None  # was given to the successor, which has told nothing of it yet
        self._task: asyncio.Task[None] | None = None
        self._is_over = asyncio.Event()
        self._is_over.set()
        self._generation = 0
        self._failure: SrbError | None = None  # why there will be no engine any more

    @property
    def is_on(self) -> bool:
        """Whether an engine has failed, and not all of its requests are back."""
        return not self._is_over.is_set()

    async def take(self, request: CompletionRequest) -> None:
        """Gives a new request to the engine, as soon as no others are on their way back. Raises what `add` raises."""
        taken = self._taken[request.id] = _Taken(request, Said(request))
        try:
            while request.id in self._taken and not taken.in_engine:
                await self._is_over.wait()
                generation = self._generation
                if rest := taken.told.rest():  # else it ended while it was being given to an engine that then failed
                    await self._give(rest)
                if self._failure:
                    raise self._failure  # `fail` didn't know yet that the engine had it
                taken.in_engine = generation == self._generation
        except BaseException:
            self._taken.pop(request.id, None)
            raise

    def told(self, events: list[Event]) -> None:
        """Notes what the engine has told of one request, after its readers have it."""
        taken = self._taken.get(events[0].request_id)
        if taken is None:
            return
        taken.told.take(events)
        if isinstance(events[-1], DoneEvent):
            del self._taken[taken.request.id]
            taken.is_back.set()
        elif not taken.is_back.is_set() and not all(isinstance(each, StartEvent | ProgressEvent) for each in events):
            taken.is_back.set()

    def abort(self, request_id: str, index: int | None, reason: AbortReason) -> None:
        """Ends a request, or one alternative of it, wherever it is."""
        if taken := self._taken.get(request_id):
            taken.aborts.append((index, reason))
        if taken := self._on_way.get(request_id):
            self._end(taken, "abort", reason, index=index)
        else:
            self._abort(request_id, index, reason)

    def begin(self) -> None:
        """Makes new requests wait: the engine has failed, and its successor isn't there yet."""
        self._is_over.clear()

    def resume(self, error: Exception, abandoned: Abandoned) -> None:
        """Gives the requests of a failed engine to its successor. error: why it has failed."""
        self._generation += 1
        if self._task:
            self._task.cancel()
        cause = self._cause(error, abandoned)
        self._returning = None
        there = [taken for taken in self._taken.values() if taken.in_engine or taken.request.id in self._on_way]
        there.sort(key=lambda taken: (not taken.told.has_begun, taken.n_tokens))
        self._on_way = {taken.request.id: taken for taken in there}
        for taken in there:
            taken.in_engine = False
            taken.is_back.clear()
            for index, why in taken.aborts:
                self._end(taken, "abort", why, index=index)
        if cause:
            reason = f"the engine has failed twice on this request ({type(error).__name__}); its log says why"
            self._end(cause, "error", error=SrbError(reason, code="engine_failed"))
        self._task = asyncio.ensure_future(self._bring_back())

    def _cause(self, error: Exception, abandoned: Abandoned) -> _Taken | None:
        """The request because of which the engine has failed, if it is for the second time."""
        if isinstance(error, OSError | MemoryError):
            return None  # a full disk, no memory, too few file descriptors
        if cause := self._taken.get(abandoned.cause or ""):
            cause.n_failures += 1
            return cause if cause.n_failures > 1 else None
        suspect = self._returning
        return (
            suspect if suspect and not suspect.is_back.is_set() and suspect.request.id not in abandoned.unread else None
        )

    def drop(self, request_id: str) -> None:
        """Forgets a request. Its readers are told by somebody else."""
        self._taken.pop(request_id, None)
        self._on_way.pop(request_id, None)

    def fail(self, error: SrbError) -> list[Event]:
        """The last events of all requests: there will be no engine any more. New ones no longer wait for one."""
        if self._task:
            self._task.cancel()
        self._failure = error
        there = [taken for taken in self._taken.values() if taken.in_engine or taken.request.id in self._on_way]
        for taken in there:
            self.drop(taken.request.id)
        self._is_over.set()
        return [event for taken in there for event in taken.told.end("error", error=error)]

    async def _bring_back(self) -> None:
        while self._on_way:
            taken = next(iter(self._on_way.values()))
            request_id, rest = taken.request.id, None
            try:
                rest = taken.told.rest()
                if rest is None:
                    self._end(taken, "abort")  # only its last event is missing
                    continue
                del self._on_way[request_id]
                self._returning, taken.in_engine = taken, True
                await self._give(rest)
            except Exception as error:
                reason = error if isinstance(error, SrbError) else SrbError(f"it can't go on: {type(error).__name__}")
                self._end(taken, "error", error=reason)
                continue
            for index, why in taken.aborts:  # those that came while it was being given
                self._abort(request_id, index, why)
            await taken.is_back.wait()
        self._returning = None
        self._is_over.set()

    async def _give(self, request: CompletionRequest) -> None:
        try:
            await self._add(request)
        except EngineRestartError:  # it has failed meanwhile, and `resume` will come
            self._returning = None

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
        events = taken.told.end(finish_reason, stop_reason, error=error, index=index)
        taken.told.take(events)
        if not taken.told.living:
            self.drop(taken.request.id)
        self._put(events)
