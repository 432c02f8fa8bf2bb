"""`ClusterEngine` sends requests to replicas of the engine on other machines, and makes them look like one engine.

The journals are here. When a replica is lost, its alternatives go on with another one, behind the last token that has
come. So a reader notices a pause, and nothing else.
"""

import asyncio
import dataclasses
import itertools
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from srb.cluster.parts import Whole, split
from srb.cluster.placement import Placement, unpack_blocks
from srb.cluster.replicas import BEAT_SECONDS, SILENCE_SECONDS, Replicas, Report
from srb.cluster.run import Run
from srb.engine.events import AbortReason
from srb.engine.infill import resolve
from srb.engine.kv_cache.slots import Slots
from srb.engine.limits import RequestLimits
from srb.engine.lora import Adapters
from srb.engine.model import ChatTemplate, Embedder, ModelInfo, Tokenizer
from srb.engine.offline import Answer
from srb.engine.request import CompletionRequest
from srb.engine.sampling_params import SamplingParams
from srb.engine.stats import EngineStats
from srb.errors import InvalidRequestError, ModelLoadError, NotSupportedError, SrbError
from srb.serving.engine_client import EngineClient
from srb.serving.health import ReplicaHealth

logger = logging.getLogger("srb")

TROUBLE_ROUNDS = 10
"""While all is well, only every tenth round asks why replicas are missing: Ray's controller takes a while to answer."""

FORGET_SECONDS = 60.0
"""How long `/health` shows a lost replica."""


class Vocabulary(Protocol):
    """What is known of a model without its weights. May be used from any thread."""

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
class _Heard:
    """The last report of a replica, and when it came, in seconds of the event loop's clock."""

    report: Report
    at: float


class ClusterEngine(EngineClient):
    """Runs requests on replicas. Use it as a context manager, or call `start`, `ready` and `stop`.

    load: reads the model's vocabulary. It is called in a worker thread.
    record, others: see `EngineClient`.
    """

    def __init__(self, replicas: Replicas, load: Callable[[], Vocabulary], **others: Any) -> None:
        super().__init__(**others)
        self._load = load
        self.replicas = replicas
        self.placement = Placement()
        self._vocabulary: Vocabulary | None = None
        self._heard: dict[str, _Heard] = {}
        self._troubles: set[str] = set()
        self._runs: dict[str, list[Run]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def tokenizer(self) -> Tokenizer:
        """See `EngineClient.tokenizer`."""
        return self._ready_vocabulary().tokenizer

    @property
    def identity(self) -> str:
        """See `EngineClient.identity`. If the replicas differ, it has the identities of all."""
        self.check_ready()
        return "+".join(sorted({each.report.identity for each in self._heard.values()}))

    @property
    def chat_template(self) -> ChatTemplate | None:
        """See `EngineClient.chat_template`."""
        return self._ready_vocabulary().chat_template

    @property
    def model_info(self) -> ModelInfo:
        """See `EngineClient.model_info`."""
        return self._ready_vocabulary().model_info

    @property
    def embedder(self) -> Embedder | None:
        """See `EngineClient.embedder`."""
        self.check_ready()
        embeds = next((each.report.embeds for each in self._heard.values()), None)
        return _RemoteEmbedder(*embeds, self.replicas.embed) if embeds else None

    @property
    def n_cells(self) -> int:
        """See `EngineClient.n_cells`. If the replicas differ, it is the smallest number."""
        self.check_ready()
        return min(each.report.n_cells for each in self._heard.values())

    def tokenize(self, text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]:
        """See `EngineClient.tokenize`."""
        return RequestLimits(self.tokenizer, self.n_cells).tokenize(text, is_prompt=is_prompt, any_length=any_length)

    def check(self, request: CompletionRequest) -> None:
        """See `EngineClient.check`."""
        RequestLimits(self.tokenizer, self.n_cells).check(resolve(request, self.tokenizer.special))
        if any(params.logits_processor for params in request.branches):
            raise InvalidRequestError(
                "logits_processor is a function, and can't be sent to replicas; leave it out, or use an engine in this "
                "process",
                param="logits_processor",
                code="unsupported_parameter",
            )

    @property
    def adapters(self) -> Adapters:
        """Raises `NotSupportedError`, because each replica has adapters of its own."""
        raise NotSupportedError("adapters can't be listed or set where several replicas run; --lora has their scales")

    async def ask(self, slot: int, question: Callable[[Slots], Answer]) -> Answer:
        """Raises `NotSupportedError`, because each engine has slots of its own."""
        raise NotSupportedError("slots can't be saved, restored or erased where several replicas run")

    @property
    def lost(self) -> frozenset[str]:
        """The names of the replicas whose last report is older than SILENCE_SECONDS."""
        now = self._loop.time()
        return frozenset(name for name, each in self._heard.items() if now - each.at > SILENCE_SECONDS)

    def _ready_vocabulary(self) -> Vocabulary:
        self.check_ready()
        assert self._vocabulary is not None
        return self._vocabulary

    def _begin(self) -> None:
        self.spawn(self._look_after())

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Runs a coroutine until it ends or the engine ends."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _take(self, request: CompletionRequest) -> None:
        vocabulary, n_cells = self._ready_vocabulary(), self.n_cells
        self.check(request)
        await asyncio.to_thread(vocabulary.check, request.branches, n_cells)
        request = dataclasses.replace(request, ahead=0)  # it is drawn for this server, which has what is there
        room = min(each.report.n_parallel for each in self._heard.values())
        whole = Whole(request, split(request, room, max(1, len(self._heard) - len(self.lost))))
        self._runs[request.id] = runs = [Run(self, whole, part) for part in whole.parts]
        for run in runs:
            run.task = self.spawn(run.follow())
            run.task.add_done_callback(partial(self._ended, whole))

    def _ended(self, whole: Whole, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            logger.error("a fault in the front", exc_info=error)
            for part in whole.parts:
                if not part.done:
                    self.put(whole.end(part, "error", None, SrbError(f"a fault in the front: {error}")))
        if whole.done:
            self._runs.pop(whole.request.id, None)

    def _end(self, request_id: str, index: int | None, reason: AbortReason) -> None:
        for run in self._runs.get(request_id, ()):
            if index is None:
                run.abort(None, reason)
            elif index in run.part.indices:
                run.abort(run.part.indices.index(index), reason)

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.replicas.close()
        if self._vocabulary:
            await asyncio.to_thread(self._vocabulary.close)

    # The replicas

    async def _look_after(self) -> None:
        """Asks the replicas for reports, again and again until the engine ends."""
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
                self._hear(reports)
                self.others = tuple(others)
                if not self._heard or self.lost or next(rounds) % TROUBLE_ROUNDS == 0:
                    self._complain(await self.replicas.trouble())
            except ModelLoadError as error:
                if not self._heard:
                    return self._on_load_failed(error)
                self._complain(error.message)
            except Exception:
                logger.exception("the replicas can't be asked how they are")
            await asyncio.sleep(BEAT_SECONDS)

    def _hear(self, reports: list[Report]) -> None:
        assert self._vocabulary is not None
        now, before = self._loop.time(), self.lost
        known = {report.identity for report in reports} | {each.report.identity for each in self._heard.values()}
        for report in reports:
            if report.model != self._vocabulary.model:
                self._complain(f"replica {report.name} on {report.node} has another model file than this server")
                continue
            if report.name not in self._heard:
                logger.info("replica %s on %s takes requests", report.name, report.node)
                if self._heard and len(known) > 1:
                    logger.warning("replicas differ, so that the same seed may give other texts: %s", " / ".join(known))
            elif report.name in before:
                logger.info("replica %s on %s is back", report.name, report.node)
            self._heard[report.name] = _Heard(report, now)
        for name in self.lost - before:
            logger.warning("replica %s on %s is lost", name, self._heard[name].report.node)
        # At least one report stays while all replicas are lost, because `n_cells` and others read it.
        latest = max((each.at for each in self._heard.values()), default=now)
        first_kept = min(latest, now - FORGET_SECONDS)
        self._heard = {name: each for name, each in self._heard.items() if each.at >= first_kept}
        self.placement.set_replicas(self._heard)
        for report in reports:
            self.placement.report(report.name, report.load, unpack_blocks(report.blocks))
        lost = self.lost
        self._replicas = tuple(
            ReplicaHealth(
                name,
                each.report.node,
                "lost" if name in lost else "ready",
                each.report.running,
                each.report.waiting,
                each.report.stats,
            )
            for name, each in sorted(self._heard.items())
        )
        if self._heard:
            self._stats = EngineStats.sum([each.report.stats for each in self._heard.values()])
            if self._status == "loading":
                self._on_loaded()
        if not any(report.load for report in reports):  # a replica may have made way for another server
            self.ahead.draw()

    def _complain(self, trouble: str | None) -> None:
        """Logs why replicas are missing, once for each reason."""
        if trouble and trouble not in self._troubles:
            self._troubles.add(trouble)
            logger.warning("%s", trouble)


@dataclass(frozen=True)
class _RemoteEmbedder:
    """Sends texts to a replica, which embeds them; see `Embedder`."""

    max_tokens: int
    pools: bool
    rank_template: str | None
    embed: Callable[[tuple[int, ...]], list[list[float]]]
