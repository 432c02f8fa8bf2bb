"""`Replicas`: the engines as the front sees them, however it is connected with them."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from srb.engine.events import AbortReason, Event
from srb.engine.request import CompletionRequest
from srb.engine.stats import EngineStats
from srb.errors import SrbError

BEAT_SECONDS = 1.0
"""The longest time between two messages of a replica that runs a request, in seconds."""

SILENCE_SECONDS = 5.0
"""A replica that has sent nothing for this long counts as lost, in seconds."""


class ReplicaLostError(SrbError):
    """A replica has died, or can't be reached, or its engine has failed."""

    status = 503
    code = "replica_lost"


class BusyError(SrbError):
    """A replica refuses a prefetch, because requests wait there."""

    status = 503
    code = "replica_busy"


@dataclass(frozen=True, slots=True)
class Report:
    """The state of a replica, as it reports it.

    Attributes:
        node: the address of its machine.
        model: the hash of its model file.
        identity: see `ModelFacts.identity`.
        n_cells: the longest context of a request.
        n_parallel: the number of sequences that run at a time.
        running: the number of running requests, or parts of such.
        waiting: the number of waiting requests, or parts of such.
        load: the number of alternatives that wait or run.
        blocks: of the prompts that it has cached, packed; see `Placement.report`.
        embeds: of its `Embedder`: `max_tokens`, `pools` and `rank_template`. None if it has none.
    """

    name: str
    node: str
    model: str
    identity: str
    n_cells: int
    n_parallel: int
    running: int
    waiting: int
    load: int
    blocks: bytes
    stats: EngineStats
    embeds: tuple[int, bool, str | None] | None = None


Message = str | SrbError | list[Event]
"""A replica's messages for a request: first its name, then lists of events; an error if it refuses the request.

An empty list only shows that the replica is alive.
"""


class Replicas(Protocol):
    """The engines, wherever they are. All methods but `embed` belong to the event loop."""

    async def start(self) -> None:
        """Starts replicas, or joins those that run. Raises `SettingsError` and `UnavailableError`."""

    def run(self, request: CompletionRequest, name: str) -> AsyncGenerator[Message]:
        """Sends a request to a replica, and yields its messages. Closing the generator aborts the request.

        Raises `ReplicaLostError`.
        """

    async def abort(self, name: str, request_id: str, index: int | None, reason: AbortReason) -> bool:
        """Makes a replica end a request, or an alternative of it. Returns False if it can't be reached."""

    async def reports(self) -> list[Report]:
        """Returns the reports of the replicas that answer in time."""

    async def fronts(self, urls: Sequence[str]) -> list[str]:
        """Finds the other servers in front of the replicas.

        Args:
            urls: where this server listens.

        Returns:
            The addresses of those that this server can reach.
        """

    async def trouble(self) -> str | None:
        """Returns the reason why replicas are missing; None if it isn't known or none is missing.

        Raises `ModelLoadError` if there will be none.
        """

    def embed(self, tokens: tuple[int, ...]) -> list[list[float]]:
        """Embeds a text; see `Embedder.embed`. May be called from any thread except for the event loop's."""

    async def close(self) -> None:
        """Leaves the replicas, and ends those that were started for this process alone."""
