"""`AsyncEngine`: an engine in a thread of its own, and the asyncio side of it.

The thread alone owns the engine. It loads the model, steps the engine while there is work, and hands the events to
the event loop once per step.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from srb.engine.asking.model import ChatTemplate, Embedder, ModelInfo, Tokenizer
from srb.engine.asking.request import CompletionRequest
from srb.engine.backend import Backend
from srb.engine.engine import Answer, Engine
from srb.engine.kept.slots import Slots
from srb.engine.prompts.adapters import Adapters
from srb.engine.prompts.media import Media, PromptPart
from srb.engine.telling.events import AbortReason, Event
from srb.engine.telling.stats import EngineStats, Measure
from srb.errors import EngineDeadError
from srb.files.download import fetch_model
from srb.llama import LlamaBackend
from srb.llama.tune.idle import IdleTuning
from srb.options.settings import Settings, check_settings
from srb.serving.early_loading import Load
from srb.serving.engine_client import EngineClient, Record, client_options
from srb.serving.log_format import loggable
from srb.serving.making import make_engine

logger = logging.getLogger("srb")


class AsyncEngine(EngineClient):
    """An engine in a thread of its own. Use it as a context manager, or call `start`, `ready` and `stop`.

    load: makes the backend, in the thread.
    make: makes the engine, in the thread.
    sleep_after: seconds without work after which the engine sleeps (`Engine.sleep`); None: it never does.
    idle: what may run meanwhile; it is told in the thread when there is nothing to do, and when there is again.
    others: see `EngineClient`. `record` is called in the thread, once for each step.
    """

    def __init__(
        self,
        load: Load,
        *,
        make: Callable[[Backend], Engine] = Engine,
        sleep_after: float | None = None,
        idle: IdleTuning | None = None,
        **others: Any,
    ) -> None:
        super().__init__(**others)
        self._load = load
        self._make = make
        self._sleep_after = sleep_after
        self._idle = idle
        self._engine: Engine | None = None
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._main, name="srb-engine", daemon=True)

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        observe: Callable[[Measure, float], object] = lambda _measure, _seconds: None,
        record: Record | None = None,
        idle: IdleTuning | None = None,
        load: Load | None = None,
    ) -> "AsyncEngine":
        """An engine on llama.cpp. If the model can't be loaded, `ready` raises `ModelLoadError`.

        observe: gets the engine's measurements, in its thread. record, idle, load: see `AsyncEngine`.
        """

        check_settings(settings)

        def observe_asked(measure: Measure, seconds: float) -> None:
            if not client.ahead.is_drawing:  # nobody waits for that
                observe(measure, seconds)

        client = cls(
            load or (lambda progress: LlamaBackend(fetch_model(settings), progress)),
            make=partial(make_engine, settings, observe=observe_asked),
            record=record,
            sleep_after=settings.sleep_idle_seconds if settings.sleep_idle_seconds > 0 else None,
            idle=idle,
            **client_options(settings),
        )
        return client

    @property
    def tokenizer(self) -> Tokenizer:
        """See `EngineClient.tokenizer`."""
        return self._ready_engine().tokenizer

    @property
    def fingerprint(self) -> str:
        """See `EngineClient.fingerprint`."""
        return self._engine.fingerprint if self._engine else ""

    @property
    def identity(self) -> str:
        """See `EngineClient.identity`."""
        return self._ready_engine().identity

    @property
    def chat_template(self) -> ChatTemplate | None:
        """See `EngineClient.chat_template`."""
        return self._ready_engine().chat_template

    @property
    def model_info(self) -> ModelInfo:
        """See `EngineClient.model_info`."""
        return self._ready_engine().model_info

    @property
    def embedder(self) -> Embedder | None:
        """See `EngineClient.embedder`."""
        return self._ready_engine().embedder

    @property
    def n_cells(self) -> int:
        """See `EngineClient.n_cells`."""
        return self._ready_engine().n_cells

    def tokenize(self, text: str, *, is_prompt: bool = True, any_length: bool = False) -> tuple[int, ...]:
        """See `EngineClient.tokenize`."""
        return self._ready_engine().tokenize(text, is_prompt=is_prompt, any_length=any_length)

    @property
    def media_kinds(self) -> Collection[str]:
        """See `EngineClient.media_kinds`."""
        reader = self._ready_engine().media
        return reader.kinds if reader else ()

    def tokenize_parts(self, parts: Sequence[PromptPart]) -> tuple[tuple[int, ...], tuple[Media, ...]]:
        """See `EngineClient.tokenize_parts`."""
        return self._ready_engine().tokenize_parts(parts)

    def check(self, request: CompletionRequest) -> None:
        """See `EngineClient.check`."""
        self._ready_engine().check(request)

    @property
    def adapters(self) -> Adapters:
        """See `EngineClient.adapters`."""
        return self._ready_engine().adapters

    async def ask(self, slot: int, question: Callable[[Slots], Answer]) -> Answer:
        """Calls a function with the slots in the engine's thread, and returns its result. See `Engine.ask`.

        Raises what the function raises, and `UnavailableError`.
        """
        answer = self._ready_engine().ask(slot, question)
        self._wake.set()
        return await asyncio.wrap_future(answer)

    def _ready_engine(self) -> Engine:
        self.check_ready()
        assert self._engine is not None
        return self._engine

    def _begin(self) -> None:
        self._thread.start()

    async def _take(self, request: CompletionRequest) -> None:
        assert self._engine is not None
        await asyncio.to_thread(self._engine.add_request, request)
        self._loop.call_soon(self._wake.set)  # with what `_on_taken` ends because it was aborted meanwhile

    def _end(self, request_id: str, index: int | None, reason: AbortReason) -> None:
        assert self._engine is not None
        self._engine.abort(request_id, index, reason)
        self._wake.set()

    async def _close(self) -> None:
        self._closing = True
        self._wake.set()
        await asyncio.to_thread(self._thread.join)

    def _setting(self) -> tuple[float, ...]:
        assert self._engine is not None
        return tuple(adapter.scale for adapter in self._engine.adapters.listed)

    # Called in the event loop by the thread

    def _on_made(self, engine: Engine, stats: EngineStats) -> None:
        self._engine, self._stats = engine, stats
        self._on_loaded()

    def _on_progress(self, fraction: float) -> None:
        self._progress = fraction

    def _on_sleep(self) -> None:
        self._is_sleeping = True

    def _on_step(self, events: list[Event]) -> None:
        if events:
            self._is_sleeping = False
        self._tell(events)

    def _on_death(self, error: EngineDeadError, events: list[Event]) -> None:
        self._status = "dead"
        self._failure = error
        if self._record:
            self._roster.suspend()
        self._on_step(events)
        self._failed.set()

    # The thread

    def _until_sleep(self, idle_from: float | None) -> float | None:
        """How many seconds to wait for work before the engine sleeps; None: as long as it takes."""
        if self._sleep_after is None or idle_from is None:
            return None
        return max(0.0, idle_from + self._sleep_after - time.monotonic())

    def _rest(self, seconds: float | None) -> bool:
        """Waits for work, at most so long. False if none came."""
        if self._idle is None:
            return self._wake.wait(seconds)
        self._idle.begin()
        try:
            return self._wake.wait(seconds)
        finally:
            self._idle.end()

    def _main(self) -> None:
        call = self._loop.call_soon_threadsafe

        def progress(fraction: float) -> bool:
            call(self._on_progress, fraction)
            return not self._closing

        backend = None
        try:
            backend = self._load(progress)
            engine = self._make(backend)
            stats = engine.stats()
        except Exception as error:
            call(self._on_load_failed, error)
            if backend:
                backend.close()
            return

        def hand_over(events: list[Event], take: Callable[[list[Event]], None]) -> None:
            self._stats = engine.stats()  # not with the events: these wait until they are recorded, and may come later
            self._put_on_record(events, partial(call, take, events))

        try:
            call(self._on_made, engine, stats)
            idle_from: float | None = time.monotonic()  # None: it sleeps
            while engine.has_work or not self._closing:
                if engine.has_work:
                    events = engine.step()
                    if events:  # a step without any may have answered a question, as replicas are asked each second
                        idle_from = time.monotonic()
                    hand_over(events, self._on_step)
                elif self._rest(self._until_sleep(idle_from)):
                    self._wake.clear()
                else:
                    engine.sleep()
                    logger.info("asleep: the model's memory is free until the next request")
                    call(self._on_sleep)
                    idle_from = None
        except Exception as error:
            logger.exception("the engine has failed; running requests end with an error, new ones are refused")
            reason = loggable(error) or type(error).__name__  # all requests get it, so it has nothing of any of them
            dead = EngineDeadError(f"the engine has failed: {reason}")
            hand_over(engine.fail(dead), partial(self._on_death, dead))
        finally:
            engine.close()
            backend.close()
