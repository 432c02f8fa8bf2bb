"""`Slots`: remembers tokens under a number, so that what is known of them can be saved, restored and erased.

llama-server's slots are places in its cache, each with a conversation. Here no conversation has a place of its own. A
slot has only the tokens that an alternative ended with, and their states are found as for any prompt
(`srb.engine.kv_cache.state_cache`).

Each `CompletionRequest.shared_within` has slots of its own: its requests remember tokens there, and only who names it
(`within`) finds them.

Saving a slot copies the pieces that hold its tokens. Restoring it puts pieces into `StateCache`, as if they had been
evaluated. `Engine.ask` asks for both, and the answer comes when what has ended there is kept. Files are read and
written outside of the engine's thread.
"""

import hashlib
import struct
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from srb.engine.backend import State
from srb.engine.kv_cache.entries import EntryCopy
from srb.engine.kv_cache.radix import Tokens, keys_of, pack
from srb.engine.kv_cache.state_cache import StateCache
from srb.engine.kv_cache.state_store import Record, piece_name, read_piece, state_parts, write_parts
from srb.errors import InvalidRequestError, SrbError


@dataclass(frozen=True, slots=True)
class SavedSlot:
    """The states of the first `n_tokens` tokens of a slot. Each of the pieces continues the one before it."""

    n_tokens: int
    pieces: tuple[EntryCopy, ...]


class Slots:
    """The tokens that alternatives ended with, in slots from 0 to `count` - 1. Only the engine's thread may use it."""

    def __init__(self, retained: StateCache, count: int) -> None:
        self._retained = retained
        self._count = count
        self._tokens: dict[str, dict[int, Tokens]] = {"": {}}  # by `within`, and the number of the slot

    def remember(self, slot: int, tokens: Tokens, within: str = "") -> None:
        """Sets the tokens of a slot, if there is such a slot."""
        slots = self._tokens.setdefault(within, {})
        if slot < self._count:
            slots[slot] = tokens

    def known(self) -> dict[str, list[tuple[int, Tokens]]]:
        """By `within`, the tokens of all texts that are known, in a slot or not; see `PrefixTree.runs`."""
        return {within: self._retained.runs(keys_of(within)[0]) for within in self._tokens}

    def save(self, slot: int, within: str = "") -> SavedSlot:
        """What is known of the tokens of a slot."""
        return self.copies(self._tokens.get(within, {}).get(slot, pack(())), within)

    def copies(self, tokens: Tokens, within: str = "") -> SavedSlot:
        """What is known of some tokens."""
        n_tokens, pieces = self._retained.copies(tokens, keys_of(within))
        return SavedSlot(n_tokens, tuple(pieces))

    def restore(self, slot: int, saved: SavedSlot, within: str = "") -> None:
        """Keeps what was saved, and sets the tokens of a slot. Raises `InvalidRequestError` if there is no room."""
        self._tokens.setdefault(within, {})[slot] = self.keep(saved, within)

    def keep(self, saved: SavedSlot, within: str = "") -> Tokens:
        """Keeps what was saved, and returns its tokens. Raises `InvalidRequestError` if there is no room."""
        tokens = pack(())
        for piece in saved.pieces:
            tokens = tokens[: piece.start] + piece.tokens
        tokens = tokens[: saved.n_tokens]
        self._retained.put(saved.pieces, keys_of(within))
        known = self._retained.known(tokens, keys_of(within))
        if known < saved.n_tokens:
            raise InvalidRequestError(
                f"there is room for {known} of the {saved.n_tokens} tokens in the file; start the server with a larger "
                "--cache-ram, or with --cache-disk",
                param="filename",
            )
        return tokens

    def erase(self, slot: int, within: str = "") -> int:
        """Forgets the tokens of a slot, and their states, but not those that other texts share.

        Returns how many of the tokens were known.
        """
        return self._retained.erase(self._tokens.get(within, {}).pop(slot, pack(())), keys_of(within))


# `SlotQueries`: what other threads ask about slots. The engine's thread answers between two steps.

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class _Question:
    slot: int
    ask: Callable[[Slots], Any]
    answer: "Future[Any]"


class SlotQueries:
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


# The format of a file with the states of a slot, as `POST /slots/{id_slot}?action=save` writes it. header _HEADER: a
# SHA-256 of what the states must fit (`Backend.identity`), and how many tokens they have pieces each in the format
# of a file of its own (`srb.engine.kv_cache.state_store`), parents before their children

_MAGIC = b"srbslot1"
_HEADER = struct.Struct("<8s32sI")


def write_slot(path: Path, identity: str, saved: SavedSlot) -> int:
    """Writes a file, which appears under its name only when it is complete. Returns its bytes. Raises `OSError`."""
    parts: list[bytes | State] = [_HEADER.pack(_MAGIC, _hash(identity), saved.n_tokens)]
    parent = None
    for each in saved.pieces:
        name = piece_name(parent, each.start, each.tokens, "")
        record = Record(name, parent, each.start, each.tokens, "", each.logits is not None)
        parts += state_parts(record, each.state, each.logits)
        parent = name
    return write_parts(path, parts)


def read_slot(path: Path, identity: str) -> tuple[SavedSlot, int]:
    """What was saved, and how many bytes the file has. Raises `OSError`, and `ValueError` if it can't be used.

    The file is read into memory: if it were mapped and another program cut it, this process would be killed.
    """
    if not path.is_file():
        raise ValueError("there is no such file")
    with path.open("rb") as file:
        head = file.read(_HEADER.size)
        if len(head) < _HEADER.size or not head.startswith(_MAGIC):
            raise ValueError("it isn't the file of a slot")
        _, fits, n_tokens = _HEADER.unpack(head)
        if fits != _hash(identity):
            raise ValueError(
                "it was saved with another model, --cache-type-k, --cache-type-v, --flash-attn, --override-kv, --rope "
                "or --yarn option, or llama-cpp-python"
            )
        content = memoryview(file.read())
    pieces = []
    parent, before, at = None, 0, 0
    while at < len(content):
        record, state, logits, n_bytes = read_piece(content[at:])
        if record.parent != parent or record.start > before or record.key:
            raise ValueError("its parts don't belong together")
        pieces.append(EntryCopy(record.start, record.tokens, bytearray(state), logits))  # each may be freed alone
        parent, before, at = record.name, record.start + len(record.tokens), at + n_bytes
    if n_tokens > before:
        raise ValueError("it is too short")
    return SavedSlot(n_tokens, tuple(pieces)), _HEADER.size + len(content)


def _hash(identity: str) -> bytes:
    return hashlib.sha256(identity.encode()).digest()
