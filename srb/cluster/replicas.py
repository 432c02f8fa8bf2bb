"""`Replicas`: what the front needs of the engines behind it, however it is connected with them."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from srb.engine.events import AbortReason, Event
from srb.engine.request import CompletionRequest
from srb.engine.stats import EngineStats
from srb.errors import SrbError

BEAT_SECONDS = 1.0
"""A replica that runs a request sends something at least once in so many seconds."""

SILENCE_SECONDS = 5.0
"""A replica that has sent nothing for so long counts as lost."""


class ReplicaLostError(SrbError):
    """A replica has died, or can't be reached, or its engine has failed."""

    status = 503
    code = "replica_lost"


class BusyError(SrbError):
    """A replica draws nothing ahead now, because somebody waits there."""

    status = 503
    code = "replica_busy"


@dataclass(frozen=True, slots=True)
class Report:
    """The state of a replica, as it reports it.

    node: the address of its machine. model: the hash of its model file; identity: see `Backend.identity`.
    n_cells, n_parallel: of its context. running, waiting: requests, or parts of such.
    load: how many alternatives wait or run. blocks: of the prompts that it knows, packed; see `Placement.report`.
    embeds: the most tokens of a text to embed, whether the embedder pools, and its template for ranking (`Embedder`);
        None if embeddings aren't wanted.
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


Said = str | SrbError | list[Event]
"""What a replica sends for a request: first its name, then lists of events. If it refuses the request, an error.

An empty list only says that the replica still lives.
"""


class Replicas(Protocol):
    """The engines, wherever they are. All methods but `embed` belong to the event loop."""

    async def start(self) -> None:
        """Starts replicas, or finds those that run already. Raises `SettingsError` and `UnavailableError`."""

    def run(self, request: CompletionRequest, name: str) -> AsyncGenerator[Said]:
        """Sends a request to a replica, and yields what the replica sends. Closing the generator aborts the request.

        Raises `ReplicaLostError`.
        """

    async def abort(self, name: str, request_id: str, index: int | None, reason: AbortReason) -> bool:
        """Tells a replica to end a request, or an alternative of it. Returns False if the replica can't be reached."""

    async def reports(self) -> list[Report]:
        """The reports of the replicas that answer in time."""

    async def fronts(self, urls: Sequence[str]) -> list[str]:
        """The addresses of the other servers in front of the replicas, if this one can reach them there.

        urls: where this server listens.
        """

    async def trouble(self) -> str | None:
        """The reason why there are fewer replicas than there should be; None if it isn't known or there are enough.

        Raises `ModelLoadError` if there will be none.
        """

    def embed(self, tokens: tuple[int, ...]) -> list[list[float]]:
        """The vectors of a text; see `Embedder.embed`. May be called from any thread but the event loop's."""

    async def close(self) -> None:
        """Leaves the replicas, and ends those that were started for this process alone."""
