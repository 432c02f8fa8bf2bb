"""The format of a file with a retained state; see `srb.files.disk_cache`.

    header      _HEADER: sizes, the parent's name, and a SHA-256 of all other bytes of the file
    key         UTF-8
    tokens      4 bytes each
    logits      as the backend has them
    state       as llama.cpp has it

A damaged state could crash llama.cpp, and with it the process. So the hash is checked before llama.cpp gets the state.
Because of this check, nothing needs to be forced to the disk: a file that is half-written after a power failure counts
as damaged, too.
"""

import hashlib
import os
import struct
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from srb.engine.backend import State
from srb.engine.kept.store import Record
from srb.engine.kv.radix import Tokens, pack

MAGIC = b"srbstat1"
_HEADER = struct.Struct("<8sIIIIQ16s32s")
"""Magic, start, and the number of tokens, bytes of the key, of the logits and of the state; parent, digest."""

_DIGEST_BYTES = 32
_FIRST_READ = 4096
"""How many bytes of a file are read to know its tokens; more are read if it has more tokens."""


def read_record(path: Path) -> Record:
    """What a file says of its piece. Raises `OSError`, and `ValueError` if the file isn't a piece or was renamed."""
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
    key = content[at : at + header.key_bytes].decode()
    tokens = pack(())
    tokens.frombytes(content[at + header.key_bytes : end])
    name = piece_name(header.parent, header.start, tokens, key)
    if path.stem.partition("-")[2] != name:
        raise ValueError("its name isn't that of its content")
    return Record(name, header.parent, header.start, tokens, key, header.logits_bytes > 0)


def piece_name(parent: str | None, start: int, tokens: Tokens, key: str) -> str:
    """The name of a piece: a hash of its tokens, and of the name of its parent, and so of all tokens before it."""
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


def read_piece(content: memoryview) -> tuple[Record, State, bytes | None, int]:
    """The piece that `content` begins with, its state and logits, and how many bytes these are in all.

    Raises `ValueError` if they aren't what was written.
    """
    header, at = _unpack(content)
    tokens_at = at + header.key_bytes
    end = tokens_at + 4 * header.n_tokens + header.logits_bytes + header.state_bytes
    if len(content) < end:
        raise ValueError("it is too short")
    state, logits = read_state(content[:end], verify=True)
    tokens = pack(())
    tokens.frombytes(content[tokens_at : tokens_at + 4 * header.n_tokens])
    key = bytes(content[at:tokens_at]).decode()
    name = piece_name(header.parent, header.start, tokens, key)
    return Record(name, header.parent, header.start, tokens, key, header.logits_bytes > 0), state, logits, end


def write_state(path: Path, record: Record, state: State, logits: bytes | None) -> int:
    """Writes the file of a piece, and returns how many bytes it has; see `write_parts`. Raises `OSError`."""
    return write_parts(path, state_parts(record, state, logits))


def state_parts(record: Record, state: State, logits: bytes | None) -> list[bytes | State]:
    """The contents of the file of a piece, in parts, one behind the other."""
    key, tokens = record.key.encode(), record.tokens.tobytes()
    parent = bytes.fromhex(record.parent) if record.parent else bytes(16)
    sizes = (len(record.tokens), len(key), len(logits or b""), len(state))
    head = _HEADER.pack(MAGIC, record.start, *sizes, parent, bytes(_DIGEST_BYTES))[:-_DIGEST_BYTES]
    parts = (key, tokens, logits or b"", state)
    return [head, _digest([head, *parts]), *parts]


def write_parts(path: Path, parts: Iterable[bytes | State]) -> int:
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


def _digest(parts: Iterable[bytes | State]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.digest()
