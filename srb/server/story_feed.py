"""Who watches which story, to be told of what is new in it."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from srb.engine.events import DoneEvent, Event, StopEvent, StreamEvent
from srb.journal import Cursor, Journal


class Watcher:
    """Somebody who watches a story. news: it has changed, or a text in it has grown. changed: which of both."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.changed = True


class Growing:
    """The nodes of a request that runs, for one who watches them. nodes: their ids by index."""

    def __init__(self, journal: Journal, nodes: dict[int, int]) -> None:
        self.journal = journal
        self._nodes = nodes
        self._cursor = Cursor(journal, len(journal))

    @property
    def at_end(self) -> bool:
        """Whether nothing more will come."""
        return self.journal.done and self._cursor.at == len(self.journal)

    def read(self) -> dict[int, str]:
        """What has come since the last call, by node."""
        texts: dict[int, str] = {}
        while events := self._cursor.read():
            for _, event in events:
                if isinstance(event, StreamEvent) and event.index in self._nodes:
                    node = self._nodes[event.index]
                    texts[node] = texts.get(node, "") + event.text
        return texts


class Feeds:
    """The watchers of all stories, and the requests that write there. Belongs to the event loop."""

    def __init__(self) -> None:
        self._watchers: dict[str, set[Watcher]] = {}
        self._stories: dict[str, str] = {}
        self.closed = False

    @contextmanager
    def watch(self, story: str) -> Iterator[Watcher]:
        """Begins to tell somebody of a story."""
        watcher = Watcher()
        watchers = self._watchers.setdefault(story, set())
        watchers.add(watcher)
        try:
            yield watcher
        finally:
            watchers.discard(watcher)
            if not watchers:
                self._watchers.pop(story, None)

    def tell(self, story: str, *, changed: bool = True) -> None:
        """There is news of a story."""
        for watcher in self._watchers.get(story, ()):
            watcher.changed |= changed
            watcher.news.set()

    def add_writer(self, request_id: str, story: str) -> None:
        """A request writes at a story, until its last event is told."""
        self._stories[request_id] = story
        self.tell(story)

    def remove_writer(self, request_id: str) -> None:
        """A request that doesn't come to write."""
        self._stories.pop(request_id, None)

    def writers(self, story: str) -> list[str]:
        """The ids of the requests that write at a story."""
        return [request_id for request_id, each in self._stories.items() if each == story]

    def tell_events(self, events: Iterable[Event]) -> None:
        """There are these events of requests; what they say can be read."""
        if not self._stories:
            return
        for event in events:
            if story := self._stories.get(event.request_id):
                self.tell(story, changed=isinstance(event, StopEvent))
                if isinstance(event, DoneEvent):
                    del self._stories[event.request_id]

    def close(self) -> None:
        """Lets all who watch go."""
        self.closed = True
        for story in self._watchers:
            self.tell(story)
