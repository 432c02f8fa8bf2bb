"""The common interface of all wire formats: a function that reads a body, and the reply that it returns."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from srb.engine.asking.request import CompletionRequest
from srb.engine.telling.events import Event
from srb.errors import InvalidRequestError
from srb.wire.request.messages import Message
from srb.wire.serving import End, Serving

Watch = Callable[[str | None, End], AbstractContextManager[Callable[[list[Event]], object]]]
"""Watches a request for as long as a reader reads it from its beginning.

It is called in the event loop, with the owner of the request. The function gets the events as they come.
"""


class Answering(Protocol):
    """A response that a client asks for again, while its request is kept.

    Each time there is a new object, of which one method is called once.
    """

    def chunks(self, events: list[Event]) -> Iterator[dict[str, Any]]:
        """The objects of a stream, with their numbers."""

    def state(self, events: list[Event]) -> dict[str, Any]:
        """The response. events: all of its events so far."""

    def conversation(self, events: list[Event]) -> list[Message]:
        """The conversation that was sent, and the answer. Raises `InvalidRequestError` if the answer isn't finished."""


@dataclass(frozen=True)
class Reply:
    """The result of reading a body: a request, and how to answer it in one of the formats.

    completion: the request to run; None if the answer is known without running one.
    ignored: the names of the body's fields that have no effect.
    story, node: the story that the alternatives belong to, and the node there that they continue.
    stream: whether to answer while the request runs.
    make: is called once for each reader, in a worker thread, and returns what makes its answer. For a stream that has
        a method `chunks`, which turns the next events into the objects and texts to send; else it has `object`, which
        turns all events into the answer, and raises `SrbError` if there is none. None: the answer is native events.
    blame: translates the engine's refusal of the request into the terms of the body; None if they are the same.
    detach: whether the request goes on without readers.
    again: makes the object that answers clients who ask for the response again, if the format has routes for this.
    at_once: whether to answer at once with the request's state, instead of when it has finished.
    watch: watches the request for each reader, if its format must know how far it is.
    keeps: what of the body `make` and `again` hold. They are kept with the request, so they hold nothing else of the
        body, and nothing of `Serving`.
    """

    completion: CompletionRequest | None
    ignored: list[str]
    stream: bool
    make: Callable[[], Any] | None
    blame: Callable[[InvalidRequestError], InvalidRequestError] | None = None
    detach: bool = False
    story: str | None = None
    node: int | None = None
    again: Callable[[], Answering] | None = None
    at_once: bool = False
    watch: Watch | None = None
    keeps: Any = ()


Read = Callable[[bytes, Serving], Reply]
"""Reads a body. Raises `InvalidRequestError`."""
