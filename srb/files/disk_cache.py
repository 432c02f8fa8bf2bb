"""Stores cached states in files (`--cache-disk`), so that computed texts outlive the process.

Each entry of `srb.engine.kv_cache.entries` is a file DIR/IDENTITY/FAMILY-NAME.state, in the format of
`srb.engine.kv_cache.state_store`.

IDENTITY is a hash of everything that a state must fit: the model, the types of the cache, llama.cpp's build. NAME is a
hash of the entry's tokens and of its parent's name, so a name always means the same content. A file appears whole and
is never changed, so servers that share a folder can't disturb each other. A file may vanish at any time. Then the
tokens of its entry are computed again.
"""

import hashlib
import logging
import mmap
import os
import queue
import tempfile
import threading
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from srb.engine.backend import State
from srb.engine.kv_cache.radix import Tokens, common_prefix
from srb.engine.kv_cache.state_store import MAGIC, Record, StoreStats, entry_name, read_record, read_state, write_state
from srb.errors import SettingsError

logger = logging.getLogger("srb")

_SUFFIX = ".state"
_MOST_WAITING = 256 << 20
"""Bytes. While this much waits to be written, the cache takes no more."""

_LEFT = 0.9
"""When the folder is too large, the oldest files are removed until this share of the allowed size is left."""

_ABANDONED_SECONDS = 600
"""An unfinished file that is older than this comes from a process that was killed, and is removed."""


@dataclass(slots=True)
class _Unwritten:
    """An entry that waits to be written. used: when it was last used, in nanoseconds since 1970."""

    record: Record
    state: State
    logits: bytes | None
    used: int
    path: Path

    @property
    def size(self) -> int:
        return len(self.state) + len(self.logits or b"")


class DiskCache:
    """A `state_store.StateStore` in a folder. It may be shared with other servers, and with other models.

    `identity` names everything that a state must fit (`Backend.identity`). If all files in the folder have more than
    `max_bytes`, the least recently used are removed. Raises `SettingsError`.
    """

    def __init__(self, folder: Path, identity: str, max_bytes: int) -> None:
        self._root = folder
        self._folder = folder / hashlib.sha256(MAGIC + identity.encode()).hexdigest()[:16]
        self._max_bytes = max_bytes
        self._lock = threading.Lock()  # guards the next four
        self._paths: dict[str, Path] = {}  # by the name of the entry
        self._waiting: dict[str, _Unwritten] = {}
        self._waiting_bytes = 0
        self._stats = StoreStats(max_disk_bytes=max_bytes)
        self._verified: set[str] = set()
        self._complained = False  # a warning was logged since writing last worked
        self._unread: dict[str, list[str]] = {}  # file names, by family
        self._reading = threading.Lock()  # guards _found; it is locked while a family is read
        self._found: dict[str, list[Record]] = {}  # by family: what was there at the start; filled by the first `find`
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            names = os.listdir(self._folder)
        except OSError as error:
            raise SettingsError(f"--cache-disk {folder} can't be used: {error.strerror or error}") from None
        for name in names:
            if name.endswith(_SUFFIX):
                self._unread.setdefault(name.partition("-")[0], []).append(name)
        self._queue: queue.SimpleQueue[_Unwritten | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name="srb-disk-cache", daemon=True)
        self._thread.start()

    def __contains__(self, name: object) -> bool:
        return name in self._paths

    @property
    def room(self) -> int:
        return max(0, min(_MOST_WAITING, self._max_bytes) - self._waiting_bytes)

    def find(self, family: str) -> Iterable[Record]:
        with self._reading:
            if family not in self._found:
                self._found[family] = self._read_family(family)
            return [record for record in self._found[family] if record.name in self._paths]

    def _read_family(self, family: str) -> list[Record]:
        records: dict[str, Record] = {}
        for file_name in self._unread.pop(family, ()):
            path = self._folder / file_name
            try:
                record = read_record(path)
            except OSError:  # another server has removed it
                continue
            except ValueError as error:
                logger.warning("the state %s can't be used and is removed: %s", path, error)
                _unlink(path)
                self._count(disk_faults=1)
            else:
                records[record.name] = record
                self._paths.setdefault(record.name, path)
        ordered = _in_order(records, self._paths)
        for orphan in records.keys() - {record.name for record in ordered}:
            self.remove(orphan)
        return ordered

    def stats(self) -> StoreStats:
        with self._lock:
            return self._stats

    def check(self, families: Iterable[str], tokens: Tokens) -> None:
        known: dict[str | None, int] = {None: 0}  # how many of the tokens each entry and its parents hold
        for record in chain.from_iterable(map(self.find, families)):
            if known.get(record.parent, -1) >= record.start:
                n_tokens = common_prefix(record.tokens, tokens, record.start)
                known[record.name] = record.start + n_tokens
                if n_tokens and record.name not in self._verified and (path := self._paths.get(record.name)):
                    # `get` reports a damaged entry when it is needed.
                    with suppress(OSError, ValueError), path.open("rb") as file:
                        read_state(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), verify=True)
                        self._verified.add(record.name)

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
        record = Record(entry_name(parent, start, tokens, key), parent, start, tokens, key, logits is not None)
        path = self._folder / f"{family}-{record.name}{_SUFFIX}"
        entry = _Unwritten(record, state, logits, time.time_ns(), path)
        with self._lock:
            if parent is not None and parent not in self._paths:
                return None
            # An entry that is larger than _MOST_WAITING is taken while no other waits: its state is in memory anyway.
            if self._waiting_bytes and self._waiting_bytes + entry.size > _MOST_WAITING:
                return None
            if entry.size > self._max_bytes:
                return None
            self._paths[record.name] = path
            self._waiting[record.name] = entry
            self._waiting_bytes += entry.size
        self._queue.put(entry)
        return record.name

    def get(self, name: str) -> tuple[State, bytes | None] | None:
        with self._lock:
            entry, path = self._waiting.get(name), self._paths.get(name)
        if entry:
            return entry.state, entry.logits
        if path is None:
            return None
        try:
            with path.open("rb") as file:
                content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            state, logits = read_state(content, verify=name not in self._verified)
            self._verified.add(name)
        except FileNotFoundError:  # another server has removed it
            self._forget(name)
            return None
        except (OSError, ValueError) as error:
            logger.warning("the state %s can't be used and is evaluated again: %s", path, error)
            self.remove(name)
            self._count(disk_faults=1)
            return None
        self._count(disk_reads=1, disk_bytes_read=len(content))
        return state, logits

    def remove(self, name: str) -> None:
        path = self._paths.get(name)
        self._forget(name)  # first, so that an entry that still waits isn't written
        if path:
            self._discard(path)

    def touch(self, names: Iterable[str]) -> None:
        for name in names:
            now = time.time_ns()
            with self._lock:
                if name in self._waiting:
                    self._waiting[name].used = now
                with suppress(OSError, KeyError):  # the file isn't written yet, or gone, or its disk is read-only
                    os.utime(self._paths[name], ns=(now, now))

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _forget(self, name: str) -> None:
        with self._lock:
            self._paths.pop(name, None)
            self._waiting.pop(name, None)
            self._verified.discard(name)

    def _count(self, **more: int) -> None:
        with self._lock:
            self._stats = replace(
                self._stats, **{field: getattr(self._stats, field) + each for field, each in more.items()}
            )

    # The writer's thread

    def _write_all(self) -> None:
        self._make_room()
        logger.info(
            "--cache-disk %s has %d states for this model, and %.0f of %d MiB in all",
            self._root,
            sum(map(len, list(self._unread.values()))),
            self._stats.disk_bytes / 2**20,
            self._max_bytes >> 20,
        )
        while entry := self._queue.get():
            name = entry.record.name
            try:
                # Else the entry was removed meanwhile, or the same entry with its logits has taken its place.
                if self._waiting.get(name) is entry:
                    self._write(entry)
                    self._complained = False
            except OSError as error:
                self._forget(name)
                self._count(disk_faults=1)
                if not self._complained:
                    self._complained = True
                    logger.warning(
                        "--cache-disk %s can't be written: %s; generating goes on, and a restart will evaluate more",
                        self._root,
                        error.strerror or error,
                    )
            with self._lock:
                if self._waiting.get(name) is entry:
                    del self._waiting[name]
                self._waiting_bytes -= entry.size
            if self._stats.disk_bytes > self._max_bytes:
                self._make_room()

    def _write(self, entry: _Unwritten) -> None:
        name = entry.record.name
        size = write_state(entry.path, entry.record, entry.state, entry.logits)
        self._count(disk_bytes=size, disk_bytes_written=size)
        # The file gets the time at which its entry was last used, not the time of writing. Its parents were touched
        # later, so they stay younger, and aren't removed before it.
        with self._lock:
            with suppress(FileNotFoundError):  # it was removed since
                os.utime(entry.path, ns=(entry.used, entry.used))
            self._verified.discard(name)
            is_removed = name not in self._paths
        if is_removed:  # perhaps before there was a file
            self._discard(entry.path)

    def _discard(self, path: Path) -> None:
        """Removes a file. It counts where it is this call that removed it, and not another thread or server."""
        with suppress(OSError):
            size = path.stat().st_size
            if _unlink(path):
                self._count(disk_bytes=-size)

    def _make_room(self) -> None:
        """Counts what all servers and models have in the folder, and removes the oldest if that is too much."""
        files: list[tuple[int, int, str]] = []
        now = time.time()
        for folder in _entries(self._root):
            for entry in _entries(folder.path) if folder.is_dir(follow_symlinks=False) else ():
                try:
                    stat = entry.stat(follow_symlinks=False)
                    if entry.name.endswith(_SUFFIX):
                        files.append((stat.st_mtime_ns, stat.st_size, entry.path))
                    elif entry.name.startswith(tempfile.gettempprefix()) and now - stat.st_mtime > _ABANDONED_SECONDS:
                        os.unlink(entry.path)
                except OSError:  # another server was faster
                    continue
        size = sum(each for _, each, _ in files)
        if size > self._max_bytes:
            removed = 0
            for _, each, path in sorted(files):
                if size <= self._max_bytes * _LEFT:
                    break
                if not _unlink(Path(path)) and os.path.exists(path):  # else another server was faster
                    continue
                size -= each
                removed += 1
                if Path(path).parent == self._folder:
                    self._forget(Path(path).stem.partition("-")[2])
            logger.info("--cache-disk %s was full: the %d oldest states were removed", self._root, removed)
        with self._lock:
            self._stats = replace(self._stats, disk_bytes=size)


def _in_order(records: dict[str, Record], known: Collection[str]) -> list[Record]:
    """The records, parents before their children. A record whose parent is neither here nor known is left out."""
    ordered: dict[str, Record] = {}
    for record in records.values():
        chain = [record]
        while (parent := chain[-1].parent) in records and parent not in ordered:
            chain.append(records[parent])
        if parent is None or parent in ordered or parent in known:
            ordered |= {each.name: each for each in reversed(chain) if each.name not in ordered}
    return list(ordered.values())


def _unlink(path: Path) -> bool:
    """Removes a file. Returns whether this call removed it."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        logger.warning("%s can't be removed: %s", path, error.strerror or error)
        return False
    return True


def _entries(path: Path | str) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return []
