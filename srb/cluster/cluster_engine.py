"""`ClusterEngine`: replicas of the engine on other machines, used as one engine.

The event logs are here. When a replica is lost, its alternatives resume on another one after their last token. So a
reader notices a pause, and nothing else.
"""

import asyncio
import dataclasses
import ipaddress
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from srb.cluster.placement import Placement, unpack_blocks
from srb.cluster.replica import BEAT_SECONDS, SILENCE_SECONDS, Replicas, Report
from srb.cluster.split_request import PartRun, SplitRequest, split
from srb.engine.events import AbortReason
from srb.engine.kv_cache.state_cache import StateCache
from srb.engine.limits import resolve
from srb.engine.lora import Adapters
from srb.engine.mailbox import Answer
from srb.engine.model import ChatTemplate, ModelInfo, Tokenizer
from srb.engine.model_facts import ModelFacts
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.engine.stats import EngineStats
from srb.errors import InvalidRequestError, ModelLoadError, NotSupportedError, SrbError
from srb.serving.engine_client import EngineClient


class Place(NamedTuple):
    """Where a server can be reached. url: its address, if it has one. node: the address of its machine."""

    url: str | None
    node: str

    @property
    def is_local(self) -> bool:
        """Whether only programs on the same machine can reach it."""
        return self.url is None or ipaddress.ip_address(urlsplit(self.url).hostname or "").is_loopback


class Peers:
    """The servers that were here lately, by a clock in seconds. It is in a Ray actor, which all of them call."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, tuple[Place, float]] = {}

    def announce(self, name: str, place: Place) -> list[Place]:
        """Notes the place of a server. Returns those of the other servers that were here lately."""
        now = self._clock()
        self._seen = {each: seen for each, seen in self._seen.items() if now - seen[1] < SILENCE_SECONDS}
        self._seen[name] = place, now
        return [each for other, (each, _) in self._seen.items() if other != name]


def place_of(urls: Iterable[str], node: str) -> Place:
    """Returns the place of a server that listens at these URLs. An address that other machines reach is preferred.

    An address that means all addresses of the machine, such as 0.0.0.0, is replaced by `node`.
    """
    own = f"[{node}]" if ":" in node else node
    places = [Place(url.replace("//0.0.0.0", f"//{own}").replace("//[::]", f"//{own}"), node) for url in urls]
    return min(places, key=lambda each: each.is_local, default=Place(None, node))


def reachable(own: Place, others: Iterable[Place]) -> list[str]:
    """Returns the addresses of the servers that a server can reach. Some listen only to their own machine."""
    return [each.url for each in others if each.url and (each.node == own.node or not each.is_local)]


logger = logging.getLogger("srb")

TROUBLE_ROUNDS = 10
"""Every tenth round asks why replicas are missing, even if none is lost. Ray's controller takes a while to answer."""

FORGET_SECONDS = 60.0
"""How long `/health` shows a lost replica, in seconds."""


class Vocabulary(Protocol):
    """The facts about a model that don't need its weights. May be used from any thread."""

    @property
    def model(self) -> str: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def chat_template(self) -> ChatTemplate | None: ...

    @property
    def model_info(self) -> ModelInfo: ...

    def check(self, branches: tuple[SamplingParams, ...], n_cells: int) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Report:
    """The last report of a replica, and when it came, in seconds of the event loop's clock."""

    report: Report
    at: float


class ClusterEngine(EngineClient):
    """Runs requests on replicas. Use it as a context manager, or call `start`, `ready` and `stop`.

    `load` reads the model's vocabulary, in a worker thread. `beat_seconds` is the time between two rounds of reports.
    """

    def __init__(
        self,
        replicas: Replicas,
        load: Callable[[], Vocabulary],
        *,
        beat_seconds: float = BEAT_SECONDS,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.beat_seconds = beat_seconds
        self._load = load
        self.replicas = replicas
        self.placement = Placement()
        self._vocabulary: Vocabulary | None = None
        self._reports: dict[str, _Report] = {}  # by the names of replicas
        self._troubles: set[str] = set()
        self._runs: dict[str, list[PartRun]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def check(self, request: CompletionRequest) -> None:
        self.model.limits.check(resolve(request, self.model.tokenizer.special))
        if any(params.logits_processor for params in request.branches):
            raise InvalidRequestError(
                "logits_processor is a function, which can't be sent to replicas; leave it out, or use an engine in "
                "this process",
                param="logits_processor",
                code="unsupported_parameter",
            )

    @property
    def adapters(self) -> Adapters:
        raise NotSupportedError("adapters can't be listed or set where several replicas run; --lora has their scales")

    async def ask(self, slot: int, question: Callable[[StateCache], Answer]) -> Answer:
        raise NotSupportedError("slots can't be saved, restored or erased where several replicas run")

    @property
    def lost(self) -> frozenset[str]:
        """The names of the replicas whose last report is older than SILENCE_SECONDS."""
        now = self._loop.time()
        return frozenset(name for name, each in self._reports.items() if now - each.at > SILENCE_SECONDS)

    def _load_model(self) -> None:
        self.spawn(self._ask_replicas())

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs a coroutine until it ends or the engine ends."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _take(self, request: CompletionRequest) -> None:
        self.check(request)
        assert self._vocabulary is not None
        await asyncio.to_thread(self._vocabulary.check, request.branches, self.model.n_cells)
        request = dataclasses.replace(request, ahead=0)  # this server prefetches, and not each replica
        room = min(each.report.stats.max_sequences for each in self._reports.values())
        whole = SplitRequest(request, split(request, room, max(1, len(self._reports) - len(self.lost))))
        self._runs[request.id] = runs = [PartRun(self, whole, part) for part in whole.parts]
        for run in runs:
            run.task = self.spawn(run.follow())
            run.task.add_done_callback(partial(self._on_run_ended, whole))

    def _on_run_ended(self, whole: SplitRequest, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            logger.error("a fault in srb: a request can't be sent to replicas", exc_info=error)
            for part in whole.parts:
                if not part.done:
                    self.put(whole.end(part, "error", None, SrbError(f"a fault in srb: {error}")))
        if whole.done:
            self._runs.pop(whole.request.id, None)

    def _end(self, request_id: str, index: int | None, reason: AbortReason) -> None:
        for run in self._runs.get(request_id, ()):
            if index is None:
                run.abort(None, reason)
            elif index in run.part.indices:
                run.abort(run.part.indices.index(index), reason)

    def _prioritize(self, request_id: str, priority: int) -> None:
        """Does nothing: replicas keep the priority that a request came with."""

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.replicas.close()
        if self._vocabulary:
            await asyncio.to_thread(self._vocabulary.close)

    # The replicas

    async def _ask_replicas(self) -> None:
        """Asks the replicas for reports until the engine ends."""
        try:
            self._vocabulary = await asyncio.to_thread(self._load)
            await self.replicas.start()
        except Exception as error:
            self._on_load_failed(error)
            return None
        rounds = itertools.count()
        while True:
            try:
                reports, others = await asyncio.gather(self.replicas.reports(), self.replicas.fronts(self.urls))
                self._take_reports(reports)
                self.others = tuple(others)
                if not self._reports or self.lost or next(rounds) % TROUBLE_ROUNDS == 0:
                    self._complain(await self.replicas.trouble())
            except ModelLoadError as error:
                if not self._reports:
                    return self._on_load_failed(error)
                self._complain(error.message)
            except Exception:
                logger.exception("the replicas can't be asked for reports")
            await asyncio.sleep(self.beat_seconds)

    def _take_reports(self, reports: list[Report]) -> None:
        assert self._vocabulary is not None
        now, before = self._loop.time(), self.lost
        identities = {report.identity for report in reports} | {each.report.identity for each in self._reports.values()}
        for report in reports:
            if report.model != self._vocabulary.model:
                self._complain(f"replica {report.name} on {report.node} has another model file than this server")
                continue
            if report.name not in self._reports:
                logger.info("replica %s on %s takes requests", report.name, report.node)
                if self._reports and len(identities) > 1:
                    logger.warning("replicas differ, so the same seed may give other texts: %s", " / ".join(identities))
            elif report.name in before:
                logger.info("replica %s on %s is back", report.name, report.node)
            self._reports[report.name] = _Report(report, now)
        for name in self.lost - before:
            logger.warning("replica %s on %s is lost", name, self._reports[name].report.node)
        # At least one report stays while all replicas are lost, because `model` needs it.
        latest = max((each.at for each in self._reports.values()), default=now)
        oldest = min(latest, now - FORGET_SECONDS)
        self._reports = {name: each for name, each in self._reports.items() if each.at >= oldest}
        self.placement.set_replicas(self._reports)
        for report in reports:
            self.placement.report(report.name, report.load, unpack_blocks(report.blocks))
        lost = self.lost
        self._replicas = tuple(
            dataclasses.replace(each.report, status="lost" if name in lost else "ready")
            for name, each in sorted(self._reports.items())
        )
        if self._reports:
            self._stats = EngineStats.sum([each.report.stats for each in self._reports.values()])
            self._model = self._facts(self._vocabulary)
            if self._status == "loading":
                self._on_loaded()

    def _facts(self, vocabulary: Vocabulary) -> ModelFacts:
        reports = [each.report for each in self._reports.values()]
        embeds = next((each.embeds for each in reports), None)
        return ModelFacts(
            vocabulary.tokenizer,
            min(each.n_cells for each in reports),
            lambda: vocabulary.model_info,
            "+".join(sorted({each.identity for each in reports})),
            chat_template=vocabulary.chat_template,
            embedder=_RemoteEmbedder(*embeds, self.replicas.embed) if embeds else None,
        )

    def _complain(self, trouble: str | None) -> None:
        """Logs why replicas are missing. Each reason is logged once."""
        if trouble and trouble not in self._troubles:
            self._troubles.add(trouble)
            logger.warning("%s", trouble)


@dataclass(frozen=True)
class _RemoteEmbedder:
    """An `Embedder` that sends texts to a replica."""

    max_tokens: int
    pools: bool
    rank_template: str | None
    embed: Callable[[tuple[int, ...]], list[list[float]]]
