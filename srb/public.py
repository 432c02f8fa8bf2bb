"""The names that `srb` exports. They are here because `srb/__init__.py` imports them late."""

from srb.api import generate, score
from srb.engine.engine import Engine
from srb.engine.events import (
    DoneEvent,
    ErrorEvent,
    Event,
    NodeEvent,
    ProgressEvent,
    PromptLogprobsEvent,
    StartEvent,
    StopEvent,
    StreamEvent,
    Timings,
    Usage,
)
from srb.engine.model import ModelInfo
from srb.engine.outputs import CompletionOutput, CompletionOutputs
from srb.engine.request import CompletionRequest, Explore, Resumed
from srb.engine.resume import resume
from srb.engine.sampling_params import SamplingParams
from srb.engine.score_table import Score, ScoredRow, Table
from srb.engine.stats import EngineStats
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
from srb.llm import LLM
from srb.options.settings import Settings
from srb.serving.async_engine import AsyncEngine

__all__ = [
    "LLM",
    "AsyncEngine",
    "BackendError",
    "CompletionOutput",
    "CompletionOutputs",
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
    "PromptLogprobsEvent",
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
