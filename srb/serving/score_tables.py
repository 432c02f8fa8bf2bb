"""`TableRun`: scores a table on an `EngineClient`, a few requests at a time."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from srb.engine.events import Usage
from srb.engine.request import new_request_id
from srb.engine.score_table import PARTS_AT_ONCE, Part, ScoredRow, Table, TableScorer
from srb.errors import SrbError
from srb.serving.event_log import EventLog, RequestStream

if TYPE_CHECKING:
    from srb.serving.engine_client import EngineClient


class TableRun:
    """A table that is being scored. Use it as a context manager, call `start`, and read its `rows`.

    Args:
        engine: scores the rows.
        table: what is scored.
        owner: whose requests the parts are, where there are API keys.
        within: `CompletionRequest.shared_within`.

    Attributes:
        usage: of the parts that are done.
        aborted: the reason if it was ended early.
        failure: the error that has ended it early, for example because the engine takes no more requests.
    """

    def __init__(self, engine: "EngineClient", table: Table, *, owner: str | None = None, within: str = "") -> None:
        self.id = new_request_id().replace("cmpl-", "score-")
        self.table = table
        self.owner = owner
        self.usage = Usage(0, 0, 0)
        self.aborted: str | None = None
        self.failure: SrbError | None = None
        self._engine = engine
        self._within = within
        self._scorer = TableScorer(table, engine.tokenize, engine.check, self.id)
        self._running: dict[asyncio.Task[None], Part] = {}
        self._is_started = False

    async def start(self) -> None:
        """Queues the first requests. Raises what `EngineClient.submit` raises."""
        n_engines = max(1, len(self._engine.health.replicas))
        while len(self._running) < PARTS_AT_ONCE * n_engines and not self.aborted:
            part = await asyncio.to_thread(self._scorer.next_part)
            if part is None:
                return
            request = replace(part.request, shared_within=self._within)
            event_log = EventLog(request, owner=self.owner)
            # Only the first one counts as a new request, so that a long table isn't refused in its middle.
            stream = await self._engine.submit(request, event_log=event_log, is_new=not self._is_started)
            self._is_started = True
            self._running[asyncio.create_task(self._follow(part, stream))] = part

    async def rows(self) -> AsyncGenerator[list[ScoredRow]]:
        """Yields the rows, grouped by context, as soon as they are scored. After the last one (`failure`)."""
        while True:
            try:
                await self.start()
            except SrbError as error:
                self.failure = error
            if rows := self._scorer.take_rows():
                yield rows
            if not self._running or self.aborted or self.failure:
                return
            ended, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                part = self._running.pop(task)
                if not task.cancelled():
                    self._take(part)

    def end(self, reason: str = "cancelled") -> None:
        """Ends it early: there are no further rows."""
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
        if part.aborted:  # the server ends, or a client has ended this part
            self.end(part.aborted)
        elif part.done:
            total, usage = self.usage, part.done.usage
            self.usage = Usage(
                total.prompt_tokens + usage.prompt_tokens,
                total.completion_tokens + usage.completion_tokens,
                total.cached_tokens + usage.cached_tokens,
            )
            self._engine.forget(part.request.id)  # its events would take memory from those of other requests
            self._scorer.put(part)
