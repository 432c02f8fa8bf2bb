"""Tells Ray Serve what to run: how many replicas, and the settings, CPUs and GPUs of each."""

import dataclasses
from pathlib import Path
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from srb.cluster.placement import replicas_wanted
from srb.cluster.served import MANY, ServedReplica
from srb.llama.model.model_file import find_model, fingerprint
from srb.llama.native.params import physical_cores
from srb.options.settings import SERVER_OPTIONS, Settings

APPLICATION = "srb"
"""The name of the replicas' application in Ray Serve."""

DEPLOYMENT = "Replica"

DRAIN_SECONDS = 20.0
"""How long a replica that must end may finish what runs there. What is left then goes on with another replica."""


def application(settings: Settings) -> serve.Application:
    """The replicas as Ray Serve deploys them."""
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
    router: dict[str, Any] = {"request_router_class": "srb.cluster.router.NamedRouter"}
    deployment: Any = serve.deployment(
        ServedReplica,
        name=DEPLOYMENT,
        **scale,
        ray_actor_options={"num_cpus": cpus, "num_gpus": settings.replica_gpus},
        max_ongoing_requests=MANY,
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
    """The replicas, for `serve deploy`. Its configuration file names this function, and has srb's options as `args`."""
    path = Path(options.pop("model")) if "model" in options else None
    return application(Settings(model=path, **{name.replace("-", "_"): value for name, value in options.items()}))


def replica_cpus(settings: Settings) -> int:
    """How many CPUs a replica has: the number that the settings give, or else the cores of this machine.

    If all replicas are on this machine, they share its cores equally.
    """
    here = physical_cores() // (1 if settings.ray_address else settings.replica_limits[1])
    return settings.replica_cpus or settings.threads or max(1, here)
