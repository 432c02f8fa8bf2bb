"""`RequestContext`: what a body parser may know of the server and the caller."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from srb.engine.events import AbortReason
from srb.engine.model_facts import ModelFacts
from srb.engine.request import CompletionRequest
from srb.engine.stats import EngineStats
from srb.errors import InvalidRequestError
from srb.serving.health import Health
from srb.wire.limits import Limits
from srb.wire.request.messages import Message

Abort = Callable[[str, int | None, AbortReason], object]
"""Ends a request, or one alternative of it, as `EngineClient.abort` does. May be called from any thread."""

State = TypeVar("State")


class EngineInfo(Protocol):
    """The part of `EngineClient` that wire formats read. `model` raises `UnavailableError` until it's loaded."""

    @property
    def health(self) -> Health: ...
    @property
    def model(self) -> ModelFacts: ...
    @property
    def fingerprint(self) -> str: ...


def no_responses(response_id: str) -> list[Message]:
    """The default of `RequestContext.previous_messages`. Always raises `InvalidRequestError`."""
    raise InvalidRequestError(f"there is no response {response_id:.100}", param="previous_response_id")


@dataclass(frozen=True)
class RequestContext:
    """What a body parser may know besides the body.

    Attributes:
        limits: The server's settings, and what it knows.
        engine: The engine.
        now: When the request arrived, in seconds since 1970.
        created: When the server started, in seconds since 1970.
        version: The version of srb.
        owner: Who sent the request; None if the server has no API keys.
        has_keys: Whether the server has API keys.
        path_params: The parameters of the path, by name.
        states: What formats remember between requests, by class (`state`).
        stored_answers: Returns the message of each of these responses that is stored, by id.
        previous_messages: Returns the conversation that ends with a response. Raises `InvalidRequestError` if that
            isn't stored.
        original: The request that this body became before the server restarted; the response is to this request.
    """

    limits: Limits
    engine: EngineInfo
    now: float
    created: float
    version: str
    owner: str | None = None
    has_keys: bool = False
    path_params: Mapping[str, str] = field(default_factory=dict)
    states: dict[Callable[[], Any], Any] = field(default_factory=dict)
    previous_messages: Callable[[str], list[Message]] = no_responses
    stored_answers: Callable[[tuple[str, ...]], Mapping[str, Message]] = lambda _response_ids: {}
    original: CompletionRequest | None = None

    @property
    def stats(self) -> EngineStats:
        """The statistics of the engine. Raises `UnavailableError` before the model is loaded."""
        _ = self.engine.model
        stats = self.engine.health.stats
        assert stats is not None, "there are some as soon as the model is loaded"
        return stats

    @property
    def fingerprint(self) -> str:
        """`system_fingerprint`: name and version of the program, and the backend's own fingerprint."""
        return "-".join(filter(None, ("srb", self.version, self.engine.fingerprint)))

    def state(self, kind: Callable[[], State]) -> State:
        """The server's one object of this class. The first call makes it."""
        found: State = self.states.setdefault(kind, kind())
        return found
