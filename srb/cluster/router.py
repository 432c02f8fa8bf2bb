"""A request router for Ray Serve: a call goes to the replica that it names, `handle.run.remote(request, to="replica")`.

The front decides which one that is (`placement.py`). The name of a replica is its `ReplicaID.unique_id`.
"""

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica


class NamedRouter(RequestRouter):
    """Sends a call with `to` to this replica, and any other call to any replica.

    If the named replica isn't there, another one gets the call, and refuses it: it gets `to`, too. If it is there but
    hangs, the call waits until the caller cancels it.
    """

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replicas that may get a call. Ray Serve calls this again until one of them has taken the call."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        to = pending_request.kwargs.get("to")
        return [[each for each in candidate_replicas if each.replica_id.unique_id == to] or candidate_replicas]
