"""Runs the engine on several machines: replicas of it behind Ray Serve, with the server in front of them.

    server/ ── ClusterEngine (front.py) ── Replicas (replicas.py) ── Ray ──┬── Replica (replica.py): an AsyncEngine
               parts.py: one request,      ray_replicas.py: calls,         ├── Replica
               sent as several             deploy.py: what is started,     └── Replica
               placement.py: where to      router.py: a call goes to
               run.py: a part, sent        the replica that it names
               until it has ended

The journals are in the front, so nothing is lost with a replica: the front has all events so far, and another replica
goes on from there (`srb.engine.resume`).

In place of an engine the front has only the vocabulary. A replica's steps come back as lists of the same events, one
message per step. The id of a request doesn't name a place: a front that doesn't have it asks the others
(`srb.server.http.proxy`), which it has met in a Ray actor (`meeting.py`). Ray Serve starts, watches and stops replicas,
and carries messages; `placement.py` decides where a request goes.
"""

import os
from pathlib import Path

# Ray reads these variables when it is imported. A variable that is set already keeps its value.
_RAY = {
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",  # without it, Ray prints the stack when this process gets SIGTERM
    "RAY_SERVE_USE_GRPC_BY_DEFAULT": "1",  # cheaper: messages don't go through Ray's object store
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1",  # seconds; Ray's default is 10
    "RAY_worker_niceness": "0",  # for a Ray that this process starts: engines shouldn't yield to all other programs
}
if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & set(os.environ) or Path("~/.ray/auth_token").expanduser().exists():
    _RAY["RAY_AUTH_MODE"] = "token"  # most clusters ask for the token
for _name, _value in _RAY.items():
    os.environ.setdefault(_name, _value)
