"""A request router for Ray Serve, which chooses replicas with `Placement`.

A front names the router in the deployment's `RequestRouterConfig`, and calls the replicas through a handle:

    handle.run.remote(request, avoid=frozenset({"replica"}))   a `CompletionRequest`: to the best replica
    handle.abort.remote("cmpl-1", to="replica")                to this replica, and to no other
    handle.props.remote()                                      to any replica

The replica's method gets both keywords, too. The name of a replica is its `ReplicaID.unique_id`. A replica's
`record_routing_stats` returns `{"load": int, "blocks": bytes}`, as `Placement.report` and `pack_blocks` describe.
"""

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from srb.cluster.placement import Placement, blocks_of, unpack_blocks
from srb.engine.asking.request import CompletionRequest
from srb.errors import UnavailableError


class PrefixRouter(RequestRouter):
    """Sends a request to the replica that knows the longest beginning of its prompt, as `Placement.choose` describes.

    A call with `to` raises `UnavailableError` if this replica isn't there, or disappears while the call waits to be
    sent. If the replica is there but hangs, the call waits until the caller cancels it. A request without `to` waits
    until there is a replica.

    The load of a request counts from the moment when its replica is chosen until its answer has ended, or it was
    cancelled. Everything here runs in the one event loop of Ray Serve's router.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._placement = Placement()
        self._named: dict[str, RunningReplica] = {}
        self._reported: dict[str, dict[str, Any]] = {}
        self._waiting: dict[str, tuple[int, list[list[int]]]] = {}

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Takes the replicas that exist, and what they have reported."""
        super().update_replicas(replicas)
        self._follow_replicas()
        for name, replica in self._named.items():
            stats = replica.routing_stats
            # Ray Serve passes all replicas each time one has news. A report that came before must not count as new.
            if stats and stats != self._reported.get(name):
                self._reported[name] = stats
                self._placement.report(name, stats["load"], unpack_blocks(stats["blocks"]))

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Forgets a replica that was found dead before Ray Serve's controller knows it."""
        super().on_replica_actor_died(replica_id)
        self._follow_replicas()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The replicas for a call, best first, each in a rank of its own.

        Ray Serve calls this again until a replica has taken the call.
        """
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        if gone := self._gone(pending_request):
            if not pending_request.future.done():
                pending_request.future.set_exception(gone)
            # With an empty list, Ray Serve would ask again, and never see that the call has failed.
            return [candidate_replicas]
        if to := pending_request.kwargs.get("to"):
            return [[self._named[to]]]
        request_id = pending_request.metadata.internal_request_id
        if request_id not in self._waiting:
            return [candidate_replicas]
        weight, prompts = self._waiting[request_id]
        self._placement.end(request_id)
        names = self._placement.choose(prompts, weight, pending_request.kwargs.get("avoid", frozenset()))
        # It counts already now, because replicas for other requests are chosen before this one is sent: for the other
        # parts of the same request, for example.
        self._placement.begin(request_id, names[0], weight, prompts)
        return [[self._named[name]] for name in names]

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        """Counts a call until it is sent. Ray Serve's public hooks don't tell of a call that is cancelled before that.

        After this method Ray Serve sends the call at once. From then on it reports the end of the call, once for each
        replica that the call was sent to. The report for a replica that has refused the call may come after the next
        replica was chosen. So a call that was sent is counted separately for each replica.
        """
        request_id = pending_request.metadata.internal_request_id
        request = next(iter(pending_request.args), None)
        if isinstance(request, CompletionRequest) and "to" not in pending_request.kwargs:
            weight = len(request.prompts) * (request.n_beams or len(request.branches))
            blocks = [blocks_of(prompt, within=request.shared_within) for prompt in request.token_ids]
            self._waiting[request_id] = weight, blocks
        try:
            if gone := self._gone(pending_request):
                raise gone
            replica = await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        except BaseException:
            self._remove_pending_request_from_indices(pending_request)
            raise
        finally:
            self._placement.end(request_id)
            weight, prompts = self._waiting.pop(request_id, (0, []))
        if prompts:
            name = replica.replica_id.unique_id
            self._placement.begin((name, request_id), name, weight, prompts)
        return replica

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """Stops counting a request at a replica, however it has ended there."""
        self._placement.end((replica_id.unique_id, internal_request_id))

    def _follow_replicas(self) -> None:
        self._named = {replica_id.unique_id: replica for replica_id, replica in self.curr_replicas.items()}
        self._reported = {name: stats for name, stats in self._reported.items() if name in self._named}
        self._placement.set_replicas(self._named)

    def _gone(self, pending_request: PendingRequest) -> UnavailableError | None:
        to = pending_request.kwargs.get("to")
        return UnavailableError(f"the replica {to} isn't there") if to and to not in self._named else None
