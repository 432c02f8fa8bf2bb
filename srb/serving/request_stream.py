"""`RequestStream` reads a request's events. It may begin late, be slow, or leave early."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Self

from srb.engine.asking.request import CompletionRequest
from srb.engine.telling.events import Event
from srb.errors import UnavailableError
from srb.serving.journal import Cursor, Journal


class RequestStream:
    """A reader of a request: `async for events in stream`.

    Close the stream, or use it as a context manager. When the last reader of a request has left, the request is
    cancelled, unless it was submitted to live on.

    left: is called once, when the stream is closed. after: the id of the event behind which the stream begins.
    Raises `InvalidRequestError` if there is no such event.
    """

    def __init__(self, journal: Journal, left: Callable[["RequestStream"], object], *, after: int = 0) -> None:
        self.journal = journal
        self._cursor = Cursor(journal, after)
        self._left = left
        self._closed = False
        self._is_cut_off = False
        self._news = asyncio.Event()

    @property
    def request(self) -> CompletionRequest:
        """The request whose events these are."""
        return self.journal.request

    @property
    def at_end(self) -> bool:
        """Whether the stream has read the last event that will ever come."""
        return self.journal.done and self._cursor.at == len(self.journal)

    def __aiter__(self) -> AsyncIterator[list[Event]]:
        return self

    async def __anext__(self) -> list[Event]:
        """The next events, at least one. It may be cancelled, and no event is lost."""
        return [event for _, event in await self.numbered()]

    async def numbered(self) -> list[tuple[int, Event]]:
        """The next events with their ids, at least one. Raises `StopAsyncIteration` behind the last one."""
        while not (events := self._cursor.read()):
            if self.at_end or self._is_cut_off:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return events

    async def collect(self) -> list[Event]:
        """All events to the last. Raises what `raise_refusal` raises."""
        events = [event async for batch in self for event in batch]
        self.raise_refusal()
        return events

    def raise_refusal(self) -> None:
        """Call this when the stream has ended.

        Raises `UnavailableError` if the server has ended the request before it started, or if the server ends and
        the request goes on after its next start.
        """
        if self._is_cut_off and not self.at_end:
            raise UnavailableError(
                f"the server is shutting down, or has failed; request {self.request.id} goes on with its next start"
            )
        self.journal.raise_refusal()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the request."""
        if not self._closed:
            self._closed = True
            self._left(self)

    def cut_off(self) -> None:
        """Ends the stream before the last event, because this event will come after a restart."""
        self._is_cut_off = True
        self.wake()

    def wake(self) -> None:
        """Tells the stream that the journal has new events."""
        self._news.set()
