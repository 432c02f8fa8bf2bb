"""Chooses the replica for a request: the one that has cached the longest prefix of its prompt, if its load allows it.

Prompts are compared in blocks of 64 tokens. The name of a block is a hash of its own tokens and of all before it, so a
replica that has a block has the whole prefix up to its end. An example with three blocks and two replicas:

    prompt   "Once upon a time" "there was a king" "who had a horse"
    a has    "Once upon a time" "there was a king"
    b has    "Once upon a time"

The prompt goes to a. If the load of a is too high, b doesn't get the prompt because of its one block: it has less than
half of the prompt. Then the prompt's first block that no replica has, "who had a horse", is hashed with the name of
each replica, and the highest hash wins: D. Thaler and C. Ravishankar, "Using Name-Based Mappings to Increase Hit Rates"
(1998). The bound of the load is that of V. Mirrokni, M. Thorup and M. Zadimoghaddam, "Consistent Hashing with Bounded
Loads" (SODA 2018).
"""

import math
import struct
from collections.abc import Collection, Hashable, Iterable, Sequence
from hashlib import blake2b
from typing import Any

from srb.engine.kv_cache.radix import pack

BLOCK = 64
"""The number of tokens of a block."""

SLACK = 1.25
"""A replica with more than this multiple of the mean load gets no further requests."""

MAX_UNREPORTED = 1 << 16
"""The number of blocks that a replica may get here without a report, besides those of its last report."""

_HASH = 8


def blocks_of(tokens: Sequence[int], before: Sequence[int] = (), *, within: str = "") -> list[int]:
    """Hashes the whole blocks of a prompt: 8 bytes each, the same in every process; one if it is shorter than a block.

    6,000 tokens take a fraction of a millisecond. `before` has the first blocks, if they were computed before. The same
    prompt has other blocks in another `within` (`CompletionRequest.shared_within`).
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
    """Unpacks the blocks of a report."""
    return struct.unpack(f"<{len(data) // _HASH}Q", data)


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=_HASH).digest()


def _preferred(block: int, names: set[str]) -> str:
    """Returns the replica of these that a block is mapped to. If another one joins or leaves, few blocks move."""
    return max(names, key=lambda name: _hash(f"{block} {name}".encode()))


class _Replica:
    """A replica: the blocks that it has cached, and the weight and the blocks of each request in flight there."""

    __slots__ = ("cached", "in_flight", "most_cached")

    def __init__(self) -> None:
        self.cached: set[int] = set()
        self.most_cached = MAX_UNREPORTED
        self.in_flight: dict[Hashable, tuple[int, set[int]]] = {}


class Placement:
    """Chooses a replica for each request, by the replicas' reports and the requests that were sent to them from here.

    A load is a number of alternatives that wait or run. The names of replicas are any strings. Only one thread may use
    a `Placement`.
    """

    def __init__(self) -> None:
        self._replicas: dict[str, _Replica] = {}
        self._loads: dict[str, int] = {}  # sorted by name, so that all servers prefer the same one of equal loads
        self._holders: dict[int, set[str]] = {}
        self._places: dict[Hashable, str] = {}

    @property
    def n_blocks(self) -> int:
        """The number of blocks that are known to be cached, or soon, on any replica."""
        return len(self._holders)

    def set_replicas(self, names: Iterable[str]) -> None:
        """Sets the names of the replicas. Others are removed with the requests in flight there."""
        names = set(names)
        for name in self._replicas.keys() - names:
            replica = self._replicas.pop(name)
            self._remove_blocks(name, replica.cached)
            for request_id in replica.in_flight:
                del self._places[request_id]
        for name in names - self._replicas.keys():
            self._replicas[name] = _Replica()
        self._loads = {name: self._loads.get(name, 0) for name in sorted(names)}

    def report(self, name: str, load: int, blocks: Collection[int]) -> None:
        """Takes the report of a replica in place of the earlier one. Requests in flight from here still count.

        `load` counts the alternatives of all servers. With each block, a report should name all blocks before it.
        """
        replica = self._replicas.get(name)
        if replica is None:
            return
        # Requests on their way to the replica aren't in its report yet. So the load is at least what is in flight.
        self._loads[name] = max(load, sum(weight for weight, _ in replica.in_flight.values()))
        replica.most_cached = len(blocks) + MAX_UNREPORTED
        self._set_blocks(name, replica, blocks)

    def choose(self, prompts: Sequence[Sequence[int]], avoid: Collection[str] = ()) -> str | None:
        """Chooses the replica for a request by the blocks of its prompts; None if there is none.

        A replica fits if its load is now at most 1.25 times the mean load. So at least one always fits, whatever the
        number of alternatives. Of those that fit, the one that has most of the longest prompt is chosen; of equal ones,
        one with the smallest load. If none has half of the prompt, hashes alone decide. Without this rule, if all
        prompts began alike, all would go to the first replica that had this prefix. Replicas in `avoid`, which may
        hang, are chosen only if there is no other.
        """
        loads = {name: load for name, load in self._loads.items() if name not in avoid} or self._loads
        if not loads:
            return None
        most = SLACK * sum(loads.values()) / len(loads)
        return self._best(max(prompts, key=len), {name for name, load in loads.items() if load <= most})

    def begin(self, request_id: Hashable, name: str, weight: int, prompts: Sequence[Sequence[int]]) -> None:
        """Counts a request as in flight at a replica until `end`, and no longer at another one.

        From now on the replica counts as having the prompts. Does nothing for a replica that is gone.
        """
        self.end(request_id)
        replica = self._replicas.get(name)
        if replica is None:
            return
        self._places[request_id] = name
        blocks = {block for prompt in prompts for block in prompt}
        replica.in_flight[request_id] = weight, blocks
        self._loads[name] += weight
        self._add_blocks(name, replica, blocks)
        if len(replica.cached) > replica.most_cached:  # the replica hasn't reported for a long time
            self._set_blocks(name, replica, ())

    def end(self, request_id: Hashable) -> None:
        """Stops counting a request, if it is counted: its replica may be gone."""
        name = self._places.pop(request_id, None)
        if name is not None:
            weight, _ = self._replicas[name].in_flight.pop(request_id)
            self._loads[name] -= weight

    def load(self, name: str) -> int:
        """Returns the load of a replica, in alternatives."""
        return self._loads[name]

    def _best(self, blocks: Sequence[int], fitting: set[str]) -> str:
        n_cached = next((at for at in range(len(blocks), 0, -1) if blocks[at - 1] in self._holders), 0)
        first_missing = blocks[min(n_cached, len(blocks) - 1)]
        n_seen = 0
        for at in range(n_cached, (len(blocks) - 1) // 2, -1):
            holders = self._holders.get(blocks[at - 1], set())
            if len(holders) > n_seen:  # else they are the holders of the next block, none of which fits
                n_seen = len(holders)
                if candidates := holders & fitting:
                    least = min(map(self._loads.__getitem__, candidates))
                    return _preferred(first_missing, {name for name in candidates if self._loads[name] == least})
        return _preferred(first_missing, fitting)

    def _set_blocks(self, name: str, replica: _Replica, blocks: Iterable[int]) -> None:
        cached = set(blocks).union(*(those for _, those in replica.in_flight.values()))
        self._remove_blocks(name, replica.cached - cached)
        self._add_blocks(name, replica, cached - replica.cached)
        replica.cached = cached

    def _add_blocks(self, name: str, replica: _Replica, blocks: Iterable[int]) -> None:
        replica.cached.update(blocks)
        for block in blocks:
            self._holders.setdefault(block, set()).add(name)

    def _remove_blocks(self, name: str, blocks: Iterable[int]) -> None:
        for block in blocks:
            holders = self._holders[block]
            holders.remove(name)
            if not holders:
                del self._holders[block]


def replicas_wanted(context: Any) -> tuple[int, dict[str, Any]]:
    """Computes the number of replicas that can run all alternatives that wait or run. Serve keeps it within the limits.

    Ray Serve calls this in a process of its own, with an `AutoscalingContext` that has the metrics of
    `Replica.record_autoscaling_stats`. The second result is the state for the next call.
    """
    metrics = context.aggregated_metrics or {}
    loads, room = (list(metrics.get(name, {}).values()) for name in ("load", "room"))
    if not loads or not room:
        return context.target_num_replicas, {}
    return max(1, math.ceil(sum(loads) / (sum(room) / len(room)))), {}
