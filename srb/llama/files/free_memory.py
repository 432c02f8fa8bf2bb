"""How much memory this process may still take."""

import os
import re
import resource
import sys
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """How many bytes of memory are free for this process, as far as the system tells.

    It is the least of what the machine, the container and `ulimit -v` leave. Memory that caches files counts as free.
    """
    return min(_of_machine(), _of_container(), _of_process())


def _of_machine() -> int:
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
        return int(found[1]) << 10 if found else sys.maxsize
    except OSError:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _of_container() -> int:
    try:
        limit, used, stat = ((CGROUP / f"memory.{name}").read_text() for name in ("max", "current", "stat"))
        cached = sum(int(each) for each in re.findall(r"^(?:in)?active_file (\d+)$", stat, re.MULTILINE))
        return sys.maxsize if limit.strip() == "max" else max(0, int(limit) - int(used) + cached)
    except (OSError, ValueError):
        return sys.maxsize


def _of_process() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        used = 0
    return max(0, limit - used)
