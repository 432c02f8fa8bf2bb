"""`ServedReplica`: a replica that Ray Serve runs in a process of its own, on any machine of the cluster."""

import asyncio
import dataclasses
import logging

import ray
from ray import serve

from srb.cluster.replica import Replica
from srb.errors import ModelLoadError, SrbError
from srb.files.download import fetch_model
from srb.llama.model.model_file import find_model, fingerprint
from srb.options.settings import Settings
from srb.serving.async_engine import AsyncEngine

MANY = 1 << 20
"""How many requests may wait in a replica. It is no limit, because the front limits how many wait in all."""


class ServedReplica(Replica):
    """A replica that makes its engine when Serve makes the replica.

    model: the hash of the model file that the front has, or None to take this machine's file unchecked.
    Raises `ModelLoadError` if this machine's file is another one, or can't be loaded.
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
            settings = dataclasses.replace(settings, max_queue=MANY)
            super().__init__(lambda record: AsyncEngine.from_settings(settings, record=record), name, node, found)
            await self.start()
        except SrbError as error:  # Ray passes the text of this error on, and the front shows it
            raise ModelLoadError(f"node {node}: {error.message}") from None

    async def __del__(self) -> None:
        if hasattr(self, "_watching"):  # else its engine could not be started
            await self.close()
