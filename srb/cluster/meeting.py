"""Where the servers in front of the same replicas find each other, and under which addresses."""

import ipaddress
import time
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

from srb.cluster.replicas import SILENCE_SECONDS


class Place(NamedTuple):
    """Where a server can be asked. url: its address; None if it has none. node: the address of its machine."""

    url: str | None
    node: str

    @property
    def is_local(self) -> bool:
        """Whether only programs on the same machine can ask it."""
        return self.url is None or ipaddress.ip_address(urlsplit(self.url).hostname or "").is_loopback


class Meeting:
    """The servers that were here lately. It lives in a Ray actor, which all of them call."""

    def __init__(self) -> None:
        self._there: dict[str, tuple[Place, float]] = {}

    def meet(self, name: str, place: Place) -> list[Place]:
        """Notes a server and its place. Returns the places of the other servers that were here lately."""
        now = time.monotonic()
        self._there = {each: seen for each, seen in self._there.items() if now - seen[1] < SILENCE_SECONDS}
        self._there[name] = place, now
        return [each for other, (each, _) in self._there.items() if other != name]


def place_of(urls: Iterable[str], node: str) -> Place:
    """The place of a server that listens at these URLs on a machine with this address.

    An address that other machines reach is preferred. One that stands for all of the machine, as 0.0.0.0 does, is
    replaced by the machine's own.
    """
    own = f"[{node}]" if ":" in node else node
    places = [Place(url.replace("//0.0.0.0", f"//{own}").replace("//[::]", f"//{own}"), node) for url in urls]
    return min(places, key=lambda each: each.is_local, default=Place(None, node))


def who_can_be_asked(own: Place, others: Iterable[Place]) -> list[str]:
    """The addresses of the other servers that a server can ask. Some listen only to their own machine."""
    return [each.url for each in others if each.url and (each.node == own.node or not each.is_local)]
