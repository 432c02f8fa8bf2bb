"""How the objects of a stream are sent: as server-sent events, or as lines of JSON."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Chunk = dict[str, Any] | str
"""An object that is sent as JSON, or a text that is sent unchanged."""


@dataclass(frozen=True)
class Frame:
    """How a chunk is sent: the text before its JSON, and behind it. ping: what is sent while no chunk comes."""

    before: Callable[[Chunk], str]
    after: str = "\n\n"
    ping: bytes = b": ping\n\n"
    content_type: str = "text/event-stream"


DATA = Frame(lambda _chunk: "data: ")
MESSAGE = Frame(lambda _chunk: "event: message\ndata: ")
TYPED = Frame(lambda chunk: f"event: {chunk['type']}\ndata: " if isinstance(chunk, dict) else "data: ")
"""The name of each event is the `type` of its object."""

LINES = Frame(lambda _chunk: "", "\n", b"", "application/x-ndjson")
"""A line of JSON for each chunk. There is no ping, because readers would take it for a chunk."""
