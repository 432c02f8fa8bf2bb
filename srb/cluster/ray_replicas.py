"""`RayReplicas`: starts or joins replicas on Ray Serve, and calls them for the front."""

import asyncio
import atexit
import logging
import socket
import threading
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any

import grpc
import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from srb.cluster.cluster_engine import ClusterEngine, Peers, Place, place_of, reachable
from srb.cluster.deploy import APPLICATION, DEPLOYMENT, application, replica_cpus
from srb.cluster.replica import SILENCE_SECONDS, Message, ReplicaLostError, Report
from srb.engine.events import AbortReason
from srb.engine.request import CompletionRequest
from srb.errors import ModelLoadError, SettingsError, UnavailableError
from srb.files.download import fetch_model
from srb.llama.vocabulary import Vocabulary
from srb.options.settings import Settings
from srb.serving.engine_client import Record, client_options

logger = logging.getLogger("srb")

REPORT_SECONDS = 1.5
"""The time limit for a replica's report."""

EMBED_SECONDS = 120.0
"""The time limit for the vectors of a text, in seconds."""

_FAULTS = (RayError, RayServeException, grpc.RpcError)  # of calls to replicas

_MOST_KNOWN = 1000  # names of replicas, those of dead ones included


class RayReplicas:
    """Implements `Replicas` on a Ray cluster. If the settings name no cluster, they get a Ray of their own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._front = uuid.uuid4().hex
        self._handle: DeploymentHandle[Any] | None = None
        self._known: list[str] = []
        self._one_hangs = False
        self._peers: Any = None
        self._places: list[Place] = []
        self._has_warned = False
        self._asked: asyncio.Future[Any] | None = None

    async def start(self) -> None:
        await asyncio.to_thread(self._join)
        self._handle = serve.get_deployment_handle(DEPLOYMENT, APPLICATION)

    def _join(self) -> None:
        settings = self._settings
        address = settings.ray_address
        # A Ray of our own gets as many CPUs as all replicas need, even if the machine has fewer: the user decides.
        n_cpus = None if address else replica_cpus(settings) * settings.replica_limits[1]
        if address and address != "auto":
            _check_address(address)
        try:
            ray.init(
                address or "local",
                namespace=APPLICATION,
                include_dashboard=None if address else False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                num_cpus=n_cpus,
            )
        except (ConnectionError, RayError, RuntimeError, ValueError) as error:
            raise SettingsError(
                f"the Ray cluster at --ray-address {address} can't be joined: {_first_line(error)}. It may want its "
                "token: ~/.ray/auth_token of the head node, or RAY_AUTH_TOKEN; and the same versions of Ray and Python"
                if address
                else f"Ray can't be started on this machine: {_first_line(error)}"
            ) from None
        logging.getLogger("ray.serve").setLevel("WARNING")
        serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
        there = serve.status().applications.get(APPLICATION)
        if there and there.status != "DEPLOY_FAILED":
            logger.info("joined running replicas; they keep their own --replicas and engine options")
            return
        app = application(settings)
        serve.run_many([serve.RunTarget(app, name=APPLICATION, route_prefix=None)], wait_for_applications_running=False)

    async def run(self, request: CompletionRequest, name: str) -> AsyncGenerator[Message]:
        assert self._handle
        stream: Any = self._handle.options(stream=True).run.remote(request, front=self._front, to=name)
        try:
            async for message in stream:
                yield message
        except _FAULTS as error:
            raise ReplicaLostError(_first_line(error)) from None
        finally:
            stream.cancel()

    async def abort(self, name: str, request_id: str, index: int | None, reason: AbortReason) -> bool:
        assert self._handle
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                await self._handle.abort.remote(request_id, index, reason, to=name)
        except (*_FAULTS, TimeoutError) as error:
            logger.info("replica %s can't be asked to end %s: %s", name, request_id, _first_line(error))
            return False
        return True

    async def reports(self) -> list[Report]:
        # One call asks all replicas. If one didn't answer, each is also asked alone the next time, so that the others'
        # reports come in time.
        assert self._handle
        asked = [self._broadcast()]
        if self._one_hangs:
            asked += map(self._report, self._known)
        answers = await asyncio.gather(*asked)
        reports = {report.name: report for answer in answers for report in answer}
        self._known = list(dict.fromkeys([*self._known, *reports]))[-_MOST_KNOWN:]
        return list(reports.values())

    async def _broadcast(self) -> list[Report]:
        assert self._handle
        answers: list[Any] = []
        self._one_hangs = False
        try:
            answers = await self._handle.broadcast("report", self._front).results_async(
                timeout_s=REPORT_SECONDS, return_exceptions=True
            )
        except TimeoutError:
            self._one_hangs = True
        except _FAULTS:  # there is no replica now
            pass
        return [answer for answer in answers if isinstance(answer, Report)]

    async def _report(self, name: str) -> list[Report]:
        assert self._handle
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                return [await self._handle.report.remote(self._front, to=name)]
        except (*_FAULTS, UnavailableError, TimeoutError):
            return []

    async def fronts(self, urls: Sequence[str]) -> list[str]:
        own = place_of(urls, ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        if self._peers is None:
            actor: Any = ray.remote(Peers)
            self._peers = actor.options(name="peers", get_if_exists=True, lifetime="detached", num_cpus=0).remote()
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                self._places = await self._peers.announce.remote(self._front, own)
        except (RayError, TimeoutError):  # the places of the last answer count
            self._peers = None
        if own.is_local and {each.node for each in self._places} - {own.node} and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "servers on other machines can't ask this one for its requests, because it listens only to its own "
                "machine; give --host an address that they can reach"
            )
        return reachable(own, self._places)

    async def trouble(self) -> str | None:
        if self._asked is None or self._asked.done():
            self._asked = asyncio.ensure_future(asyncio.to_thread(serve.status))
        # Ray's controller may hang. Go on meanwhile, or the replicas would take this server for gone.
        if not (await asyncio.wait({self._asked}, timeout=REPORT_SECONDS))[0]:
            return None
        status = self._asked.result()
        app = status.applications.get(APPLICATION)
        deployment = app.deployments.get(DEPLOYMENT) if app else None
        if app and app.status == "DEPLOY_FAILED":
            raise ModelLoadError(_problem(deployment.message if deployment else app.message))
        if deployment is None or deployment.status in ("HEALTHY", "UPSCALING", "DOWNSCALING"):
            return None
        return _problem(deployment.message) if deployment.message else None

    def embed(self, tokens: tuple[int, ...]) -> list[list[float]]:
        assert self._handle
        try:
            vectors: list[list[float]] = self._handle.embed.remote(tokens).result(timeout_s=EMBED_SECONDS)
        except (*_FAULTS, TimeoutError) as error:
            raise UnavailableError(f"the replica that embedded a text is lost: {_first_line(error)}") from None
        return vectors

    async def close(self) -> None:
        if not ray.is_initialized():
            return
        if self._asked:  # if Ray ended before the answer, the thread would wait for a minute
            await asyncio.wait({self._asked})
        if self._settings.ray_address is None and not await asyncio.to_thread(_delete):
            atexit.unregister(ray.shutdown)  # it would wait a minute for a Ray that is gone
            return
        await asyncio.to_thread(ray.shutdown)


def _delete() -> bool:
    """Ends the replicas. Returns False if Ray is gone: systemd may have ended all processes of a service at once."""

    def delete() -> None:
        with suppress(*_FAULTS):
            serve.delete(APPLICATION)

    gcs = ray.get_runtime_context().gcs_address
    # In a thread, because `delete` can't be interrupted, and may wait for a minute.
    deleting = threading.Thread(target=delete, daemon=True)
    deleting.start()
    while deleting.is_alive():
        deleting.join(0.5)
        if _connection_error(gcs):
            return False
    return True


def make_engine(settings: Settings, record: Record | None) -> ClusterEngine:
    """Makes an engine on replicas. If it can't start, its `ready` raises `SettingsError` or `ModelLoadError`."""
    return ClusterEngine(
        RayReplicas(settings),
        lambda: Vocabulary(fetch_model(settings)),
        record=record,
        **client_options(settings),
    )


def _check_address(address: str) -> None:
    """Raises `SettingsError` if no program listens at this address. Without this check, Ray would try for minutes."""
    if error := _connection_error(address):
        raise SettingsError(
            f"there is no Ray cluster at --ray-address {address} ({error}); it takes HOST:PORT of the head node, as "
            "`ray start --head` prints it"
        )


def _connection_error(address: str) -> Exception | None:
    """Connects to HOST:PORT. Returns the error, or None if a program listens there."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        return error
    return None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _problem(message: str) -> str:
    """Extracts the error of a replica from Ray's message."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    named = [line for line in lines if "ModelLoadError" in line]
    return f"a replica can't start: {named[-1].split('ModelLoadError')[-1].lstrip(': ')}" if named else lines[0]
