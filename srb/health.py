"""How an engine is, or several."""

from dataclasses import dataclass
from typing import Literal

from srb.engine.stats import EngineStats

Status = Literal["loading", "ready", "stopping", "dead"]


@dataclass(frozen=True, slots=True)
class ReplicaHealth:
    """How one engine of several is. `node` is its machine; running, waiting: requests, or parts of such."""

    name: str
    node: str
    status: Literal["ready", "lost"]
    running: int
    waiting: int
    stats: EngineStats | None


@dataclass(frozen=True, slots=True)
class Health:
    """How the engine is.

    progress: the loaded fraction of the model, 0 to 1.
    running, waiting: requests. stats: None before the model is loaded.
    is_sleeping: whether the model was freed until the next request.
    replicas: the engines that do the work, where there are several; `stats` is their sum then.
    """

    status: Status
    progress: float
    running: int
    waiting: int
    stats: EngineStats | None
    replicas: tuple[ReplicaHealth, ...] = ()
    is_sleeping: bool = False
