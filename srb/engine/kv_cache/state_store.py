"""The state store: where cached states outlive the process, and the format of their files.

A file of the disk cache has one entry:

    header      _HEADER: sizes, the parent's name, and a SHA-256 of all other bytes of the file
    key         UTF-8
    tokens      4 bytes each
    logits      as the backend has them
    state       as llama.cpp has it

A damaged state could crash llama.cpp, and with it the process. So the hash is checked before llama.cpp gets the state.
Because of this check, nothing needs to be forced to the disk: a file that is half-written after a power failure counts
as damaged, too.

A file that `POST /slots/{id_slot}?action=save` or `LLM.save` writes has all entries of a text, parents before
children, after a SHA-256 of what they must fit (`Backend.identity`).
"""

import hashlib
import os
import struct
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from srb.engine.backend import State
from srb.engine.kv_cache.radix import Tokens, pack


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a stored entry without reading its state (`srb.engine.kv_cache.state_cache`).

    Attributes:
        parent: the name of the entry that has what comes before `start`; None for the first entry of a text.
        tokens: those from `start` on.
        key: what must be equal besides the tokens, adapters for example; most often empty.
    """

    name: str
    parent: str | None
    start: int
    tokens: Tokens
    key: str
    has_logits: bool


@dataclass(frozen=True, slots=True)
class EntryCopy:
    """An entry alone: the state of `tokens` from `start` on, and the bytes of its logits."""

    start: int
    tokens: Tokens
    state: State
    logits: bytes | None

    @property
    def end(self) -> int:
        """The position after its last token."""
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What a store has, and what it has done.

    Attributes:
        disk_bytes: the size of its files now; at most `max_disk_bytes`.
        disk_reads, disk_bytes_read, disk_bytes_written: entries and bytes, counted since the start.
        disk_faults: entries that couldn't be read or written.
    """

    disk_bytes: int = 0
    max_disk_bytes: int = 0
    disk_reads: int = 0
    disk_bytes_read: int = 0
    disk_bytes_written: int = 0
    disk_faults: int = 0


class StateStore(Protocol):
    """Stores entries by name, as `srb.files.disk_cache` does.

    `StateCache` has all entries, also those whose state is only in a file; this is read when a prompt begins with it.
    An entry may be lost at any time. The engine notices this when it needs the entry: it then forgets the entry with
    everything that continues it, and computes it again.

    No method raises an error: an entry that can't be read counts as gone, and one that can't be written isn't stored.
    """

    def __contains__(self, name: object) -> bool:
        """Whether it has an entry, as far as it knows, or is about to write it."""

    @property
    def room(self) -> int:
        """How many bytes it can take now."""

    def find(self, family: str) -> Iterable[Record]:
        """The entries of a family that were there at the start and still are, parents before their children."""

    def check(self, families: Iterable[str], tokens: Tokens) -> None:
        """Compares the entries that have the first of these tokens with their hashes, so that `get` needn't do it.

        May be called from any thread. Takes about a second for each gigabyte.

        Args:
            families: the entries of the later ones may continue those of the earlier ones.
        """

    def put(
        self,
        family: str,
        parent: str | None,
        start: int,
        tokens: Tokens,
        key: str,
        state: State,
        logits: bytes | None,
    ) -> str | None:
        """Takes an entry, which another thread will write soon, and returns its name.

        Args:
            family: names the entries that `find` returns at once; up to 16 hexadecimal digits.

        Returns:
            None if the parent isn't there, or if too much waits to be written.
        """

    def get(self, name: str) -> tuple[State, bytes | None] | None:
        """Returns the state and the logits of an entry; None if it's gone or damaged."""

    def remove(self, name: str) -> None:
        """Removes an entry that no other entry continues."""

    def touch(self, names: Iterable[str]) -> None:
        """Marks entries as just used, children before their parents. The least recently used are removed first."""

    def stats(self) -> StoreStats:
        """Returns what the store has, and what it has done."""

    def close(self) -> None:
        """Returns when all entries that were taken are written."""


MAGIC = b"srbstat1"
_HEADER = struct.Struct("<8sIIIIQ16s32s")
"""Magic, start, and the number of tokens, bytes of the key, of the logits and of the state; parent, digest."""

_DIGEST_BYTES = 32
_FIRST_READ = 4096
"""How many bytes of a file are read to know its tokens; more are read if it has more tokens."""


def read_record(path: Path) -> Record:
    """Returns the record in a file. Raises `OSError`, and `ValueError` if it isn't an entry or was renamed."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        content = os.read(descriptor, _FIRST_READ)
        header, at = _unpack(content)
        end = at + header.key_bytes + 4 * header.n_tokens
        if end > os.fstat(descriptor).st_size:
            raise ValueError("it is too short")
        if end > len(content):
            content += os.read(descriptor, end - len(content))
    finally:
        os.close(descriptor)
    record = _record_of(header, content[at:end])
    if path.stem.partition("-")[2] != record.name:
        raise ValueError("its name isn't that of its content")
    return record


def entry_name(parent: str | None, start: int, tokens: Tokens, key: str) -> str:
    """The name of an entry: a hash of its tokens, and of the name of its parent, and so of all tokens before it."""
    head = f"{parent or ''}/{start}/{key}/".encode()
    return hashlib.sha256(head + tokens.tobytes()).hexdigest()[:32]


def read_state(content: memoryview, *, verify: bool) -> tuple[State, bytes | None]:
    """The state and the logits in a file. verify: whether the file's bytes are compared with its hash.

    Raises `ValueError` if they aren't what was written.
    """
    header, key_at = _unpack(content)
    logits_at = key_at + header.key_bytes + 4 * header.n_tokens
    state_at = logits_at + header.logits_bytes
    if len(content) != state_at + header.state_bytes:
        raise ValueError(f"it has {len(content)} bytes, and not {state_at + header.state_bytes}")
    if verify and _digest([content[: _HEADER.size - _DIGEST_BYTES], content[_HEADER.size :]]) != header.digest:
        raise ValueError("its bytes aren't those that were written")
    logits = bytes(content[logits_at:state_at]) if header.logits_bytes else None
    return content[state_at:], logits


def write_state(path: Path, record: Record, state: State, logits: bytes | None) -> int:
    """Writes the file of an entry, and returns how many bytes it has. Raises `OSError`."""
    return _write(path, _parts(record, state, logits))


_TEXT_MAGIC = b"srbslot2"


def write_text(path: Path, identity: str, copies: Iterable[EntryCopy]) -> int:
    """Writes the file of a text, and returns how many bytes it has. Raises `OSError`."""
    parts: list[bytes | State] = [_TEXT_MAGIC, _digest([identity.encode()])]
    parent = None
    for each in copies:
        name = entry_name(parent, each.start, each.tokens, "")
        record = Record(name, parent, each.start, each.tokens, "", each.logits is not None)
        parts += _parts(record, each.state, each.logits)
        parent = name
    return _write(path, parts)


def read_text(path: Path, identity: str) -> tuple[list[EntryCopy], int]:
    """Reads the file of a text. If it were mapped and another program cut it, this process would be killed.

    Returns:
        The entries, and how many bytes the file has.

    Raises:
        OSError: it can't be read.
        ValueError: it can't be used.
    """
    if not path.is_file():
        raise ValueError("there is no such file")
    size = len(_TEXT_MAGIC) + _DIGEST_BYTES
    with path.open("rb") as file:
        head = file.read(size)
        if len(head) < size or not head.startswith(_TEXT_MAGIC):
            raise ValueError("it isn't the file of a slot")
        if not head.endswith(_digest([identity.encode()])):
            raise ValueError(
                "it was saved with another model, --cache-type-k, --cache-type-v, --flash-attn, --override-kv, --rope "
                "or --yarn option, or llama-cpp-python"
            )
        content = memoryview(file.read())
    copies: list[EntryCopy] = []
    parent, before, rest = None, 0, content
    while rest:
        header, at = _unpack(rest)
        tokens_end = at + header.key_bytes + 4 * header.n_tokens
        end = tokens_end + header.logits_bytes + header.state_bytes
        state, logits = read_state(rest[:end], verify=True)
        record = _record_of(header, bytes(rest[at:tokens_end]))
        if record.parent != parent or record.start > before or record.key:
            raise ValueError("its parts aren't of one text")
        copies.append(EntryCopy(record.start, record.tokens, bytearray(state), logits))  # each may be freed alone
        parent, before, rest = record.name, copies[-1].end, rest[end:]
    return copies, size + len(content)


def _parts(record: Record, state: State, logits: bytes | None) -> list[bytes | State]:
    """Returns the contents of an entry's file, in parts."""
    key, tokens = record.key.encode(), record.tokens.tobytes()
    parent = bytes.fromhex(record.parent) if record.parent else bytes(16)
    sizes = (len(record.tokens), len(key), len(logits or b""), len(state))
    head = _HEADER.pack(MAGIC, record.start, *sizes, parent, bytes(_DIGEST_BYTES))[:-_DIGEST_BYTES]
    parts = (key, tokens, logits or b"", state)
    return [head, _digest([head, *parts]), *parts]


def _write(path: Path, parts: Iterable[bytes | State]) -> int:
    """Writes a file, which appears under its name only when it is complete. Returns its bytes. Raises `OSError`."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            for part in parts:
                file.write(part)
            size = file.tell()
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return size


@dataclass(frozen=True, slots=True)
class _Header:
    start: int
    n_tokens: int
    key_bytes: int
    logits_bytes: int
    state_bytes: int
    parent: str | None
    digest: bytes


def _unpack(content: bytes | memoryview) -> tuple[_Header, int]:
    """The header of a file, and where the header ends. Raises `ValueError` if it isn't one."""
    if len(content) < _HEADER.size:
        raise ValueError("it is too short")
    magic, start, n_tokens, key_bytes, logits_bytes, state_bytes, parent, digest = _HEADER.unpack_from(content)
    if magic != MAGIC:
        raise ValueError("it isn't a state of this version")
    name = parent.hex() if any(parent) else None
    return _Header(start, n_tokens, key_bytes, logits_bytes, state_bytes, name, digest), _HEADER.size


def _record_of(header: _Header, content: bytes) -> Record:
    """Returns the record of an entry. content: its key and its tokens."""
    key, tokens = content[: header.key_bytes].decode(), pack(())
    tokens.frombytes(content[header.key_bytes :])
    name = entry_name(header.parent, header.start, tokens, key)
    return Record(name, header.parent, header.start, tokens, key, header.logits_bytes > 0)


def _digest(parts: Iterable[bytes | State]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()
