"""`Health`: the state of an engine, or of several ones, as `/health` tells it."""

from dataclasses import dataclass
from typing import Literal

from srb.engine.stats import EngineStats

Status = Literal["loading", "ready", "restarting", "stopping", "dead"]


@dataclass(frozen=True, slots=True)
class ReplicaHealth:
    """The state of one engine of several. node: its machine. running, waiting: how many requests, or parts of such."""

    name: str
    node: str
    status: Literal["ready", "lost"]
    running: int
    waiting: int
    stats: EngineStats | None


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the engine.

    progress: the loaded fraction of the model, 0 to 1.
    running, waiting: numbers of requests. stats: None before the model is loaded.
    is_sleeping: whether the model was freed until the next request.
    engine_restarts: how often the engine has failed and restarted.
    replicas: the engines that do the work, if there are several; then `stats` is the sum of theirs.
    """

    status: Status
    progress: float
    running: int
    waiting: int
    stats: EngineStats | None
    replicas: tuple[ReplicaHealth, ...] = ()
    is_sleeping: bool = False
    engine_restarts: int = 0
