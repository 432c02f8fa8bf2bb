"""`Recovery`: resumes the requests of an engine that failed on the engine that replaces it.

An exception in the engine's thread is a bug, or a limit of the machine. Usually no request is to blame, and the event
logs are enough to resume each one, as a server resumes detached requests after a restart (`srb.engine.resume`). Readers
see a pause.

A request may be the cause. The engine can't always name it, because a batch has rows of several. So the requests are
resumed one at a time, the most urgent first, of these the shortest: the next one waits until the one before has gone on
for two steps, unless that is paused for a more urgent one. The suspect of a failure is the request that the engine
names, or else the one that was being resumed. It is resumed first. If it is the suspect of the next failure, too, it
ends with an error.

A failure and a restart are told in order with the events, so the logs are complete when requests resume.
"""

import asyncio
from collections.abc import Awaitable, Callable

from srb.engine.events import AbortReason, Event, FinishReason
from srb.engine.request import CompletionRequest
from srb.engine.resume import ending, resume
from srb.errors import EngineRestartError, SrbError
from srb.serving.event_log import EventLog
from srb.serving.request_registry import RequestRegistry


class Recovery:
    """Gives requests to an engine, and again to the one that replaces it. It belongs to the event loop.

    Args:
        registry: has the requests, but for prefetches, which don't resume.
        add: gives a request to the present engine. Raises `EngineRestartError` if that engine has failed.
        put: delivers events that no engine has made.

    Attributes:
        n_failures: the number of failures since a request has gone on. An engine that fails on each request is broken.
    """

    def __init__(
        self,
        registry: RequestRegistry,
        add: Callable[[CompletionRequest], Awaitable[object]],
        put: Callable[[list[Event]], object],
    ) -> None:
        self._registry = registry
        self._add = add
        self._put = put
        self._pending: list[EventLog] = []  # in no engine now; resumed in this order
        self._resuming: EventLog | None = None
        self._n_steps = 0  # those that its log had when the engine got it
        self._suspect: EventLog | None = None  # that of the last failure
        self.n_failures = 0
        self._task: asyncio.Task[None] | None = None
        self._is_over = asyncio.Event()
        self._is_over.set()
        self._generation = 0
        self._failure: SrbError | None = None  # why there will be no engine any more

    async def take(self, request: CompletionRequest) -> None:
        """Gives a new request to the engine, after all requests of a failed one. Raises what `add` raises."""
        while not self._is_over.is_set():  # also again: the next engine may fail before a woken task goes on
            await self._is_over.wait()
        if self._failure:
            raise self._failure
        generation = self._generation
        self._registry.given(request.id)
        try:
            await self._give(request)
        except Exception:
            if generation == self._generation:
                raise  # else it resumes with the others
        if self._failure:
            raise self._failure

    def abort(self, request_id: str, reason: AbortReason) -> None:
        """Ends a request that no engine has."""
        for log in [each for each in self._pending if each.request.id == request_id]:
            self._pending.remove(log)
            self._put_endings([log], "abort", reason)

    def interrupt(self, error: Exception, cause: str | None) -> None:
        """Takes the requests of an engine that has failed. They and new ones wait for `resume`.

        Args:
            error: why it failed.
            cause: the id of the request that it was working on; None if it was working on several.
        """
        if self._resuming is not None and self._is_back(self._resuming):  # `_resume_pending` may not know it yet
            self._resuming, self.n_failures = None, 0
        self.n_failures += 1
        self._is_over.clear()
        self._generation += 1
        if self._task:
            self._task.cancel()
        self._pending = self._registry.in_engine
        suspect = self._find_suspect(error, cause)
        for log in [each for each in self._pending if each.aborted]:
            self.abort(log.request.id, log.aborts[None])
        if suspect is not None and suspect is self._suspect:
            self._pending = [each for each in self._pending if each is not suspect]
            reason = f"the engine has failed twice on this request ({type(error).__name__}); its log says why"
            self._put_endings([suspect], "error", error=SrbError(reason, code="engine_failed"))
        self._pending.sort(key=lambda log: (log is not suspect, log.priority, not log.started, log.n_tokens))
        self._suspect, self._resuming = suspect, None

    def resume(self) -> None:
        """Resumes the requests of a failed engine on the present one."""
        self._task = asyncio.ensure_future(self._resume_pending())

    def _find_suspect(self, error: Exception, cause: str | None) -> EventLog | None:
        if isinstance(error, OSError | MemoryError):
            return None  # a full disk, no memory, too few file descriptors: no request is to blame
        return next((log for log in self._pending if log.request.id == cause), self._resuming)

    def _is_back(self, log: EventLog) -> bool:
        """Tells whether the resumed request goes on. Its first step only needs the prompt to be computed."""
        return log.n_steps >= self._n_steps + 2

    def fail(self, error: SrbError) -> None:
        """Ends all requests, because no engine follows."""
        if self._task:
            self._task.cancel()
        self._failure = error
        self._pending = []
        self._put_endings(self._registry.in_engine, "error", error=error)
        self._is_over.set()

    async def _resume_pending(self) -> None:
        while self._pending:
            log = self._resuming = self._pending.pop(0)
            self._n_steps = log.n_steps
            try:
                if rest := resume(log.request, log.events):
                    await self._give(rest)
                    self._registry.taken(log.request.id)
                else:
                    self._put_endings([log], "stop")  # only its last event is missing
            except Exception as error:
                reason = error if isinstance(error, SrbError) else SrbError(f"it can't resume: {type(error).__name__}")
                self._put_endings([log], "error", error=reason)
            given = (each for each in self._registry.in_engine if each not in self._pending)
            is_paused = any(each.priority < log.priority for each in given)
            while not is_paused and not self._is_back(log) and await log.grown(len(log)):
                pass
            if self._is_back(log):
                self.n_failures = 0
        self._resuming = None
        self._is_over.set()

    async def _give(self, request: CompletionRequest) -> None:
        try:
            await self._add(request)
        except EngineRestartError:  # it has failed meanwhile, and `resume` will come
            self._resuming = None

    def _put_endings(
        self,
        logs: list[EventLog],
        finish_reason: FinishReason,
        stop_reason: str | None = None,
        *,
        error: SrbError | None = None,
    ) -> None:
        """Ends requests that no engine has, all at once."""
        events: list[Event] = []
        for log in logs:
            log.is_given = False
            events += ending(log.request, log.events, finish_reason, stop_reason, error=error)
        self._put(events)
