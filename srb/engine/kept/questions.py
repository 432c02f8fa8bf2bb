"""`Questions`: what other threads ask about slots. The engine's thread answers between two steps."""

from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

from srb.engine.kept.slots import Slots
from srb.errors import SrbError

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class _Question:
    slot: int
    ask: Callable[[Slots], Any]
    answer: "Future[Any]"


class Questions:
    """Those that aren't answered yet. `put` may be called from any thread."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._lock = Lock()
        self._asked: list[_Question] = []
        self._failure: SrbError | None = None

    def __bool__(self) -> bool:
        return bool(self._asked)

    def put(self, slot: int, question: Callable[[Slots], Answer]) -> "Future[Answer]":
        """Asks a function about a slot. Raises the error that `close` was called with."""
        answer: Future[Answer] = Future()
        with self._lock:
            if self._failure:
                raise self._failure
            self._asked.append(_Question(slot, question, answer))
        return answer

    def answer(self, ending: Collection[int]) -> None:
        """Answers all but those about slots in which a finished sequence still waits to be kept."""
        for each in self._take():
            if each.slot in ending:
                with self._lock:
                    self._asked.append(each)
            elif each.answer.set_running_or_notify_cancel():
                try:
                    each.answer.set_result(each.ask(self._slots))
                except Exception as error:  # a fault in the question is its asker's, and no reason to end all requests
                    each.answer.set_exception(error)

    def close(self, error: SrbError) -> None:
        """Answers all with an error. From now on `put` raises it."""
        with self._lock:
            self._failure = error
        for each in self._take():
            if each.answer.set_running_or_notify_cancel():
                each.answer.set_exception(error)

    def _take(self) -> list[_Question]:
        with self._lock:
            asked, self._asked = self._asked, []
            return asked
