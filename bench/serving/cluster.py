"""Measure how a cluster places requests, and the gain.

usage: python bench/serving/cluster.py families [--fronts 2] [--seeds 5]
       python bench/serving/cluster.py simulation [--requests 100000]
       python bench/serving/cluster.py speed [--repeat 5]

families: 200 requests in 20 families on 4 replicas. The prompts of a family share a prefix. The cache of each replica
has room for 8 families. Only the choice of the replica is real: the replicas are simulated, as fast as a small model on
a few cores. The program prints:

    hit rate   share of the prompts' tokens that are cached
    whole      seconds until all requests have ended
    mean       mean seconds from the arrival of a request to its end
    busiest    working time of the busiest replica, divided by the mean of all
    load       alternatives that wait or run on the most loaded replica, divided by the mean, summed over arrivals

simulation: requests in many families, of which a few are frequent, on up to 1,000 replicas. Prompts have 6,000 tokens.
The program prints the same hit rate and load, and the CPU time of a choice, in microseconds.

speed: sends requests to real servers in turn: one engine with one thread and with two, and one and two replicas with
one thread each. For one request with n = 8, the program prints the time to first token and the tokens per second, which
show the cost of forwarding. It also prints the tokens per second with eight clients at once. Each replica needs a core
of its own.
"""

import argparse
import asyncio
import heapq
import itertools
import random
import statistics
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from peers import Peer, running

from srb.cluster.placement import BLOCK, Placement, blocks_of
from srb.llama.model.model_file import find_model

SECONDS_PER_TOKEN = 0.001
"""The time to evaluate a prompt token."""
SECONDS_PER_STEP = 0.03
SECONDS_PER_ROW = 0.002
CHUNK = 256
"""The most prompt tokens in a step."""
N_PARALLEL = 32
"""The most alternatives that run on a replica."""
REPORT_SECONDS = 1.0
"""The time between two reports of a replica."""


class Cache:
    """A replica's LRU cache of blocks."""

    def __init__(self, n_blocks: int) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._n_blocks = n_blocks

    def __iter__(self) -> Iterator[int]:
        return iter(self._blocks)

    def known(self, blocks: Sequence[int]) -> int:
        """Return the number of cached blocks at the start of a prompt."""
        return next((at for at, block in enumerate(blocks) if block not in self._blocks), len(blocks))

    def use(self, blocks: Iterable[int]) -> None:
        """Add a prompt's blocks. Its first block will be evicted last."""
        for block in reversed(list(blocks)):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._n_blocks:
            self._blocks.popitem(last=False)


@dataclass(eq=False)
class Request:
    """One request of the simulation. Times are in seconds."""

    arrival: float
    tokens: tuple[int, ...]
    n: int
    max_tokens: int
    blocks: list[int] = field(init=False)
    to_evaluate: int = 0
    to_generate: int = 0

    def __post_init__(self) -> None:
        self.blocks = blocks_of(self.tokens)
        self.to_generate = self.max_tokens


class Replica:
    """A simulated replica: each step has a row for every running alternative, and a prefill chunk."""

    def __init__(self, cache: Cache) -> None:
        self.cache = cache
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.busy = 0.0
        self.hits = 0
        self.stepping = False

    @property
    def load(self) -> int:
        return sum(request.n for request in itertools.chain(self.waiting, self.running))

    def step(self) -> tuple[float, list[Request]]:
        """Run a step. Return its duration in seconds, and the requests that end with it."""
        while self.waiting and sum(each.n for each in self.running) + self.waiting[0].n <= N_PARALLEL:
            request = self.waiting.popleft()
            known = self.cache.known(request.blocks) * BLOCK
            self.hits += known
            request.to_evaluate = len(request.tokens) - known
            self.cache.use(request.blocks)
            self.running.append(request)
        rows = [request for request in self.running if not request.to_evaluate]
        left = CHUNK
        for request in self.running:
            piece = min(left, request.to_evaluate)
            request.to_evaluate -= piece
            left -= piece
        for request in rows:
            request.to_generate -= 1
        done = [request for request in self.running if not request.to_generate]
        self.running = [request for request in self.running if request.to_generate]
        seconds = SECONDS_PER_STEP + sum(each.n for each in rows) * SECONDS_PER_ROW + (CHUNK - left) * SECONDS_PER_TOKEN
        self.busy += seconds
        return seconds, done


Choose = Callable[[Request], int]


@dataclass
class Result:
    """The result of a run. Times are in seconds. busy, load: the most loaded replica's, divided by the mean."""

    hit_rate: float
    whole: float
    latency: float
    busy: float
    load: float


def run(
    requests: list[Request],
    replicas: list[Replica],
    choose: Choose,
    ended: Callable[[Request], None] = lambda request: None,
    report: Callable[[int], None] = lambda number: None,
) -> Result:
    """Simulate the requests, in the order of events."""
    order = itertools.count()
    events: list[tuple[float, int, Callable[[float], None]]] = []
    latencies: list[float] = []
    most = mean = 0.0
    now = 0.0

    def at(when: float, what: Callable[[float], None]) -> None:
        heapq.heappush(events, (when, next(order), what))

    def step(replica: Replica, now: float) -> None:
        replica.stepping = bool(replica.waiting or replica.running)
        if replica.stepping:
            seconds, done = replica.step()
            for request in done:
                at(now + seconds, lambda when, request=request: end(request, when))  # type: ignore[misc]
            at(now + seconds, lambda when: step(replica, when))

    def end(request: Request, now: float) -> None:
        latencies.append(now - request.arrival)
        ended(request)

    def arrive(request: Request, now: float) -> None:
        nonlocal most, mean
        replica = replicas[choose(request)]
        replica.waiting.append(request)
        loads = [each.load for each in replicas]
        most += max(loads)
        mean += statistics.mean(loads)
        if not replica.stepping:
            step(replica, now)

    def tell(number: int, now: float) -> None:
        report(number)
        if len(latencies) < len(requests):
            at(now + REPORT_SECONDS, lambda when: tell(number, when))

    for request in requests:
        at(request.arrival, lambda when, request=request: arrive(request, when))  # type: ignore[misc]
    for number in range(len(replicas)):
        at(REPORT_SECONDS * number / len(replicas), lambda when, number=number: tell(number, when))  # type: ignore[misc]
    while len(latencies) < len(requests):
        now, _, what = heapq.heappop(events)
        what(now)
    busy = [replica.busy for replica in replicas]
    return Result(
        hit_rate=sum(replica.hits for replica in replicas) / sum(len(request.tokens) for request in requests),
        whole=now,
        latency=statistics.mean(latencies),
        busy=max(busy) / statistics.mean(busy),
        load=most / mean,
    )


def family_requests(gap: float, rng: random.Random) -> list[Request]:
    """Return 200 requests, each with 8 alternatives of 100 tokens, in 20 families that share 2,000 tokens."""
    beginnings = [tuple(rng.choices(range(50_000), k=2_000)) for _ in range(20)]
    members = [beginning for beginning in beginnings for _ in range(10)]
    rng.shuffle(members)
    arrivals = itertools.accumulate(rng.expovariate(1 / gap) for _ in members)
    return [
        Request(arrival, beginning + tuple(rng.choices(range(50_000), k=rng.randrange(100, 300))), 8, 100)
        for arrival, beginning in zip(arrivals, members, strict=True)
    ]


def by_placement(requests: list[Request], replicas: list[Replica], n_fronts: int) -> Result:
    """Send the requests to the fronts in turn. A front sees the requests it sent, and the replicas' reports."""
    fronts = [Placement() for _ in range(n_fronts)]
    turns = itertools.cycle(fronts)
    asked: dict[Request, Placement] = {}
    names = [f"replica {number}" for number in range(len(replicas))]
    for front in fronts:
        front.set_replicas(names)

    def choose(request: Request) -> int:
        asked[request] = front = next(turns)
        name = front.choose([request.blocks])
        assert name
        front.begin(request, name, request.n, [request.blocks])
        return names.index(name)

    def report(number: int) -> None:
        replica = replicas[number]
        for front in fronts:
            front.report(names[number], replica.load, list(replica.cache))

    return run(requests, replicas, choose, lambda request: asked[request].end(request), report)


def families(options: argparse.Namespace) -> None:
    """Print the results of each placement policy."""
    n, n_blocks = 4, 8 * 2_300 // BLOCK

    def alone() -> list[Replica]:
        return [Replica(Cache(n_blocks)) for _ in range(n)]

    print("| seconds between two | chosen by | hit rate | whole | mean | busiest | load |")
    print("|---|---|---|---|---|---|---|")
    for gap in (0.1, 0.5, 1.0, 3.0):
        results: dict[str, list[Result]] = {}
        for seed in range(options.seeds):

            def fresh(gap: float = gap, seed: int = seed) -> list[Request]:
                return family_requests(gap, random.Random(seed))

            def least(replicas: list[Replica]) -> Choose:
                return lambda request: min(range(n), key=lambda number: replicas[number].load)

            def any_of(seed: int = seed) -> Choose:
                rng = random.Random(seed)
                return lambda request: rng.randrange(n)

            def in_turn() -> Choose:
                turns = itertools.cycle(range(n))
                return lambda request: next(turns)

            cache = Cache(n * n_blocks)
            together = [Replica(cache) for _ in range(n)]
            for name, result in (
                ("one big cache", run(fresh(), together, least(together))),
                ("placement", by_placement(fresh(), alone(), options.fronts)),
                ("round robin", run(fresh(), alone(), in_turn())),
                ("random", run(fresh(), alone(), any_of())),
            ):
                results.setdefault(name, []).append(result)
        for name, those in results.items():
            means = {key: statistics.mean(getattr(each, key) for each in those) for key in vars(those[0])}
            print(
                f"| {gap} | {name} | {means['hit_rate']:.1%} | {means['whole']:.0f} | {means['latency']:.1f} "
                f"| {means['busy']:.2f} | {means['load']:.2f} |",
                flush=True,
            )


FAMILIES_OF_A_REPLICA = 2
BLOCKS = 6_000 // BLOCK
SERVICE_SECONDS = 5.0
"""The duration of a request of `simulate`."""
PERIOD = 10.0
"""The time between two reports of a replica of `simulate`, in seconds."""


def simulate(n: int, n_requests: int) -> None:
    """Print a row: requests on n replicas with room for 8 families each, and two requests at a time on average.

    All requests take the same time on every replica. The frequency of family number k is proportional to 1 / k.
    """
    rng = random.Random(n)
    names = [f"replica {number}" for number in range(n)]
    caches = {name: Cache(8 * BLOCKS) for name in names}
    everything = Cache(n * 8 * BLOCKS)
    placement = Placement()
    start = time.process_time()
    placement.set_replicas(names)
    ring = time.process_time() - start
    beginnings = [[rng.getrandbits(64) for _ in range(BLOCKS - 3)] for _ in range(n * FAMILIES_OF_A_REPLICA)]
    asked = rng.choices(beginnings, [1 / k for k in range(1, len(beginnings) + 1)], k=n_requests)
    running: deque[tuple[float, int]] = deque()
    reports = [(rng.uniform(0, PERIOD), name) for name in names]
    heapq.heapify(reports)
    choices: list[float] = []
    hits = possible = most = 0
    now = mean = 0.0
    for number, beginning in enumerate(asked):
        now += rng.expovariate(2 * n / SERVICE_SECONDS)
        while running and running[0][0] < now:
            placement.end(running.popleft()[1])
        while reports[0][0] < now:
            when, name = reports[0]
            heapq.heapreplace(reports, (when + PERIOD, name))
            placement.report(name, 0, list(caches[name]))  # a load of 0: everything that runs there was sent from here
        prompts = [beginning + [rng.getrandbits(64) for _ in range(3)]]
        start = time.process_time()
        chosen = placement.choose(prompts)
        choices.append(time.process_time() - start)
        assert chosen
        placement.begin(number, chosen, 8, prompts)
        running.append((now + SERVICE_SECONDS, number))
        hits += caches[chosen].known(prompts[0])
        possible += everything.known(prompts[0])
        caches[chosen].use(prompts[0])
        everything.use(prompts[0])
        if number % 100 == 0:
            loads = [placement.load(name) for name in names]
            most += max(loads)
            mean += statistics.mean(loads)
    choices.sort()
    print(
        f"| {n} | {n_requests} | {statistics.median(choices) * 1e6:.0f} | {choices[-n_requests // 100] * 1e6:.0f} "
        f"| {hits / n_requests / BLOCKS:.1%} | {possible / n_requests / BLOCKS:.1%} | {most / mean:.2f} "
        f"| {ring * 1e3:.0f} |",
        flush=True,
    )


def simulation(options: argparse.Namespace) -> None:
    """Print the time and the quality of a choice."""
    tokens = tuple(random.Random(1).choices(range(50_000), k=6_000))
    times = []
    for _ in range(100):
        start = time.process_time()
        blocks_of(tokens)
        times.append(time.process_time() - start)
    print(f"the blocks of 6,000 tokens take {statistics.median(times) * 1e6:.0f} microseconds, once for a request\n")
    print("| replicas | requests | a choice | p99 | hit rate | one big cache | load | all replicas new, ms |")
    print("|---|---|---|---|---|---|---|---|")
    for n in (4, 100, 1000):
        simulate(n, options.requests)


PAIRS: list[dict[str, tuple[int, tuple[str, ...]]]] = [
    {
        "one engine, 1 thread": (1, ()),
        "1 replica, 1 thread": (1, ("--replicas", "1", "--replica-cpus", "1")),
    },
    {
        "one engine, 2 threads": (2, ()),
        "2 replicas, 1 thread each": (1, ("--replicas", "2", "--replica-cpus", "1")),
    },
]
"""Servers that run at the same time, each with its threads and its options."""


async def measure(pair: dict[str, tuple[int, tuple[str, ...]]], repeat: int) -> None:
    firsts: dict[str, list[float]] = {name: [] for name in pair}
    alone: dict[str, list[float]] = {name: [] for name in pair}
    together: dict[str, list[float]] = {name: [] for name in pair}
    async with AsyncExitStack() as stack:
        servers = []
        for name, (threads, options) in pair.items():
            peer = Peer(name, True, ("--log-level", "error", *options))
            servers.append(await stack.enter_async_context(running(peer, find_model(None), 8192, threads, Path())))
        await asyncio.sleep(5)  # until both replicas are up
        for k in range(-1, repeat):  # warm-up
            for server in servers:
                answer = await server.ask(f"Story number {k}. Once upon a time,", n=8, max_tokens=48)
                began = time.perf_counter()
                tales = (f"Tale {k} of teller {c}. Long ago" for c in range(8))
                many = await asyncio.gather(*(server.ask(tale, n=4, max_tokens=32) for tale in tales))
                if k >= 0:
                    name = server.peer.name
                    firsts[name].append(min(answer.first.values()) * 1000)
                    alone[name].append(answer.tokens / answer.end)
                    together[name].append(sum(each.tokens for each in many) / (time.perf_counter() - began))
    for name in pair:
        print(f"| {name} | " + " | ".join(_with_range(values[name]) for values in (firsts, alone, together)) + " |")


def _with_range(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def speed(options: argparse.Namespace) -> None:
    """Print the cost of forwarding requests to replicas, and the gain from more replicas."""
    print("| | first token, ms | n = 8, tokens/s | eight clients, tokens/s |")
    print("|---|---|---|---|", flush=True)
    for pair in PAIRS:
        asyncio.run(measure(pair, options.repeat))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("families", help="200 requests in 20 families on 4 replicas")
    command.add_argument("--fronts", type=int, default=2, help="servers that choose, each for itself")
    command.add_argument("--seeds", type=int, default=5, help="how many runs to take the mean of")
    command.set_defaults(run=families)
    command = commands.add_parser("simulation", help="many requests on up to 1,000 replicas")
    command.add_argument("--requests", type=int, default=100_000, help="for each number of replicas")
    command.set_defaults(run=simulation)
    command = commands.add_parser("speed", help="replicas beside an engine in one process")
    command.add_argument("--repeat", type=int, default=5)
    command.set_defaults(run=speed)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
