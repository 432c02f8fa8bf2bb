"""`Serving`: all that formats may know of a server, beside the body of a request."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from srb.engine.events import AbortReason
from srb.engine.model import ChatTemplate, Embedder, Tokenizer
from srb.engine.request import CompletionRequest
from srb.engine.stats import EngineStats
from srb.errors import InvalidRequestError
from srb.serving.health import Health
from srb.wire.limits import Limits
from srb.wire.request.media import Take, not_here
from srb.wire.request.messages import Message
from srb.wire.request.stored_texts import PathTo, TextsOf, no_stories, nothing_kept
from srb.wire.tokens import Vocabulary

Told = tuple[Any, list[str]]
"""The JSON of an answer, and the names of the body's fields that have no effect."""

End = Callable[[str, int | None, AbortReason], bool]
"""Ends a request, or one alternative of it: `EngineClient.abort`."""

Remembered = TypeVar("Remembered")


class Engine(Protocol):
    """`EngineClient`, as formats see it. Before the model is loaded, facts about it raise `UnavailableError`."""

    @property
    def health(self) -> Health: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def chat_template(self) -> ChatTemplate | None: ...
    @property
    def n_cells(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def embedder(self) -> Embedder | None: ...
    @property
    def media_kinds(self) -> Collection[str]: ...
    def tokenize(self, text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]: ...


def nothing_before(response_id: str) -> list[Message]:
    """The `before` of places where no responses are kept. Always raises `InvalidRequestError`."""
    raise InvalidRequestError(f"there is no response {response_id:.100}", param="previous_response_id")


@dataclass(frozen=True)
class Serving:
    """Everything beside the body that an answer is made of.

    now, created: when the request came and when the server began, in seconds since 1970. version: of srb.
    owner: who asks; None if the server has no keys. has_keys: whether it has some.
    names: what stands in the path in the places of the route's names.
    memory: what formats remember of this server, by its class; see `recall`.
    in_loop: calls a function in the event loop, with an `End` and the other arguments, and returns its result. It does
        so once for each body, even if the body is read again, so that a call must be equal to itself.
    path_to: returns the prompt that continues a node of a story.
    texts_of: returns the texts of requests that are kept.
    take: makes a part of a prompt of images and sounds.
    before: returns the conversation that ends with a response. Raises `InvalidRequestError` if that isn't kept.
    made: if the body is read again, the request that was made of it the first time. The answer is to this request.
    """

    limits: Limits
    engine: Engine
    now: float
    created: float
    version: str
    owner: str | None = None
    has_keys: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    memory: dict[Callable[[], Any], Any] = field(default_factory=dict)
    in_loop: Callable[[tuple[Any, ...]], Any] = lambda _call: None
    path_to: PathTo = no_stories
    texts_of: TextsOf = nothing_kept
    take: Take = not_here
    before: Callable[[str], list[Message]] = nothing_before
    made: CompletionRequest | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the loaded model. Raises `UnavailableError` before the model is loaded."""
        engine = self.engine
        return Vocabulary(self.limits.model, engine.tokenizer, engine.chat_template, engine.n_cells)

    @property
    def stats(self) -> EngineStats:
        """The state of a loaded engine. Raises `UnavailableError` before the model is loaded."""
        _ = self.engine.tokenizer
        stats = self.engine.health.stats
        assert stats is not None, "there are some as soon as the model is loaded"
        return stats

    @property
    def fingerprint(self) -> str:
        """Name and version of the program that answers, and what the answer depends on; see `Backend.fingerprint`."""
        return "-".join(filter(None, ("srb", self.version, self.engine.fingerprint)))

    def recall(self, kind: Callable[[], Remembered]) -> Remembered:
        """The one object of this class that the server has. It is made when it's first asked for."""
        remembered: Remembered = self.memory.setdefault(kind, kind())
        return remembered
