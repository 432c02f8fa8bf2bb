"""Replicas in this process, which can be killed, cut off and brought back."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fake_backend import ByteTokenizer, FakeBackend, Gate

from srb.cluster.cluster_engine import ClusterEngine
from srb.cluster.replica import FRONT_SECONDS, Message, Replica, ReplicaLostError, Report
from srb.engine.backend import Backend
from srb.engine.engine import Engine
from srb.engine.events import AbortReason, Event
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.errors import InvalidRequestError, ModelLoadError
from srb.options.settings import Settings
from srb.serving.async_engine import AsyncEngine
from srb.serving.engine_client import client_options

BEAT_SECONDS = 0.02

OPTIONS = client_options(Settings(max_queue=1000))
"""All options but the length of the queue are those of a served replica."""


def slow(**options: Any) -> FakeBackend:
    """A step takes a moment, so that something can happen meanwhile."""
    return FakeBackend(on_decode=lambda: time.sleep(0.002), **options)


class Gated:
    """Makes replicas that stop in a decode, after some steps, until they are opened. Then they are `slow`."""

    def __init__(self, steps: int = 0, **options: Any) -> None:
        self._steps, self._options, self._is_open = steps, options, False
        self.gates: list[Gate] = []

    def __call__(self) -> FakeBackend:
        self.gates.append(gate := Gate(backend := FakeBackend(**self._options)))
        gate.step(self._steps)
        stand = backend.on_decode

        def on_decode() -> None:
            stand()
            time.sleep(0.002)

        backend.on_decode = on_decode
        if self._is_open:
            gate.open()
        return backend

    def step(self, n: int) -> None:
        for gate in self.gates:
            gate.step(n)

    def open(self) -> None:
        self._is_open = True
        for gate in self.gates:
            gate.open()


class FakeVocabulary:
    """Bytes."""

    model = "the model"
    chat_template = None
    model_info = FakeBackend.model_info

    def __init__(self) -> None:
        self.tokenizer = ByteTokenizer()
        self.closed = False

    def check(self, branches: tuple[SamplingParams, ...], n_cells: int) -> None:
        if any(params.grammar == "bad" for params in branches):
            raise InvalidRequestError("grammar doesn't parse", param="grammar")

    def close(self) -> None:
        self.closed = True


class ReplicasHere:
    """Engines on fake backends, by their names.

    make: makes a backend. make_engine: makes the engine of the replica with this name. front_seconds: of `Replica`.
    options: of each `AsyncEngine`.
    """

    def __init__(
        self,
        make: Callable[[], FakeBackend],
        names: str = "ab",
        model: str = "the model",
        make_engine: Callable[[str, Backend], Engine] = lambda _name, backend: Engine(backend),
        front_seconds: float = FRONT_SECONDS,
        **options: Any,
    ) -> None:
        self.make = make
        self.front_seconds = front_seconds
        self.options = OPTIONS | options
        self.make_engine = make_engine
        self.model = model
        self.names = names
        self.there: dict[str, Replica] = {}
        self.engines: dict[str, AsyncEngine] = {}
        self.cut: set[str] = set()
        self.is_silent = False
        """Whether the front asks no replica how it is, while all else comes and goes."""
        self.reported: dict[str, Report] = {}
        """What replicas report in place of the truth, by their names."""
        self.ran: list[tuple[str, CompletionRequest]] = []
        self.others: list[str] = []
        self.problem: str | None = None
        self.dead: dict[str, asyncio.Event] = {}

    async def start(self) -> None:
        for name in self.names:
            await self.add(name)

    async def add(self, name: str) -> None:
        make_engine = partial(self.make_engine, name)
        self.engines[name] = engine = AsyncEngine(lambda _progress: self.make(), make=make_engine, **self.options)
        replica = Replica(
            engine, name, f"node {name}", self.model, beat_seconds=BEAT_SECONDS, front_seconds=self.front_seconds
        )
        await replica.start()
        self.there[name] = replica
        self.dead[name] = asyncio.Event()

    async def kill(self, name: str) -> None:
        """What runs there is lost at once."""
        replica = self.there.pop(name)
        self.dead[name].set()
        await replica.close()

    async def run(self, request: CompletionRequest, name: str) -> AsyncGenerator[Message]:
        if name not in self.there:
            raise ReplicaLostError(f"{name} isn't there")
        self.ran.append((name, request))
        stream = self.there[name].run(request, front="front", to=name)
        dead = asyncio.ensure_future(self.dead[name].wait())
        said: asyncio.Future[Message | None] = asyncio.get_running_loop().create_future()
        try:
            while True:
                said = asyncio.ensure_future(anext(stream, None))
                await asyncio.wait({said, dead}, return_when=asyncio.FIRST_COMPLETED)
                if dead.done():
                    raise ReplicaLostError(f"{name} has died")
                while name in self.cut:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                if (each := said.result()) is None:
                    return
                yield each
        finally:
            dead.cancel()
            said.cancel()
            await asyncio.wait({said})
            await stream.aclose()

    async def abort(self, name: str, request_id: str, index: int | None, reason: AbortReason) -> bool:
        if name not in self.there or name in self.cut:
            return False
        await self.there[name].abort(request_id, index, reason, to=name)
        return True

    async def reports(self) -> list[Report]:
        reached = () if self.is_silent else [name for name in self.there if name not in self.cut]
        asked = (self.there[name].report("front") for name in reached)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        reports = (self.reported.get(name, each) for name, each in zip(reached, answers, strict=True))
        return [each for each in reports if isinstance(each, Report)]

    async def fronts(self, urls: Sequence[str]) -> list[str]:
        return self.others

    async def trouble(self) -> str | None:
        if not self.names:
            raise ModelLoadError("a replica can't start: no memory")
        return self.problem

    def embed(self, tokens: tuple[int, ...]) -> list[list[float]]:
        return [[float(len(tokens))]]

    async def close(self) -> None:
        for replica in self.there.values():
            await replica.close()


@asynccontextmanager
async def cluster(
    make: Callable[[], FakeBackend],
    names: str = "ab",
    make_engine: Callable[[str, Backend], Engine] = lambda _name, backend: Engine(backend),
    engine_options: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[tuple[ClusterEngine, ReplicasHere]]:
    """A server's engine on such replicas. engine_options: of each `AsyncEngine`. options: of the `ClusterEngine`."""
    replicas = ReplicasHere(make, names, make_engine=make_engine, **engine_options or {})
    async with ClusterEngine(replicas, FakeVocabulary, beat_seconds=BEAT_SECONDS, **options) as engine:
        yield engine, replicas


async def collect(engine: ClusterEngine, each: CompletionRequest) -> list[Event]:
    """The events of a request."""
    return [event async for event in engine.generate(each)]
