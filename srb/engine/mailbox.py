"""Holds what other threads want of an engine, until the thread that calls its `step` takes it."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from srb.engine.events import AbortReason
from srb.engine.sequence import ActiveRequest
from srb.errors import SrbError, in_use


@dataclass(frozen=True, slots=True)
class Abort:
    """Asks to end a request, or only its alternative `index`; None: all of it."""

    request_id: str
    index: int | None
    reason: AbortReason


Message = ActiveRequest | Abort


class Mailbox:
    """Messages in the order in which they came. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._messages: list[Message] = []
        self._doomed: set[str] = set()  # the requests that these messages abort as a whole
        self._failure: SrbError | None = None

    def __bool__(self) -> bool:
        return bool(self._messages)

    def put(self, message: ActiveRequest) -> None:
        """Adds a message. Raises the error that the mailbox was closed with.

        Raises `InvalidRequestError` if there is a request with the same id already.
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
                self._doomed.add(abort.request_id)

    def dooms(self, request_ids: Iterable[str]) -> bool:
        """Whether each of these requests is to be aborted as a whole."""
        with self._lock:
            return all(request_id in self._doomed for request_id in request_ids)

    def take(self) -> list[Message]:
        """Takes out all messages."""
        with self._lock:
            messages, self._messages, self._doomed = self._messages, [], set()
            return messages

    def close(self, error: SrbError) -> list[Message]:
        """Takes out all messages. From now on `put` raises the error."""
        with self._lock:
            self._failure = error
            messages, self._messages = self._messages, []
            return messages
