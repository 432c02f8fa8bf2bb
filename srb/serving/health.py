"""`Health`: the state of an engine, or of several, as `/health` reports it."""

from dataclasses import dataclass
from typing import Literal

from srb.engine.stats import EngineStats

Status = Literal["loading", "ready", "restarting", "stopping", "dead"]


@dataclass(frozen=True, slots=True)
class ReplicaHealth:
    """The state of one engine of several.

    Attributes:
        node: the address of its machine.
        running: the number of running requests, or parts of such.
        waiting: the number of waiting requests, or parts of such.
    """

    name: str
    node: str
    status: Literal["ready", "lost"]
    running: int
    waiting: int
    stats: EngineStats


@dataclass(frozen=True, slots=True)
class Health:
    """The state of the engine.

    Attributes:
        progress: the loaded fraction of the model, 0 to 1.
        running: the number of running requests.
        waiting: the number of waiting requests.
        stats: None before the model is loaded. With replicas, the sum of theirs.
        replicas: the engines, if there are several.
        is_sleeping: whether the model was freed until the next request.
        engine_restarts: how often the engine has failed and restarted.
    """

    status: Status
    progress: float
    running: int
    waiting: int
    stats: EngineStats | None
    replicas: tuple[ReplicaHealth, ...] = ()
    is_sleeping: bool = False
    engine_restarts: int = 0
