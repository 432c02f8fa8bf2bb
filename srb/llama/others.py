"""How many processors other programs take: what is measured beside them is slower, and by how much nobody knows."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class Others:
    """busy: how many processors they took. Known at the end."""

    busy: float = 0.0


@contextmanager
def watch_others() -> Iterator[Others]:
    """Tells afterwards how many processors others have taken in the block."""
    result, before, start = Others(), busy_elsewhere(), time.monotonic()
    yield result
    result.busy = max(0.0, (busy_elsewhere() - before) / (time.monotonic() - start))


def busy_elsewhere() -> float:
    """Seconds of processors that were not free, and not used by this process and its children."""
    try:
        ticks = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return 0.0
    user, nice, system, _idle, _waiting, irq, softirq, steal = ticks
    mine = os.times()
    used = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return used - mine.user - mine.system - mine.children_user - mine.children_system
