"""Finds the other servers in front of the same replicas, and their addresses."""

import ipaddress
import time
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from srb.cluster.replica import SILENCE_SECONDS


class Place(NamedTuple):
    """Where a server can be reached. url: its address, if it has one. node: the address of its machine."""

    url: str | None
    node: str

    @property
    def is_local(self) -> bool:
        """Whether only programs on the same machine can reach it."""
        return self.url is None or ipaddress.ip_address(urlsplit(self.url).hostname or "").is_loopback


class Peers:
    """The servers that were here lately. It is in a Ray actor, which all of them call."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Place, float]] = {}

    def announce(self, name: str, place: Place) -> list[Place]:
        """Notes the place of a server. Returns those of the other servers that were here lately."""
        now = time.monotonic()
        self._seen = {each: seen for each, seen in self._seen.items() if now - seen[1] < SILENCE_SECONDS}
        self._seen[name] = place, now
        return [each for other, (each, _) in self._seen.items() if other != name]


def place_of(urls: Iterable[str], node: str) -> Place:
    """Returns the place of a server.

    Args:
        urls: where it listens. An address that other machines reach is preferred. One that means all addresses of the
            machine, such as 0.0.0.0, is replaced by `node`.
        node: the address of its machine.
    """
    own = f"[{node}]" if ":" in node else node
    places = [Place(url.replace("//0.0.0.0", f"//{own}").replace("//[::]", f"//{own}"), node) for url in urls]
    return min(places, key=lambda each: each.is_local, default=Place(None, node))


def reachable(own: Place, others: Iterable[Place]) -> list[str]:
    """Returns the addresses of the servers that a server can reach. Some listen only to their own machine."""
    return [each.url for each in others if each.url and (each.node == own.node or not each.is_local)]
