"""What the front needs of the engines behind it, whatever connects them."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from srb.engine.events import AbortReason, Event
from srb.engine.request import CompletionRequest
from srb.engine.stats import EngineStats
from srb.errors import SrbError

BEAT_SECONDS = 1.0
"""A replica that runs a request says something at least so often."""

SILENCE_SECONDS = 5.0
"""A replica that has said nothing for so long is taken for lost."""


class ReplicaLostError(SrbError):
    """A replica has died, or can't be reached, or its engine has failed."""

    status = 503
    code = "replica_lost"


@dataclass(frozen=True, slots=True)
class Report:
    """What a replica tells of itself.

    node: the address of its machine. model: the hash of its model file; identity: see `Backend.identity`.
    n_cells, n_parallel: of its context. running, waiting: requests, or parts of such.
    embeds: the most tokens of a text to embed, whether it pools them, and how it ranks (`Embedder`); None where
        embeddings aren't wanted.
    """

    name: str
    node: str
    model: str
    identity: str
    n_cells: int
    n_parallel: int
    running: int
    waiting: int
    stats: EngineStats
    embeds: tuple[int, bool, str | None] | None = None


Said = str | SrbError | list[Event]
"""What comes of a request: the replica's name first, then its events; or, in place of these, why it is refused.

An empty list is a sign of life.
"""


class Replicas(Protocol):
    """The engines, wherever they are. All methods but `embed` belong to the event loop."""

    async def start(self) -> None:
        """Has replicas made, or finds those that are there. Raises `SettingsError` and `UnavailableError`."""

    def run(self, request: CompletionRequest, avoid: frozenset[str]) -> AsyncGenerator[Said]:
        """Sends a request to a replica, and yields what that says. Closing it aborts the request.

        avoid: the names of replicas that are taken for lost.
        Raises `ReplicaLostError`.
        """

    async def abort(self, name: str, request_id: str, index: int | None, reason: AbortReason) -> bool:
        """Has a replica end a request, or an alternative of it. Returns False if the replica can't be told."""

    async def reports(self) -> list[Report]:
        """What those tell that answer in time."""

    async def fronts(self, url: str | None) -> list[str]:
        """The addresses of the other servers in front of them. url: where this one listens, if others can reach it."""

    async def trouble(self) -> str | None:
        """Why there are fewer replicas than there should be, if that is known.

        Raises `ModelLoadError` if there will be none.
        """

    def embed(self, tokens: tuple[int, ...]) -> list[list[float]]:
        """The vectors of a text; see `Embedder.embed`. May be called from any thread but the event loop's."""

    async def close(self) -> None:
        """Leaves them, and ends those that were made for this process alone."""
