"""What other threads ask of an engine, until the thread that calls its `step` takes it."""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from srb.engine.events import AbortReason
from srb.engine.kv_cache.state_cache import StateCache
from srb.engine.sequence import ActiveRequest
from srb.errors import SrbError, in_use


@dataclass(frozen=True, slots=True)
class Abort:
    """Ends a request, or only its alternative `index`; None: all of it."""

    request_id: str
    index: int | None
    reason: AbortReason


@dataclass(frozen=True, slots=True)
class Priority:
    """Gives a request another priority."""

    request_id: str
    priority: int


Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Question:
    """A question about cached states, for when those of a slot are cached."""

    slot: int
    ask: Callable[[StateCache], Any]
    answer: "Future[Any]"

    def resolve(self, states: StateCache) -> None:
        """Answers the question. A fault in it is raised for the caller alone, and ends no request."""
        if self.answer.set_running_or_notify_cancel():
            try:
                self.answer.set_result(self.ask(states))
            except Exception as error:
                self.answer.set_exception(error)


Message = ActiveRequest | Abort | Priority | Question


class Mailbox:
    """Messages in the order in which they came. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: list[Message] = []
        self._failure: SrbError | None = None

    def __bool__(self) -> bool:
        """Whether there are messages."""
        return bool(self._messages)

    @property
    def has_requests(self) -> bool:
        """Whether there are requests among them."""
        with self._lock:
            return any(isinstance(each, ActiveRequest) for each in self._messages)

    def put(self, message: Message) -> None:
        """Adds a message. In a closed mailbox, an abort or a change of a priority has no effect.

        Raises:
            InvalidRequestError: there is a request with the same id already.
            SrbError: the error that the mailbox was closed with.
        """
        with self._lock:
            if self._failure and isinstance(message, ActiveRequest | Question):
                raise self._failure
            ids = (each.id for each in self._messages if isinstance(each, ActiveRequest))
            if isinstance(message, ActiveRequest) and message.id in ids:
                raise in_use(message.id)
            self._messages.append(message)

    def aborts_all(self, request_ids: Iterable[str]) -> bool:
        """Whether each of these requests is to be aborted as a whole."""
        with self._lock:
            aborts = (each for each in self._messages if isinstance(each, Abort))
            return {abort.request_id for abort in aborts if abort.index is None}.issuperset(request_ids)

    def read(self) -> Iterator[Message]:
        """Yields all messages. Each is taken out after it was dealt with, so that a fault loses none."""
        while self._messages:
            yield self._messages[0]
            with self._lock:
                del self._messages[0]

    def close(self, error: SrbError) -> list[Message]:
        """Takes out all messages, and answers the questions with an error. From now on `put` raises it."""
        with self._lock:
            self._failure = error
            messages, self._messages = self._messages, []
        for each in messages:
            if isinstance(each, Question) and each.answer.set_running_or_notify_cancel():
                each.answer.set_exception(error)
        return messages
