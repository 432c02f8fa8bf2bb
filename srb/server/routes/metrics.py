"""Makes the answer of GET /metrics for Prometheus. Where llama-server has a name for a metric, it is used here, too."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from srb.engine.stats import EngineStats, Measure
from srb.server.http.connections import Connections
from srb.server.run.keeper import Keeper
from srb.serving.engine_client import EngineClient

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_COUNTERS = {
    "llamacpp:prompt_tokens": ("prompt_tokens_evaluated", "Prompt tokens evaluated"),
    "llamacpp:prompt_seconds": ("prompt_seconds", "Seconds spent on these"),
    "llamacpp:tokens_predicted": ("tokens_generated", "Tokens generated"),
    "llamacpp:tokens_predicted_seconds": ("predicted_seconds", "Seconds spent on these"),
    "llamacpp:n_decode": ("steps", "Decodes"),
    "llamacpp:spec_decode_num_draft_tokens": ("n_drafted", "Tokens guessed, and evaluated before they were drawn"),
    "llamacpp:spec_decode_num_accepted_tokens": ("n_accepted", "Of these, drawn"),
    "srb:prompt_tokens_asked": ("prompt_tokens", "Prompt tokens of the requests that were admitted"),
    "srb:prompt_tokens_cached": ("prompt_tokens_cached", "Of these, known from other requests"),
    "srb:disk_reads": ("disk_reads", "Pieces of states read from --cache-disk"),
    "srb:disk_bytes_read": ("disk_bytes_read", "Bytes of these"),
    "srb:disk_bytes_written": ("disk_bytes_written", "Bytes written to --cache-disk"),
    "srb:disk_faults": ("disk_faults", "Pieces of states that couldn't be read from there, or written"),
    "srb:media_encoded": ("media_encoded", "Images and sounds that were made into what the model evaluates"),
    "srb:forks": ("forks", "Sequences that began with cells of another"),
    "srb_layout_changes": ("layout_changes", "Changes of the layout of the KV cache, or of its size"),
    "srb_preemptions": ("preemptions", "Preemptions, because others needed the cells"),
    "srb_swapped_bytes": ("swapped_bytes", "Bytes of states that preemptions and layout changes swapped out"),
    "srb_swap_seconds": ("swap_seconds", "Seconds spent on swapping out and in"),
}
"""The name of each counter, its field of `EngineStats`, and what it counts. On the wire the names end in _total."""

_GAUGES = {
    "srb:sequences_running": ("sequences", "Alternatives that hold cells"),
    "srb:sequences_limit": ("max_sequences", "Alternatives that get a token in one step (--parallel)"),
    "srb:cells_used": ("cells", "KV cells that requests hold"),
    "srb:cells_shared": ("cells_shared", "Of these, of prompts that several alternatives continue"),
    "srb_preempted": ("n_preempted", "Alternatives that are preempted, and wait for cells"),
    "srb:retained_bytes": ("retained_bytes", "Memory for what finished requests have evaluated"),
    "srb:disk_bytes": ("disk_bytes", "Files of --cache-disk"),
}

_LAYOUTS = ("unified", "streams")

_DERIVED: dict[str, tuple[str, Callable[[EngineStats], float]]] = {
    "llamacpp:prompt_tokens_seconds": (
        "Prompt tokens per second of evaluation",
        lambda stats: _ratio(stats.prompt_tokens_evaluated, stats.prompt_seconds),
    ),
    "llamacpp:predicted_tokens_seconds": (
        "Generated tokens per second of evaluation",
        lambda stats: _ratio(stats.tokens_generated, stats.predicted_seconds),
    ),
    "llamacpp:n_busy_slots_per_decode": (
        "Alternatives in a decode, in the mean",
        lambda stats: _ratio(stats.rows - stats.n_drafted, stats.steps),
    ),
    "llamacpp:kv_cache_tokens": ("KV cells that requests hold", lambda stats: stats.cells),
    "llamacpp:kv_cache_usage_ratio": (
        "Of the cells of the present layout, 0 to 1",
        lambda stats: stats.cells / stats.max_cells,
    ),
    "srb:cells_free": (
        "KV cells of the present layout that nobody holds",
        lambda stats: stats.max_cells - stats.cells,
    ),
}

_HISTOGRAMS: dict[Measure, tuple[str, str]] = {
    "first_token": ("srb:time_to_first_token_seconds", "From a request's arrival to its first token"),
    "next_token": ("srb:time_between_tokens_seconds", "From a token of an alternative to its next"),
    "decode": ("srb:step_decode_seconds", "Evaluating the batch of a step"),
    "overhead": ("srb:step_overhead_seconds", "All else in a step: drawing, text, bookkeeping"),
}
_BUCKETS = tuple(base * 10**power for power in range(-4, 3) for base in (1, 2, 5))


def _ratio(value: float, divisor: float) -> float:
    return value / divisor if divisor else 0


class Metrics:
    """The measurements of an engine. `observe` may be called from any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._histograms = {
            measure: Histogram(name, text, registry=self._registry, buckets=_BUCKETS)
            for measure, (name, text) in _HISTOGRAMS.items()
        }

    def observe(self, measure: Measure, seconds: float) -> None:
        """Takes a measurement of the engine."""
        self._histograms[measure].observe(seconds)

    def text(self, engine: EngineClient, connections: Connections, keeper: Keeper) -> bytes:
        """All metrics in Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(_Snapshot(engine, connections, keeper))
        return generate_latest(registry) + generate_latest(self._registry)


@dataclass(frozen=True)
class _Snapshot(Collector):
    """The metrics that are read when somebody asks: what the engine holds, what it has done, who is connected."""

    engine: EngineClient
    connections: Connections
    keeper: Keeper

    def collect(self) -> Iterator[Metric]:
        health = self.engine.health
        yield GaugeMetricFamily("llamacpp:requests_processing", "Requests that run", health.running)
        yield GaugeMetricFamily("llamacpp:requests_deferred", "Requests that wait", health.waiting)
        text = "Of the tokens generated, those drawn while nobody waited (ahead)"
        yield CounterMetricFamily("srb:ahead_tokens", text, self.engine.ahead.n_tokens)
        text = "Alternatives that were drawn ahead, in part or whole, and then asked for"
        yield CounterMetricFamily("srb:ahead_taken", text, self.engine.ahead.n_given)
        text = "Times that the engine has failed and restarted"
        yield CounterMetricFamily("srb_engine_restarts", text, health.engine_restarts)
        counts: dict[tuple[str, ...], float] = {(state,): n for state, n in self.connections.counts.items()}
        yield _family(GaugeMetricFamily, "srb:connections", "Open connections", ("state",), counts)
        yield GaugeMetricFamily("srb:connections_limit", "Connections that may be open", self.connections.limit)
        closed: dict[tuple[str, ...], float] = {(reason,): n for reason, n in self.connections.closed.items()}
        text = "Connections that the server has closed by itself"
        yield _family(CounterMetricFamily, "srb:connections_closed", text, ("reason",), closed)
        if self.keeper.status is not None:
            text = "Changes that the history's file must still get"
            yield GaugeMetricFamily("srb_history_owed", text, self.keeper.n_owed)
        if health.replicas:
            replicas = {each.name: each for each in health.replicas}
            yield _family(
                GaugeMetricFamily,
                "srb:replica_up",
                "1, or 0 where it is lost",
                ("replica",),
                {(name,): float(each.status == "ready") for name, each in replicas.items()},
            )
            yield from _of(("replica",), {(name,): each.stats for name, each in replicas.items() if each.stats})
        elif health.stats:
            yield from _of((), {(): health.stats})


def _family(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily],
    name: str,
    text: str,
    labels: tuple[str, ...],
    values: Mapping[tuple[str, ...], float],
) -> Metric:
    family = kind(name, text, labels=labels)
    for each, value in values.items():
        family.add_metric(each, value)
    return family


def _of(labels: tuple[str, ...], stats: dict[tuple[str, ...], EngineStats]) -> Iterator[Metric]:
    """The metrics of some engines. stats: by the values of the labels, such as the name of a replica."""

    def of(value: Callable[[EngineStats], float]) -> dict[tuple[str, ...], float]:
        return {each: value(one) for each, one in stats.items()}

    for name, (field, text) in _COUNTERS.items():
        yield _family(CounterMetricFamily, name, text, labels, of(attrgetter(field)))
    for name, (field, text) in _GAUGES.items():
        yield _family(GaugeMetricFamily, name, text, labels, of(attrgetter(field)))
    aborts = {(*each, reason): count for each, one in stats.items() for reason, count in one.aborts.items()}
    text = "Requests and alternatives that were ended early"
    yield _family(CounterMetricFamily, "srb:aborts", text, (*labels, "reason"), aborts)
    layouts = {(*each, name): float(one.layout == name) for each, one in stats.items() for name in _LAYOUTS}
    yield _family(GaugeMetricFamily, "srb_kv_layout", "1 for the present layout", (*labels, "layout"), layouts)
    for name, (text, value) in _DERIVED.items():
        yield _family(GaugeMetricFamily, name, text, labels, of(value))
