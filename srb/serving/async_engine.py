"""`AsyncEngine`: an engine in a thread of its own, for asyncio.

The thread alone owns the engine. It loads the model, steps the engine while there is work, and hands the events to
the event loop once per step.

If a step raises an exception, the thread makes another engine on the same backend, and the requests resume there
(recovery.py). A new process isn't needed: llama.cpp reports faults by return codes, which end single requests, and an
assertion ends the process anyway. The weights are never written to. The KV cache may be half written, so it is freed.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from srb.engine.backend import Backend
from srb.engine.engine import Engine
from srb.engine.events import AbortReason
from srb.engine.kv_cache.state_cache import StateCache
from srb.engine.lora import Adapters
from srb.engine.mailbox import Answer
from srb.engine.request import LOWEST_PRIORITY, CompletionRequest
from srb.engine.sampling_params import DEFAULT_MAX_TOKENS
from srb.engine.stats import EngineStats, Measure
from srb.errors import EngineDeadError, EngineRestartError, ModelLoadError
from srb.files.disk_cache import DiskCache
from srb.files.download import fetch_model
from srb.options.settings import Settings, check_settings
from srb.serving.early_loading import Load, Progress
from srb.serving.engine_client import EngineClient, Record, client_options
from srb.serving.event_log import EventLog
from srb.serving.logs import loggable
from srb.serving.recovery import Recovery

logger = logging.getLogger("srb")


def load_backend(settings: Settings, progress: Progress) -> Backend:
    """Download the model if needed, and load it. Raises `ModelLoadError`."""
    from srb.llama.backend import LlamaBackend  # imported here, so that other backends don't need llama.cpp

    return LlamaBackend(fetch_model(settings), progress)


class AsyncEngine(EngineClient):
    """An engine in a thread of its own. Use it as a context manager, or call `start`, `ready` and `stop`.

    Args:
        load: makes the backend, in the thread.
        make: makes the engine, in the thread.
        sleep_after: the idle time after which the engine sleeps (`Engine.sleep`), in seconds. None: it never does.
        max_failures: the number of failures after which the engine isn't restarted, if no request goes on in between.
            A request that has caused two of them ends with an error.
        options: `EngineClient`. `record` is called in the thread, once per step.
    """

    def __init__(
        self,
        load: Load,
        *,
        make: Callable[[Backend], Engine] = Engine,
        sleep_after: float | None = None,
        max_failures: int = 6,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._load = load
        self._make = make
        self._sleep_after = sleep_after
        self._max_failures = max_failures
        self._engine: Engine | None = None
        self._recovery = Recovery(self._registry, self._add, self.put)
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._main, name="srb-engine", daemon=True)

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        observe: Callable[[Measure, float], object] = lambda _measure, _seconds: None,
        record: Record | None = None,
        load: Load | None = None,
    ) -> "AsyncEngine":
        """Makes an engine on llama.cpp. If the model can't be loaded, `ready` raises `ModelLoadError`.

        Args:
            settings: of the model and the engine.
            observe: gets the engine's measurements, in its thread.
            record: `EngineClient`.
            load: `AsyncEngine`. None: downloads and loads the model of the settings.

        Raises:
            SettingsError: A setting has a wrong value.
        """
        check_settings(settings)

        def observe_asked(measure: Measure, seconds: float) -> None:
            if client._engine and client._engine.priority < LOWEST_PRIORITY:  # nobody waits for the others
                observe(measure, seconds)

        client = cls(
            load or partial(load_backend, settings),
            make=partial(make_engine, settings, observe=observe_asked),
            record=record,
            sleep_after=settings.sleep_idle_seconds if settings.sleep_idle_seconds > 0 else None,
            **client_options(settings),
        )
        return client

    def check(self, request: CompletionRequest) -> None:
        self._ready_engine().check(request)

    @property
    def adapters(self) -> Adapters:
        return self._ready_engine().adapters

    async def ask(self, slot: int, question: Callable[[StateCache], Answer]) -> Answer:
        answer = self._ready_engine().ask(slot, question)
        self._wake.set()
        return await asyncio.wrap_future(answer)

    def _ready_engine(self) -> Engine:
        self.check_ready()
        assert self._engine is not None
        return self._engine

    def _load_model(self) -> None:
        self._thread.start()

    async def _take(self, request: CompletionRequest) -> None:
        await self._recovery.take(request)

    def _end(self, request_id: str, index: int | None, reason: AbortReason) -> None:
        if index is None:
            self._recovery.abort(request_id, reason)
        assert self._engine is not None
        self._engine.abort(request_id, index, reason)  # it needn't wake: an idle engine has nothing to abort

    def _prioritize(self, request_id: str, priority: int) -> None:
        assert self._engine is not None
        self._engine.prioritize(request_id, priority)

    async def _add(self, request: CompletionRequest) -> None:
        assert self._engine is not None
        try:
            await asyncio.to_thread(self._engine.add_request, request)
        except RuntimeError:  # no thread can be started
            self._engine.add_request(request)
        self._loop.call_soon(self._wake.set)  # after `taken`, which may abort it

    async def _close(self) -> None:
        self._closing = True
        self._wake.set()
        await asyncio.to_thread(self._thread.join)

    def _setting(self) -> tuple[float, ...]:
        assert self._engine is not None
        return tuple(adapter.scale for adapter in self._engine.adapters.listed)

    # Called in the event loop by the thread

    def _on_made(self, engine: Engine, stats: EngineStats) -> None:
        self._engine, self._model, self._stats = engine, engine.model, stats
        self._on_loaded()

    def _on_ended(self, event_log: EventLog) -> None:
        super()._on_ended(event_log)
        if not event_log.error and not event_log.aborted:
            self._recovery.n_failures = 0

    def _on_failure(self, error: Exception, cause: str | None, judged: "Future[bool]") -> None:
        """Interrupts all requests, and says whether the engine may be restarted."""
        if self._status == "ready":
            self._status = "restarting"
        self.prefetcher.interrupt()
        self._recovery.interrupt(error, cause)
        judged.set_result(self._recovery.n_failures < self._max_failures)

    def _on_restart(self, engine: Engine) -> None:
        self._engine, self._model = engine, engine.model
        self._n_restarts += 1
        if self._status == "restarting":
            self._status = "ready"
        self._recovery.resume()

    def _on_death(self, error: EngineDeadError) -> None:
        self._status = "dead"
        self._failure = error
        self._recovery.fail(error)  # before `suspend`, for which they would end as if the server stopped
        if self._record:
            self._registry.suspend()
        self.put([], self._failed.set)

    # The thread

    def _until_sleep(self, idle_from: float | None) -> float | None:
        """Returns the time to wait for work before the engine sleeps, in seconds. None: no limit."""
        if self._sleep_after is None or idle_from is None:
            return None
        return max(0.0, idle_from + self._sleep_after - time.monotonic())

    def _main(self) -> None:
        backend = None
        try:
            backend = self._load(self._progressed)
            engine: Engine | None = self._make(backend)
            assert engine
            stats = engine.stats()
        except Exception as error:
            self._call(partial(self._on_load_failed, error))
            if backend:
                backend.close()
            return
        self._call(partial(self._on_made, engine, stats))
        while engine:
            try:
                self._run(engine)
            except Exception as error:
                engine = self._restarted(engine, backend, error)
            else:
                break
        if engine:
            engine.close()
        backend.close()

    def _progressed(self, fraction: float) -> bool:
        self._progress = fraction
        return not self._closing

    def _run(self, engine: Engine) -> None:
        """Steps the engine while there is work, until `stop`."""
        self._wake.clear()  # else a new engine may begin a resumed request before it hears what to abort of it
        idle_from: float | None = time.monotonic()  # None: it sleeps
        while engine.has_work or not self._closing:
            if engine.has_work:
                events = engine.step()
                # Not with the events: these wait until they are recorded, and may come later.
                self._stats = engine.stats()
                if events:  # a step without events may have answered a question; replicas are asked each second
                    idle_from = time.monotonic()
                    self._is_sleeping = False
                    self.put(events)
            elif self._wake.wait(self._until_sleep(idle_from)):
                self._wake.clear()
            else:
                engine.sleep()
                logger.info("asleep: the model's memory is free until the next request")
                self._is_sleeping = True
                idle_from = None

    def _restarted(self, engine: Engine, backend: Backend, error: Exception) -> Engine | None:
        """Replaces a failed engine. Returns None after too many failures, or if it can't be made."""
        reason = loggable(error) or type(error).__name__  # all requests may get it, so it quotes none of them
        cause = None
        try:
            cause = engine.abandon(EngineRestartError("the engine has failed and restarts"))
            engine.close()
        except Exception:
            logger.exception("the failed engine can't be closed")
        judged: Future[bool] = Future()
        self.put([], partial(self._on_failure, error, cause, judged))
        if judged.result():
            logger.error("the engine has failed and restarts; its requests resume", exc_info=error)
            try:
                backend.reset()
                successor = self._make(backend)
                successor.take_over(engine, reason)
                self._stats = successor.stats()
            except Exception as second:
                error, reason = second, f"{reason}, and can't be restarted: {loggable(second)}"
            else:
                self.put([], partial(self._on_restart, successor))
                return successor
        logger.error(
            "the engine has failed for good; running requests end with an error, new ones are refused", exc_info=error
        )
        self.put([], partial(self._on_death, EngineDeadError(f"the engine has failed: {reason}")))
        return None


def make_engine(
    settings: Settings, backend: Backend, observe: Callable[[Measure, float], object] = lambda _measure, _seconds: None
) -> Engine:
    """Makes an engine with these settings.

    Args:
        settings: of a server or a program.
        backend: that of the engine.
        observe: gets the engine's measurements, in its thread.

    Raises:
        ModelLoadError: The settings ask for something that the model can't do.
    """
    if settings.context_shift and not backend.can_shift:
        raise ModelLoadError(
            "--context-shift doesn't work here: the positions of this model's cells can't change, or not with "
            f"--cache-type-k {settings.cache_type_k or 'f16'}; leave it out"
        )
    store = None
    if settings.cache_disk:
        store = DiskCache(settings.cache_disk, backend.identity, settings.cache_disk_size << 20)
    return Engine(
        backend,
        default_max_tokens=DEFAULT_MAX_TOKENS if settings.max_tokens is None else settings.max_tokens,
        cache_bytes=settings.cache_ram << 20,
        store=store,
        observe=observe,
    )
