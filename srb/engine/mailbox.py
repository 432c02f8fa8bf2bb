"""What other threads ask of an engine, until the thread that calls its `step` takes it."""

import threading
from collections.abc import Callable, Collection, Iterable
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


Message = ActiveRequest | Abort | Priority

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


class Mailbox:
    """Messages and questions in the order in which they came. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: list[Message] = []
        self._questions: list[Question] = []
        self._aborted: set[str] = set()  # the requests that these messages abort as a whole
        self._failure: SrbError | None = None

    def __bool__(self) -> bool:
        """Whether there are messages."""
        return bool(self._messages)

    @property
    def has_questions(self) -> bool:
        """Whether there are questions."""
        return bool(self._questions)

    def put(self, message: ActiveRequest) -> None:
        """Adds a request.

        Raises:
            InvalidRequestError: there is a request with the same id already.
            SrbError: the error that the mailbox was closed with.
        """
        with self._lock:
            if self._failure:
                raise self._failure
            if any(isinstance(each, ActiveRequest) and each.id == message.id for each in self._messages):
                raise in_use(message.id)
            self._messages.append(message)

    def put_abort(self, abort: Abort) -> None:
        """Adds an abort. In a closed mailbox it has no effect."""
        with self._lock:
            self._messages.append(abort)
            if abort.index is None:
                self._aborted.add(abort.request_id)

    def put_priority(self, priority: Priority) -> None:
        """Adds a change of a priority. In a closed mailbox it has no effect."""
        with self._lock:
            self._messages.append(priority)

    def ask(self, slot: int, question: Callable[[StateCache], Answer]) -> "Future[Answer]":
        """Adds a question about a slot. Raises the error that the mailbox was closed with."""
        answer: Future[Answer] = Future()
        with self._lock:
            if self._failure:
                raise self._failure
            self._questions.append(Question(slot, question, answer))
        return answer

    def aborts_all(self, request_ids: Iterable[str]) -> bool:
        """Whether each of these requests is to be aborted as a whole."""
        with self._lock:
            return all(request_id in self._aborted for request_id in request_ids)

    def take(self) -> list[Message]:
        """Takes out all messages."""
        with self._lock:
            messages, self._messages, self._aborted = self._messages, [], set()
            return messages

    def take_questions(self, busy: Collection[int] = ()) -> list[Question]:
        """Takes out all questions, but for those about these slots."""
        with self._lock:
            questions = [each for each in self._questions if each.slot not in busy]
            self._questions = [each for each in self._questions if each.slot in busy]
            return questions

    def close(self, error: SrbError) -> list[Message]:
        """Takes out all messages, and answers all questions with an error. From now on `put` and `ask` raise it."""
        with self._lock:
            self._failure = error
            messages, self._messages = self._messages, []
        for each in self.take_questions():
            if each.answer.set_running_or_notify_cancel():
                each.answer.set_exception(error)
        return messages
