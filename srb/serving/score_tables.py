"""`Tabulation`: scores a table on an engine, wherever the engine is, a few requests at a time."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Protocol, Self

from srb.engine.events import Usage
from srb.engine.request import CompletionRequest, new_request_id
from srb.engine.score_table import PARTS_AT_ONCE, Part, ScoredRow, Table, Tabulating
from srb.errors import SrbError
from srb.serving.event_log import EventLog, RequestStream
from srb.serving.health import Health


class Engine(Protocol):
    """An `EngineClient`, as far as it's needed here."""

    @property
    def health(self) -> Health: ...
    def tokenize(self, text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]: ...
    def check(self, request: CompletionRequest) -> None: ...
    async def submit(
        self, request: CompletionRequest, *, journal: EventLog | None = None, is_new: bool = True
    ) -> RequestStream: ...
    def forget(self, request_id: str) -> bool: ...


class Tabulation:
    """A table that is being scored. Use it as a context manager, call `begin`, and read its `rows`.

    owner: whose requests its parts are, where there are API keys. within: see `CompletionRequest.shared_within`.
    """

    def __init__(self, engine: Engine, table: Table, *, owner: str | None = None, within: str = "") -> None:
        self.id = new_request_id().replace("cmpl-", "score-")
        self.table = table
        self.owner = owner
        self.usage = Usage(0, 0, 0)
        self.aborted: str | None = None
        """Why somebody has ended it early."""
        self.failure: SrbError | None = None
        """The fault that has ended it early: the engine takes no requests any more, for example."""
        self._engine = engine
        self._within = within
        self._work = Tabulating(table, engine.tokenize, engine.check, self.id)
        self._running: dict[asyncio.Task[None], Part] = {}
        self._has_begun = False

    async def begin(self) -> None:
        """Queues the first requests. Raises what `EngineClient.submit` raises."""
        n_engines = max(1, len(self._engine.health.replicas))
        while len(self._running) < PARTS_AT_ONCE * n_engines and not self.aborted:
            part = await asyncio.to_thread(self._work.next)
            if part is None:
                return
            request = replace(part.request, shared_within=self._within)
            journal = EventLog(request, owner=self.owner)
            # Only the first of them counts as a new request, so that a long table isn't refused in its middle.
            stream = await self._engine.submit(request, journal=journal, is_new=not self._has_begun)
            self._has_begun = True
            self._running[asyncio.create_task(self._follow(part, stream))] = part

    async def rows(self) -> AsyncGenerator[list[ScoredRow]]:
        """The rows, those of a context together, as soon as they are known. Behind the last one, see `failure`."""
        while True:
            try:
                await self.begin()
            except SrbError as error:
                self.failure = error
            if told := self._work.told():
                yield told
            if not self._running or self.aborted or self.failure:
                return
            ended, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                part = self._running.pop(task)
                if not task.cancelled():
                    self._take(part)

    def end(self, reason: str = "cancelled") -> None:
        """Ends it: there are no further rows."""
        self.aborted = reason
        for task in self._running:
            task.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    async def _follow(self, part: Part, stream: RequestStream) -> None:
        async with stream:
            async for events in stream:
                part.take(events)

    def _take(self, part: Part) -> None:
        if part.aborted:  # the server ends, or somebody has ended this part
            self.end(part.aborted)
        elif part.done:
            one, other = self.usage, part.done.usage
            self.usage = Usage(
                one.prompt_tokens + other.prompt_tokens,
                one.completion_tokens + other.completion_tokens,
                one.cached_tokens + other.cached_tokens,
            )
            self._engine.forget(part.request.id)  # its events would take the room of others'
            self._work.put(part)
