"""The format of a file with the states of a slot, as `POST /slots/{id_slot}?action=save` writes it.

header      _HEADER: a SHA-256 of what the states must fit (`Backend.identity`), and how many tokens they have
pieces      each in the format of a file of its own (`srb.engine.kept.state_file`), parents before their children
"""

import hashlib
import struct
from pathlib import Path

from srb.engine.backend import State
from srb.engine.kept.pieces import PieceCopy
from srb.engine.kept.slots import SavedSlot
from srb.engine.kept.state_file import piece_name, read_piece, state_parts, write_parts
from srb.engine.kept.store import Record

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
        pieces.append(PieceCopy(record.start, record.tokens, bytearray(state), logits))  # each may be freed alone
        parent, before, at = record.name, record.start + len(record.tokens), at + n_bytes
    if n_tokens > before:
        raise ValueError("it is too short")
    return SavedSlot(n_tokens, tuple(pieces)), _HEADER.size + len(content)


def _hash(identity: str) -> bytes:
    return hashlib.sha256(identity.encode()).digest()
