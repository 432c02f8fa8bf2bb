"""`GET /metrics` for Prometheus. Metrics that llama-server has, too, have its names."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from srb.engine.stats import EngineStats, Measure
from srb.server.http.connections import Connections
from srb.server.run.history import HistoryService
from srb.serving.engine_client import EngineClient

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_COUNTERS = {
    "llamacpp:prompt_tokens": ("prompt_tokens_evaluated", "Prompt tokens evaluated"),
    "llamacpp:prompt_seconds": ("prompt_seconds", "Seconds spent on these"),
    "llamacpp:tokens_predicted": ("tokens_generated", "Tokens generated"),
    "llamacpp:tokens_predicted_seconds": ("predicted_seconds", "Seconds spent on these"),
    "llamacpp:n_decode": ("steps", "Decodes"),
    "llamacpp:spec_decode_num_draft_tokens": ("n_drafted", "Draft tokens of speculative decoding"),
    "llamacpp:spec_decode_num_accepted_tokens": ("n_accepted", "Draft tokens that were accepted"),
    "srb:prompt_tokens_asked": ("prompt_tokens", "Prompt tokens of admitted requests"),
    "srb:prompt_tokens_cached": ("prompt_tokens_cached", "Of these, found in the prefix cache"),
    "srb:disk_reads": ("disk_reads", "Parts of states read from --cache-disk"),
    "srb:disk_bytes_read": ("disk_bytes_read", "Bytes of these"),
    "srb:disk_bytes_written": ("disk_bytes_written", "Bytes written to --cache-disk"),
    "srb:disk_faults": ("disk_faults", "Parts of states that couldn't be read or written there"),
    "srb:media_encoded": ("media_encoded", "Images and sounds that were encoded"),
    "srb:forks": ("forks", "Sequences that were forked from another"),
    "srb_layout_changes": ("layout_changes", "Changes of the layout of the KV cache, or of its size"),
    "srb_preemptions": ("preemptions", "Preemptions, for lack of KV cells"),
    "srb_swapped_bytes": ("swapped_bytes", "Bytes swapped out by preemptions and layout changes"),
    "srb_swap_seconds": ("swap_seconds", "Seconds spent on swapping out and in"),
}
"""The name of each counter, its field of `EngineStats`, and what it counts. On the wire the names end in _total."""

_GAUGES = {
    "srb:sequences_running": ("sequences", "Sequences with KV cells"),
    "srb:sequences_limit": ("max_sequences", "The most sequences of a decode (--parallel)"),
    "srb:cells_used": ("cells", "KV cells in use"),
    "srb:cells_shared": ("cells_shared", "Of these, shared by several sequences"),
    "srb_preempted": ("n_preempted", "Preempted sequences that wait for KV cells"),
    "srb:retained_bytes": ("retained_bytes", "Memory of the prefix cache for finished requests"),
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
        "Mean number of sequences in a decode",
        lambda stats: _ratio(stats.rows - stats.n_drafted, stats.steps),
    ),
    "llamacpp:kv_cache_tokens": ("KV cells in use", lambda stats: stats.cells),
    "llamacpp:kv_cache_usage_ratio": (
        "Share of the KV cells in use, 0 to 1",
        lambda stats: stats.cells / stats.max_cells,
    ),
    "srb:cells_free": (
        "Free KV cells of the present layout",
        lambda stats: stats.max_cells - stats.cells,
    ),
}

_HISTOGRAMS: dict[Measure, tuple[str, str]] = {
    "first_token": ("srb:time_to_first_token_seconds", "From a request's arrival to its first token"),
    "next_token": ("srb:time_between_tokens_seconds", "From a token of an alternative to its next"),
    "decode": ("srb:step_decode_seconds", "Evaluating the batch of a step"),
    "overhead": ("srb:step_overhead_seconds", "The rest of a step: sampling, detokenizing, bookkeeping"),
}
_BUCKETS = tuple(base * 10**power for power in range(-4, 3) for base in (1, 2, 5))


def _ratio(value: float, divisor: float) -> float:
    return value / divisor if divisor else 0


class Metrics:
    """The metrics of an engine. `observe` may be called from any thread."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._histograms = {
            measure: Histogram(name, text, registry=self._registry, buckets=_BUCKETS)
            for measure, (name, text) in _HISTOGRAMS.items()
        }

    def observe(self, measure: Measure, seconds: float) -> None:
        """Records a measurement of the engine."""
        self._histograms[measure].observe(seconds)

    def text(self, engine: EngineClient, connections: Connections, history_service: HistoryService) -> bytes:
        """All metrics in Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(_EngineCollector(engine, connections, history_service))
        return generate_latest(registry) + generate_latest(self._registry)


@dataclass(frozen=True)
class _EngineCollector(Collector):
    """The metrics that are read at each request: the engine's state and counters, and connections."""

    engine: EngineClient
    connections: Connections
    history_service: HistoryService

    def collect(self) -> Iterator[Metric]:
        health = self.engine.health
        yield GaugeMetricFamily("llamacpp:requests_processing", "Requests that run", health.running)
        yield GaugeMetricFamily("llamacpp:requests_deferred", "Requests that wait", health.waiting)
        text = "Of the tokens generated, those of prefetched alternatives"
        yield CounterMetricFamily("srb:ahead_tokens", text, self.engine.prefetcher.n_tokens)
        text = "Prefetched alternatives that were requested later"
        yield CounterMetricFamily("srb:ahead_taken", text, self.engine.prefetcher.n_taken)
        text = "Restarts of the engine after failures"
        yield CounterMetricFamily("srb_engine_restarts", text, health.engine_restarts)
        counts: dict[tuple[str, ...], float] = {(state,): n for state, n in self.connections.counts.items()}
        yield _family(GaugeMetricFamily, "srb:connections", "Open connections", ("state",), counts)
        yield GaugeMetricFamily("srb:connections_limit", "The most open connections", self.connections.limit)
        closed: dict[tuple[str, ...], float] = {(reason,): n for reason, n in self.connections.closed.items()}
        text = "Connections that the server closed"
        yield _family(CounterMetricFamily, "srb:connections_closed", text, ("reason",), closed)
        if self.history_service.status is not None:
            text = "Pending writes of the history"
            yield GaugeMetricFamily("srb_history_owed", text, self.history_service.n_pending_writes)
        if health.replicas:
            replicas = {each.name: each for each in health.replicas}
            yield _family(
                GaugeMetricFamily,
                "srb:replica_up",
                "1, or 0 if it is lost",
                ("replica",),
                {(name,): float(each.status == "ready") for name, each in replicas.items()},
            )
            yield from _engine_metrics(("replica",), {(name,): each.stats for name, each in replicas.items()})
        elif health.stats:
            yield from _engine_metrics((), {(): health.stats})


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


def _engine_metrics(labels: tuple[str, ...], stats: dict[tuple[str, ...], EngineStats]) -> Iterator[Metric]:
    """The metrics of some engines. stats: by the values of the labels, such as the name of a replica."""

    def of(value: Callable[[EngineStats], float]) -> dict[tuple[str, ...], float]:
        return {each: value(one) for each, one in stats.items()}

    for name, (field, text) in _COUNTERS.items():
        yield _family(CounterMetricFamily, name, text, labels, of(attrgetter(field)))
    for name, (field, text) in _GAUGES.items():
        yield _family(GaugeMetricFamily, name, text, labels, of(attrgetter(field)))
    aborts = {(*each, reason): count for each, one in stats.items() for reason, count in one.aborts.items()}
    text = "Requests and alternatives that were aborted"
    yield _family(CounterMetricFamily, "srb:aborts", text, (*labels, "reason"), aborts)
    layouts = {(*each, name): float(one.layout == name) for each, one in stats.items() for name in _LAYOUTS}
    yield _family(GaugeMetricFamily, "srb_kv_layout", "1 for the present layout", (*labels, "layout"), layouts)
    for name, (text, value) in _DERIVED.items():
        yield _family(GaugeMetricFamily, name, text, labels, of(value))
