"""Measures how many processors other programs use. What `srb tune` times beside them is slower by an unknown amount."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class Others:
    """The result of `watch_others`. busy: how many processors the others used; set when the block ends."""

    busy: float = 0.0


@contextmanager
def watch_others() -> Iterator[Others]:
    """Measures how many processors other programs use while the block runs. The result is set when it ends."""
    result, before, start = Others(), busy_elsewhere(), time.monotonic()
    yield result
    result.busy = max(0.0, (busy_elsewhere() - before) / (time.monotonic() - start))


def busy_elsewhere() -> float:
    """The processor seconds since the start of the machine that others used, not this process or its children.

    0 if the system doesn't tell.
    """
    try:
        ticks = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return 0.0
    user, nice, system, _idle, _waiting, irq, softirq, steal = ticks
    mine = os.times()
    used = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return used - mine.user - mine.system - mine.children_user - mine.children_system
