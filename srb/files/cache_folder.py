"""The folder in the user's cache where srb keeps what it has fetched, converted and measured."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """The folder. It may not exist yet."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "llama-srb"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Waits until no other process holds the lock on this file, and holds it during the block. Raises `OSError`."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
