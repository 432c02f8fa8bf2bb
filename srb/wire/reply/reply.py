"""The common interface of all wire formats: a function that reads a body, and the reply that it returns."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from srb.engine.asking.request import CompletionRequest
from srb.engine.telling.events import Event
from srb.errors import InvalidRequestError
from srb.wire.limits import Limits
from srb.wire.request.avoided import TextsOf, nothing_kept
from srb.wire.request.media import Take, not_here
from srb.wire.request.messages import Message
from srb.wire.request.places import PathTo, no_stories
from srb.wire.tokens.named_tokens import Tokenize
from srb.wire.tokens.texts import Vocabulary


def nothing_before(response_id: str) -> list[Message]:
    """The `before` of places where no responses are kept. Always raises `InvalidRequestError`."""
    raise InvalidRequestError(f"there is no response {response_id:.100}", param="previous_response_id")


@dataclass(frozen=True)
class Serving:
    """Everything beside the body that reading it needs.

    now: when the body came, in seconds since 1970. fingerprint: name and version of the program that answers.
    path_to: returns the prompt that continues a node of a story.
    texts_of: returns the texts of requests that are kept.
    take: makes a part of a prompt of images and sounds.
    before: returns the conversation that ends with a response. Raises `InvalidRequestError` if that isn't kept.
    made: if the body is read again, the request that was made of it the first time. The answer is to this request.
    """

    limits: Limits
    tokenize: Tokenize
    vocabulary: Vocabulary
    now: float
    fingerprint: str
    path_to: PathTo = no_stories
    texts_of: TextsOf = nothing_kept
    take: Take = not_here
    before: Callable[[str], list[Message]] = nothing_before
    made: CompletionRequest | None = None


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
    begin: begins an answer. It is called once for each reader, and returns a function. For a stream this function turns
        the next events into the objects and texts to send. Otherwise it turns all events into the answer, and raises
        `SrbError` if there is none. None: the answer is native events.
    blame: translates the engine's refusal of the request into the terms of the body; None if they are the same.
    detach: whether the request goes on without readers.
    again: makes the object that answers clients who ask for the response again, if the format has routes for this.
    at_once: whether to answer at once with the request's state, instead of when it has finished.
    keeps: what of the body `begin` and `again` hold. They are kept with the request, so they hold nothing else of the
        body, and nothing of `Serving`.
    """

    completion: CompletionRequest | None
    ignored: list[str]
    stream: bool
    begin: Callable[[], Callable[[list[Event]], Any]] | None
    blame: Callable[[InvalidRequestError], InvalidRequestError] | None = None
    detach: bool = False
    story: str | None = None
    node: int | None = None
    again: Callable[[], Answering] | None = None
    at_once: bool = False
    keeps: Any = ()


Read = Callable[[bytes, Serving], Reply]
"""Reads a body. Raises `InvalidRequestError`."""
