"""Chooses the replica for a request: the one that knows the longest beginning of its prompt, if its load allows it.

Prompts are compared in blocks of 64 tokens. The name of a block is a hash of its own tokens and of all before it, so a
replica that knows a block knows the whole beginning up to its end. An example with three blocks and two replicas:

    prompt    "Once upon a time" "there was a king" "who had a horse"
    a knows   "Once upon a time" "there was a king"
    b knows   "Once upon a time"

The prompt goes to a. If a has too much to do already, b doesn't get it because of its one block: it knows too little of
the prompt. Then the prompt's first unknown block, "who had a horse", is looked up on a ring of hashes, and the next
replica on the ring gets the prompt. The ring and the bound of the load are those of V. Mirrokni, M. Thorup and
M. Zadimoghaddam, "Consistent Hashing with Bounded Loads" (SODA 2018).
"""

import math
import struct
from bisect import bisect_left
from collections.abc import Collection, Hashable, Iterable, Sequence
from hashlib import blake2b
from typing import Any

from srb.engine.kv_cache.radix import pack

# Says how many replicas there should be, if their number may change. Ray Serve calls this in a process of its own.


def replicas_wanted(context: Any) -> tuple[int, dict[str, Any]]:
    """The number of replicas that have room for all alternatives that wait or run. Serve keeps it within the limits.

    context: Ray Serve's `AutoscalingContext`, with the metrics of `Replica.record_autoscaling_stats`.
    """
    metrics = context.aggregated_metrics or {}
    there, room = (list(metrics.get(name, {}).values()) for name in ("there", "room"))
    if not there or not room:
        return context.target_num_replicas, {}
    return max(1, math.ceil(sum(there) / (sum(room) / len(room)))), {}


BLOCK = 64
"""How many tokens a block has."""

SLACK = 1.25
"""A replica with more than so many times the mean load gets no more."""

_HASH = 8
_HASHES = 8
"""How many hashes of its name a replica has on the ring; each gives 8 points."""

_MOST_LEARNED = 1 << 16


def blocks_of(tokens: Sequence[int], before: Sequence[int] = (), *, within: str = "") -> list[int]:
    """A number of 8 bytes for each whole block of a prompt. A prompt shorter than a block has one number.

    The numbers are the same in every process. 6,000 tokens take a fraction of a millisecond.

    before: the first blocks, if they are known already.
    within: the request's `shared_within`. A replica that knows a prompt of one knows nothing of the same of another.
    """
    data = pack(tokens).tobytes()
    size = 4 * BLOCK
    blocks = list(before)
    name = blocks[-1].to_bytes(_HASH, "little") if blocks else within.encode()
    for start in range(size * len(blocks), max(len(data) - size, 0) + 1, size):
        name = _hash(name + data[start : start + size])
        blocks.append(int.from_bytes(name, "little"))
    return blocks


def pack_blocks(blocks: Collection[int]) -> bytes:
    """Packs blocks for a replica's report, 8 bytes for each."""
    return struct.pack(f"<{len(blocks)}Q", *blocks)


def unpack_blocks(data: bytes) -> tuple[int, ...]:
    """The blocks that `pack_blocks` has packed."""
    return struct.unpack(f"<{len(data) // _HASH}Q", data)


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=_HASH).digest()


class _Replica:
    """A replica: known has the blocks that it knows, in_flight the weight and the blocks of each request sent there."""

    __slots__ = ("in_flight", "known", "most_known")

    def __init__(self) -> None:
        self.known: set[int] = set()
        self.most_known = _MOST_LEARNED
        self.in_flight: dict[Hashable, tuple[int, set[int]]] = {}


class Placement:
    """Chooses a replica for each request. It uses the replicas' reports, and what was sent to them from here.

    A load is a number of alternatives that wait or run. The names of replicas are any strings. Only one thread may use
    a `Placement`.
    """

    def __init__(self) -> None:
        self._replicas: dict[str, _Replica] = {}
        self._loads: dict[str, int] = {}  # sorted by name, so that all servers prefer the same one of equal loads
        self._holders: dict[int, set[str]] = {}
        self._places: dict[Hashable, str] = {}
        self._ring: list[tuple[int, str]] = []

    def set_replicas(self, names: Iterable[str]) -> None:
        """Sets the names of the replicas that exist. Others are forgotten, with everything that runs there."""
        names = set(names)
        for name in self._replicas.keys() - names:
            replica = self._replicas.pop(name)
            self._forget(name, replica.known)
            for request_id in replica.in_flight:
                del self._places[request_id]
        self._ring = [point for point in self._ring if point[1] in names]
        for name in names - self._replicas.keys():
            self._replicas[name] = _Replica()
            for k in range(_HASHES):
                points = unpack_blocks(blake2b(f"{name} {k}".encode()).digest())
                self._ring += ((point, name) for point in points)
        self._ring.sort()
        self._loads = {name: self._loads.get(name, 0) for name in sorted(names)}

    def report(self, name: str, load: int, blocks: Collection[int]) -> None:
        """Takes the report of a replica. It replaces the earlier one; requests in flight from here still count.

        load: how many alternatives wait or run there, whichever server has sent them.
        blocks: the blocks that the replica knows. With each block it should name all blocks before it.
        """
        replica = self._replicas.get(name)
        if replica is None:
            return
        # Requests on their way to the replica aren't in its report yet. So the load is at least what is in flight.
        self._loads[name] = max(load, sum(weight for weight, _ in replica.in_flight.values()))
        replica.most_known = len(blocks) + _MOST_LEARNED
        self._know(name, replica, blocks)

    def choose(self, prompts: Sequence[Sequence[int]], avoid: Collection[str] = ()) -> str | None:
        """The replica for a request. None: there is none.

        prompts: the blocks of each prompt. The longest prompt decides, because it costs most.
        avoid: replicas that may hang. One of them is chosen only if there is no other.

        A replica fits if its load is now at most 1.25 times the mean load. So at least one always fits, however many
        alternatives the request has. Of those that fit, the one that knows most of the prompt is chosen; of several
        that know equally much, one with the smallest load. If none knows half of the prompt, the ring alone decides.
        Without this rule, if all prompts begin alike, all would go to the first replica that knew this beginning.
        """
        loads = {name: load for name, load in self._loads.items() if name not in avoid} or self._loads
        if not loads:
            return None
        most = SLACK * sum(loads.values()) / len(loads)
        return self._best(max(prompts, key=len), {name for name, load in loads.items() if load <= most})

    def begin(self, request_id: Hashable, name: str, weight: int, prompts: Sequence[Sequence[int]]) -> None:
        """Counts a request as in flight at a replica until `end`, and no longer at another one.

        It does nothing for a replica that is gone. From now on the replica knows the prompts.

        prompts: as for `choose`. weight: how many alternatives the request has.
        """
        self.end(request_id)
        replica = self._replicas.get(name)
        if replica is None:
            return
        self._places[request_id] = name
        blocks = {block for prompt in prompts for block in prompt}
        replica.in_flight[request_id] = weight, blocks
        self._loads[name] += weight
        self._learn(name, replica, blocks)
        if len(replica.known) > replica.most_known:  # the replica hasn't reported for long
            self._know(name, replica, ())

    def end(self, request_id: Hashable) -> None:
        """Stops counting a request. A request that isn't counted is no error: its replica may be gone."""
        name = self._places.pop(request_id, None)
        if name is not None:
            weight, _ = self._replicas[name].in_flight.pop(request_id)
            self._loads[name] -= weight

    def load(self, name: str) -> int:
        """The load of a replica, in alternatives."""
        return self._loads[name]

    def _best(self, blocks: Sequence[int], fitting: set[str]) -> str:
        known = next((at for at in range(len(blocks), 0, -1) if blocks[at - 1] in self._holders), 0)
        first_unknown = blocks[min(known, len(blocks) - 1)]
        n_seen = 0
        for at in range(known, (len(blocks) - 1) // 2, -1):
            holders = self._holders.get(blocks[at - 1], set())
            if len(holders) > n_seen:  # else they are the holders of the block behind, none of which fits
                n_seen = len(holders)
                if candidates := holders & fitting:
                    least = min(map(self._loads.__getitem__, candidates))
                    return self._on_ring(first_unknown, {name for name in candidates if self._loads[name] == least})
        return self._on_ring(first_unknown, fitting)

    def _on_ring(self, key: int, names: set[str]) -> str:
        """The first of these replicas on the ring, from a key on."""
        if len(names) == 1:
            (name,) = names
            return name
        start = bisect_left(self._ring, (key, ""))
        around = (self._ring[at - len(self._ring)][1] for at in range(start, start + len(self._ring)))
        return next(name for name in around if name in names)

    def _know(self, name: str, replica: _Replica, blocks: Iterable[int]) -> None:
        known = set(blocks).union(*(those for _, those in replica.in_flight.values()))
        self._forget(name, replica.known - known)
        self._learn(name, replica, known - replica.known)
        replica.known = known

    def _learn(self, name: str, replica: _Replica, blocks: Iterable[int]) -> None:
        replica.known.update(blocks)
        for block in blocks:
            self._holders.setdefault(block, set()).add(name)

    def _forget(self, name: str, blocks: Iterable[int]) -> None:
        for block in blocks:
            holders = self._holders[block]
            holders.remove(name)
            if not holders:
                del self._holders[block]
