"""Past one machine: replicas of the engine behind Ray Serve, and the server in front of them.

    server/ ── ClusterEngine (front.py) ── Replicas (replicas.py) ── Ray ──┬── Replica (replica.py): an AsyncEngine
               parts.py: one request,      ray_replicas.py: calls,         ├── Replica
               sent as several             deploy.py: what is started,     └── Replica
               run.py: a part, sent        router.py, placement.py:
               until it has ended          which replica gets it

The journals are in the front. So a replica that dies takes nothing with it: the front knows what was said, and another
replica goes on from there (`srb.engine.resume`).
"""

import os
from pathlib import Path

# Ray reads these when it's imported, and what is set already stays.
_RAY = {
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",  # else it prints the stack when this process is told to end
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",  # messages go past Ray's object store, which is cheaper
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",  # seconds; it would be 10
    "RAY_worker_niceness": "0",  # of a Ray that this process starts: engines shouldn't give way to all other programs
}
if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ) or Path("~/.ray/auth_token").expanduser().exists():
    _RAY["RAY_AUTH_MODE"] = "token"  # most clusters ask for it
for _name, _value in _RAY.items():
    os.environ.setdefault(_name, _value)
