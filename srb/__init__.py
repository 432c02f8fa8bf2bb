"""srb: n alternatives of one prompt, streamed.

A prompt is evaluated once, its KV sequence is forked n ways, and one batched decode loop draws n alternatives,
each with its own `SamplingParams`.

    from srb import AsyncEngine, CompletionRequest, SamplingParams, Settings

    async with AsyncEngine.from_settings(Settings()) as engine:
        request = CompletionRequest(("Once upon a time,",), SamplingParams(temperature=1.0).alternatives(4))
        async for event in engine.generate(request):
            print(event)

Without asyncio: `Engine(LlamaBackend(Settings()))`, `add_request`, and `step` while it `has_work`. Shorter still:

    >>> texts = srb.generate("Once upon a time,", n=2, max_tokens=8)
    >>> scores = srb.score("The capital of France is", [" Paris", " Rome"])
"""

__version__ = "0.1.0"

from srb.engine.asking.model import ModelInfo
from srb.engine.asking.request import CompletionRequest, Explore, Resumed
from srb.engine.asking.resume import resume
from srb.engine.asking.sampling_params import SamplingParams
from srb.engine.engine import Engine
from srb.engine.programs.table import Score, ScoredRow, Table
from srb.engine.telling.events import (
    DoneEvent,
    ErrorEvent,
    Event,
    NodeEvent,
    ProgressEvent,
    StartEvent,
    StopEvent,
    StreamEvent,
    Timings,
    Usage,
)
from srb.engine.telling.stats import EngineStats
from srb.errors import (
    BackendError,
    EngineDeadError,
    InvalidRequestError,
    ModelLoadError,
    QueueFullError,
    SettingsError,
    SrbError,
    UnavailableError,
)
from srb.llama.backend import LlamaBackend
from srb.options.settings import Settings
from srb.programs import generate, score
from srb.serving.async_engine import AsyncEngine

__all__ = [
    "AsyncEngine",
    "BackendError",
    "CompletionRequest",
    "DoneEvent",
    "Engine",
    "EngineDeadError",
    "EngineStats",
    "ErrorEvent",
    "Event",
    "Explore",
    "InvalidRequestError",
    "LlamaBackend",
    "ModelInfo",
    "ModelLoadError",
    "NodeEvent",
    "ProgressEvent",
    "QueueFullError",
    "Resumed",
    "SamplingParams",
    "Score",
    "ScoredRow",
    "Settings",
    "SettingsError",
    "SrbError",
    "StartEvent",
    "StopEvent",
    "StreamEvent",
    "Table",
    "Timings",
    "UnavailableError",
    "Usage",
    "generate",
    "resume",
    "score",
]
