"""`Feeds` knows who watches which story, and tells them when something in it is new."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from srb.engine.events import DoneEvent, Event, StopEvent, StreamEvent
from srb.serving.event_log import Cursor, EventLog


class Watcher:
    """A client that watches a story.

    news: is set when the story has changed, or a text in it has grown. changed: whether the story itself has changed.
    """

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.changed = True


class Growing:
    """The growing nodes of a running request, for one watcher. nodes: the nodes' ids by the alternatives' indices."""

    def __init__(self, journal: EventLog, nodes: dict[int, int]) -> None:
        self.journal = journal
        self._nodes = nodes
        self._cursor = Cursor(journal, len(journal))

    @property
    def at_end(self) -> bool:
        """Whether nothing more will come."""
        return self.journal.done and self._cursor.at == len(self.journal)

    def read(self) -> dict[int, str]:
        """The text that has come since the last call, by node."""
        texts: dict[int, str] = {}
        while events := self._cursor.read():
            for _, event in events:
                if isinstance(event, StreamEvent) and event.index in self._nodes:
                    node = self._nodes[event.index]
                    texts[node] = texts.get(node, "") + event.text
        return texts


class Feeds:
    """The watchers of all stories, and the requests that write in them. It belongs to the event loop."""

    def __init__(self) -> None:
        self._watchers: dict[str, set[Watcher]] = {}
        self._stories: dict[str, str] = {}
        self.closed = False

    @contextmanager
    def watch(self, story: str) -> Iterator[Watcher]:
        """A watcher, which is told of news of the story as long as the block runs."""
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
        """Tells the watchers that there is news of a story. changed: see `Watcher`."""
        for watcher in self._watchers.get(story, ()):
            watcher.changed |= changed
            watcher.news.set()

    def add_writer(self, request_id: str, story: str) -> None:
        """Says that a request writes in a story, until `tell_events` gets its last event."""
        self._stories[request_id] = story
        self.tell(story)

    def remove_writer(self, request_id: str) -> None:
        """Says that a request won't write, because the engine hasn't taken it."""
        self._stories.pop(request_id, None)

    def writers(self, story: str) -> list[str]:
        """The ids of the requests that write in a story."""
        return [request_id for request_id, each in self._stories.items() if each == story]

    def tell_events(self, events: Iterable[Event]) -> None:
        """Tells the watchers of the stories that these events belong to. Readers may see the events by now."""
        if not self._stories:
            return
        for event in events:
            if story := self._stories.get(event.request_id):
                self.tell(story, changed=isinstance(event, StopEvent))
                if isinstance(event, DoneEvent):
                    del self._stories[event.request_id]

    def tell_all(self) -> None:
        """Tells all watchers that there may be news of their stories."""
        for story in self._watchers:
            self.tell(story)

    def close(self) -> None:
        """Ends all watching."""
        self.closed = True
        self.tell_all()
