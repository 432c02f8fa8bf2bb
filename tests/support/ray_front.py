"""Ray Serve's own router with a PrefixRouter in it, and replicas that are not there.

Importing Ray takes seconds, so that tests import this where they use it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock

from ray.serve._private.common import (
    DeploymentHandleSource,
    DeploymentID,
    ReplicaID,
    ReplicaQueueLengthInfo,
    RequestMetadata,
)
from ray.serve._private.router import AsyncioRouter
from ray.serve.request_router import PendingRequest

from srb.cluster.router import PrefixRouter

DEPLOYMENT = DeploymentID("engine", "srb")


class Answer:
    """What a replica gives back for a call, from the router's point of view."""

    def __init__(self, accepted: bool) -> None:
        self.accepted = accepted
        self.cancelled = False
        self._callbacks: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    async def get_rejection_response(self) -> ReplicaQueueLengthInfo:
        return ReplicaQueueLengthInfo(accepted=self.accepted, num_ongoing_requests=0)

    def cancel(self) -> None:
        self.cancelled = True
        self.end()

    def end(self, result: Any = None) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(result)


@dataclass(eq=False)
class Replica:
    """As much of Ray Serve's `RunningReplica` as routing uses."""

    name: str
    routing_stats: dict[str, Any] = field(default_factory=dict)
    queue_len: int | None = 0
    refuses: int = 0
    broken: bool = False
    max_ongoing_requests = 1000
    is_cross_language = False
    actor_id = None
    answers: list[Answer] = field(default_factory=list)

    @property
    def replica_id(self) -> ReplicaID:
        return ReplicaID(self.name, DEPLOYMENT)

    async def get_queue_len(self, *, deadline_s: float) -> int:
        if self.queue_len is None:
            await asyncio.Event().wait()
        assert self.queue_len is not None
        return self.queue_len

    def try_send_request(self, pending: PendingRequest, with_rejection: bool) -> Answer:
        if self.broken:
            raise OSError("cut")
        answer = Answer(accepted=not self.refuses)
        self.refuses = max(self.refuses - 1, 0)
        self.answers.append(answer)
        return answer


class Front:
    """A front's handle to the replicas."""

    def __init__(self, *names: str) -> None:
        self.routing = PrefixRouter(
            deployment_id=DEPLOYMENT,
            handle_source=DeploymentHandleSource.UNKNOWN,
            use_replica_queue_len_cache=True,
            initial_backoff_s=0.001,
            max_backoff_s=0.001,
        )
        self.routing.queue_len_response_deadline_s = 0.01
        self.router = AsyncioRouter(
            controller_handle=Mock(),
            deployment_id=DEPLOYMENT,
            handle_id="handle",
            self_actor_id="actor",
            handle_source=DeploymentHandleSource.UNKNOWN,
            event_loop=asyncio.get_running_loop(),
            enable_strict_max_ongoing_requests=True,
            node_id="node",
            availability_zone=None,
            prefer_local_node_routing=False,
            request_router=self.routing,
            _request_router_initialized_event=asyncio.Event(),
        )
        self.replicas: dict[str, Replica] = {}
        self.ids = iter(map(str, range(1000)))
        if names:
            self.update(*names)

    def update(self, *names: str) -> None:
        self.replicas = {name: self.replicas.get(name) or Replica(name) for name in names}
        self.routing.update_replicas(list(self.replicas.values()))  # type: ignore[arg-type]

    async def call(self, *args: Any, **kwargs: Any) -> Answer:
        request_id = next(self.ids)
        answer: Any = await self.router.assign_request(
            RequestMetadata(request_id, request_id, call_method="run"), *args, **kwargs
        )
        assert isinstance(answer, Answer)
        return answer

    def loads(self) -> dict[str, int]:
        return {name: self.routing._placement.load(name) for name in self.replicas}
