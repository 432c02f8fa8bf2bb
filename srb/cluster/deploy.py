"""What Ray Serve runs: replicas with their settings, CPUs and GPUs, and the router of their calls."""

import asyncio
import dataclasses
import logging
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from srb.cluster.placement import replicas_wanted
from srb.cluster.replica import Replica
from srb.errors import ModelLoadError, SrbError
from srb.files.download import fetch_model
from srb.llama.model.model_file import find_model, fingerprint
from srb.llama.native.params import physical_cores
from srb.options.settings import SERVER_OPTIONS, Settings
from srb.serving.async_engine import AsyncEngine

APPLICATION = "srb"
"""The name of the application in Ray Serve."""

DEPLOYMENT = "Replica"

DRAIN_SECONDS = 20.0
"""How long a replica that must end may finish its requests, in seconds. The rest resumes on other replicas."""

NO_LIMIT = 1 << 20
"""The number of requests that may wait in a replica. The front limits how many wait in all."""


def application(settings: Settings) -> serve.Application:
    """Makes the application of the replicas."""
    path = None if settings.hf_repo or settings.model_url else find_model(settings.model).absolute()
    least, most = settings.replica_limits
    scale: dict[str, Any] = {"num_replicas": most}
    if least != most:
        scale = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=least,
                max_replicas=most,
                look_back_period_s=15,
                upscale_delay_s=5,
                downscale_delay_s=60,
                policy=AutoscalingPolicy(policy_function=replicas_wanted),  # type: ignore[no-untyped-call]
            )
        }
    cpus = replica_cpus(settings)
    plain = Settings()
    of_the_server = {name: getattr(plain, name) for name in SERVER_OPTIONS | {"api_key", "api_key_file"}}
    draft = settings.model_draft and settings.model_draft.absolute()
    threads = settings.threads or cpus
    engine = dataclasses.replace(settings, **of_the_server, model=path, model_draft=draft, threads=threads)
    router: dict[str, Any] = {"request_router_class": "srb.cluster.deploy.NamedRouter"}
    deployment: Any = serve.deployment(
        ServedReplica,
        name=DEPLOYMENT,
        **scale,
        ray_actor_options={"num_cpus": cpus, "num_gpus": settings.replica_gpus},
        max_ongoing_requests=NO_LIMIT,
        health_check_period_s=2,
        health_check_timeout_s=10,
        graceful_shutdown_timeout_s=DRAIN_SECONDS,
        graceful_shutdown_wait_loop_s=0.2,
        max_constructor_retry_count=3,
        request_router_config=RequestRouterConfig(**router),
    )
    app: serve.Application = deployment.bind(engine, fingerprint(path) if path else None)
    return app


def build(options: dict[str, Any]) -> serve.Application:
    """Makes the application for `serve deploy`. Its configuration names this function; `args` are srb's options."""
    path = Path(options.pop("model")) if "model" in options else None
    return application(Settings(model=path, **{name.replace("-", "_"): value for name, value in options.items()}))


def replica_cpus(settings: Settings) -> int:
    """Returns the number of CPUs of a replica: that of the settings, or else the cores of this machine.

    If all replicas are on this machine, they share its cores equally.
    """
    here = physical_cores() // (1 if settings.ray_address else settings.replica_limits[1])
    return settings.replica_cpus or settings.threads or max(1, here)


class ServedReplica(Replica):
    """A replica in a process of Ray Serve, on any machine of the cluster. Raises `ModelLoadError`.

    `model` is the hash of the front's model file. None: this machine's file isn't checked.
    """

    async def __init__(self, settings: Settings, model: str | None) -> None:  # type: ignore[misc]  # Serve awaits it
        logging.getLogger("srb").setLevel(settings.log_level.upper())
        node: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        try:
            settings = await asyncio.to_thread(fetch_model, settings)
            path = find_model(settings.model)
            found = await asyncio.to_thread(fingerprint, path)
            if model is not None and found != model:
                raise ModelLoadError(
                    f"{path} is another file than on the machine that has started the replicas; all need the same"
                )
            name = serve.get_replica_context().replica_id.unique_id
            settings = dataclasses.replace(settings, max_queue=NO_LIMIT)
            super().__init__(AsyncEngine.from_settings(settings), name, node, found)
            await self.start()
        except SrbError as error:  # Ray passes on the text of this error, and the front shows it
            raise ModelLoadError(f"node {node}: {error.message}") from None

    async def __del__(self) -> None:
        if hasattr(self, "_watching"):  # else its engine could not be started
            await self.close()


class NamedRouter(RequestRouter):
    """Sends a call with `to` to the replica of this name (`ReplicaID.unique_id`), and other calls to any replica.

    The front chooses the replica (placement.py) and calls `handle.run.remote(request, to="replica")`. If there is no
    such replica, another one gets the call, and refuses it because of `to`. If the replica hangs, the call waits until
    the caller cancels it.
    """

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Returns the replicas that may get a call. Ray Serve calls this again until one of them has taken it."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True
        to = pending_request.kwargs.get("to")
        return [[each for each in candidate_replicas if each.replica_id.unique_id == to] or candidate_replicas]
