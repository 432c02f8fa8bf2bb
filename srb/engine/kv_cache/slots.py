"""Slots: tokens under a number, whose cached states can be saved, restored and erased.

llama-server's slots are places in its cache, each with a conversation. Here no conversation has a place of its own. A
slot only has the tokens that an alternative ended with, and their states are found as for any prompt (`StateCache`).

Each `CompletionRequest.shared_within` has slots of its own: its requests remember tokens there, and only callers that
name it (`within`) find them.

Saving a slot copies the entries that have its tokens. Restoring it puts entries into `StateCache`, as if they had been
computed. `Engine.ask` asks for both. Files are read and written outside of the engine's thread.

A file with the states of a slot, as `POST /slots/{id_slot}?action=save` writes it:

    header      _HEADER: a SHA-256 of what the states must fit (`Backend.identity`), and the number of tokens
    entries     each in the format of a file of its own (`srb.engine.kv_cache.state_store`), parents before children
"""

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path

from srb.engine.backend import State
from srb.engine.kv_cache.entries import EntryCopy
from srb.engine.kv_cache.radix import Tokens, keys_of, pack
from srb.engine.kv_cache.state_cache import StateCache
from srb.engine.kv_cache.state_store import Record, entry_name, read_entry, state_parts, write_parts
from srb.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class SavedSlot:
    """The states of the first `n_tokens` tokens of a slot. Each entry continues the one before it."""

    n_tokens: int
    entries: tuple[EntryCopy, ...]


class Slots:
    """The tokens that alternatives ended with, in slots from 0 to `count` - 1. Only the engine's thread may use it.

    All methods take `within` (`CompletionRequest.shared_within`).
    """

    def __init__(self, states: StateCache, count: int) -> None:
        self._states = states
        self._count = count
        self._tokens: dict[str, dict[int, Tokens]] = {"": {}}  # by `within`, and the number of the slot

    def remember(self, slot: int, tokens: Tokens, within: str = "") -> None:
        """Sets the tokens of a slot, if there is such a slot."""
        slots = self._tokens.setdefault(within, {})
        if slot < self._count:
            slots[slot] = tokens

    def known(self) -> dict[str, list[tuple[int, Tokens]]]:
        """Returns the tokens of all cached texts by `within`, in a slot or not (`PrefixTree.runs`)."""
        return {within: self._states.runs(keys_of(within)[0]) for within in self._tokens}

    def save(self, slot: int, within: str = "") -> SavedSlot:
        """Returns the cached states of a slot's tokens."""
        return self.copies(self._tokens.get(within, {}).get(slot, pack(())), within)

    def copies(self, tokens: Tokens, within: str = "") -> SavedSlot:
        """Returns the cached states of some tokens."""
        n_tokens, entries = self._states.copies(tokens, keys_of(within))
        return SavedSlot(n_tokens, tuple(entries))

    def restore(self, slot: int, saved: SavedSlot, within: str = "") -> None:
        """Caches what was saved, and sets the tokens of a slot. Raises `InvalidRequestError` if there is no room."""
        self._tokens.setdefault(within, {})[slot] = self.put(saved, within)

    def put(self, saved: SavedSlot, within: str = "") -> Tokens:
        """Caches what was saved, and returns its tokens. Raises `InvalidRequestError` if there is no room."""
        tokens = pack(())
        for entry in saved.entries:
            tokens = tokens[: entry.start] + entry.tokens
        tokens = tokens[: saved.n_tokens]
        self._states.put(saved.entries, keys_of(within))
        known = self._states.known(tokens, keys_of(within))
        if known < saved.n_tokens:
            raise InvalidRequestError(
                f"there is room for {known} of the {saved.n_tokens} tokens in the file; start the server with a larger "
                "--cache-ram, or with --cache-disk",
                param="filename",
            )
        return tokens

    def erase(self, slot: int, within: str = "") -> int:
        """Forgets the tokens of a slot, and their states, but not those that other texts share.

        Returns:
            How many of the tokens were cached.
        """
        return self._states.erase(self._tokens.get(within, {}).pop(slot, pack(())), keys_of(within))


_MAGIC = b"srbslot1"
_HEADER = struct.Struct("<8s32sI")


def write_slot(path: Path, identity: str, saved: SavedSlot) -> int:
    """Writes a file, which appears under its name only when it is complete. Returns its bytes. Raises `OSError`."""
    parts: list[bytes | State] = [_HEADER.pack(_MAGIC, _hash(identity), saved.n_tokens)]
    parent = None
    for each in saved.entries:
        name = entry_name(parent, each.start, each.tokens, "")
        record = Record(name, parent, each.start, each.tokens, "", each.logits is not None)
        parts += state_parts(record, each.state, each.logits)
        parent = name
    return write_parts(path, parts)


def read_slot(path: Path, identity: str) -> tuple[SavedSlot, int]:
    """Reads a file. If it were mapped and another program cut it, this process would be killed.

    Returns:
        What was saved, and how many bytes the file has.

    Raises:
        OSError: it can't be read.
        ValueError: it can't be used.
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
    entries = []
    parent, before, at = None, 0, 0
    while at < len(content):
        record, state, logits, n_bytes = read_entry(content[at:])
        if record.parent != parent or record.start > before or record.key:
            raise ValueError("its parts aren't of one text")
        entries.append(EntryCopy(record.start, record.tokens, bytearray(state), logits))  # each may be freed alone
        parent, before, at = record.name, record.start + len(record.tokens), at + n_bytes
    if n_tokens > before:
        raise ValueError("it is too short")
    return SavedSlot(n_tokens, tuple(entries)), _HEADER.size + len(content)


def _hash(identity: str) -> bytes:
    return hashlib.sha256(identity.encode()).digest()
