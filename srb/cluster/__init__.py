"""Runs the engine on several machines: replicas of it on Ray Serve, and servers in front of them.

    server/ ── ClusterEngine (cluster_engine.py) ── Replicas ── Ray ──┬── Replica (replica.py): an AsyncEngine
               split_request.py: splits     ray_replicas.py: calls,   ├── Replica
               a request, and runs its      deploy.py: what Ray       └── Replica
               parts on replicas            Serve runs, its router
               placement.py: chooses
               the replica

The event logs are in the front, so nothing is lost with a replica: the front has all events so far, and another replica
resumes from there (`srb.engine.resume`).

The front has only the vocabulary of the model. A replica sends the events of each step as one message. The id of a
request doesn't name a place: a front that doesn't have it asks the others (`srb.server.http.proxy`), whose addresses
are in a Ray actor (`Peers`). Ray Serve starts, watches and stops replicas, and carries messages; placement.py chooses
the replica of a request.
"""

import os
from pathlib import Path

# Ray reads these variables when it is imported. Variables that are set already stay.
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
