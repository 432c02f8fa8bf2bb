"""What every wire format is to the server: the body of a request in, and the engine's events out."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from srb.engine.events import Event
from srb.engine.request import CompletionRequest
from srb.errors import InvalidRequestError
from srb.wire.avoided import TextsOf, nothing_kept
from srb.wire.limits import Limits
from srb.wire.media import Take, not_here
from srb.wire.messages import Message
from srb.wire.named_tokens import Tokenize
from srb.wire.places import PathTo, no_stories
from srb.wire.tokens import Vocabulary


def nothing_before(response_id: str) -> list[Message]:
    """Where no responses are kept. Raises `InvalidRequestError`."""
    raise InvalidRequestError(f"there is no response {response_id:.100}", param="previous_response_id")


@dataclass(frozen=True)
class Serving:
    """What a body is read with.

    now: when it came, in seconds since 1970. fingerprint: what will have made the answer, by name and version.
    path_to: tells the prompt that goes on from a node of a story.
    texts_of: tells what a request has said that is kept.
    take: makes a part of the prompt of images and sounds.
    before: tells the conversation that ends with a response. It raises `InvalidRequestError` if that isn't kept.
    made: what was made of the body when it came, if it is read again; its answer is then to that.
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
    """A response that is asked for again while its request is kept; made anew each time, and called once."""

    def chunks(self, events: list[Event]) -> Iterator[dict[str, Any]]:
        """The numbered objects of a stream."""

    def state(self, events: list[Event]) -> dict[str, Any]:
        """The response, which these are all events of so far."""

    def conversation(self, events: list[Event]) -> list[Message]:
        """What was asked, and the answer. Raises `InvalidRequestError` if that isn't over."""


@dataclass(frozen=True)
class Reply:
    """A request in one of the formats.

    completion: what to run; None if the answer is known without.
    ignored: the names of the fields in its body that have no effect.
    story, node: the story that its alternatives belong to, and the node there that they go on from.
    stream: whether to answer while it runs.
    begin: begins an answer, anew for each reader, and returns what makes it: of a stream, it turns some events into the
        objects and texts to send; else all of them into the answer, and raises `SrbError` if there is none.
        None: the answer is native events.
    blame: what the engine's refusal of the request is in terms of its body, where that isn't the same.
    detach: whether it lives on without readers.
    again: makes what answers those who come again by its format's own routes, if it has such.
    at_once: whether it's answered with its state, and not when it's over.
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


Read = Callable[[bytes, Serving], Reply]
"""Reads a body. Raises `InvalidRequestError`."""
