"""Facts about a Mac, which has no `/proc` and `/sys`."""

import subprocess
from functools import cache


@cache
def sysctl(name: str) -> str | None:
    """Return a value of the system, such as that of `hw.physicalcpu`; None if there is none."""
    command = ["/usr/sbin/sysctl", "-n", name]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() or None
    except (OSError, subprocess.CalledProcessError):
        return None
