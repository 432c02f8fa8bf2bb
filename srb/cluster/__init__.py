"""Past one machine: replicas of the engine behind Ray Serve, and the server in front of them.

    server/ ── ClusterEngine (front.py) ── Replicas (replicas.py) ── Ray ──┬── Replica (replica.py): an AsyncEngine
               parts.py: one request,      router.py, placement.py:        ├── Replica
               sent as several             which replica gets it           └── Replica

The journals are in the front. So a replica that dies takes nothing with it: the front knows what was said, and another
replica goes on from there (`srb.engine.resume`).
"""

import os
from pathlib import Path

# Ray reads these when it's imported. Without the first, it prints the stack when this process is told to end. Without
# the second, it doesn't send the token that most clusters ask for, although it lies ready.
os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ) or Path("~/.ray/auth_token").expanduser().exists():
    os.environ.setdefault("RAY_AUTH_MODE", "token")
