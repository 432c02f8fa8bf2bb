"""GET /metrics: what the engine does, for Prometheus. llama-server's names where it has them."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from srb.async_engine import AsyncEngine
from srb.engine.stats import EngineStats, Measure

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_COUNTERS = {
    "llamacpp:prompt_tokens": ("prompt_tokens_evaluated", "Prompt tokens evaluated"),
    "llamacpp:prompt_seconds": ("prompt_seconds", "Seconds spent on these"),
    "llamacpp:tokens_predicted": ("tokens_generated", "Tokens generated"),
    "llamacpp:tokens_predicted_seconds": ("predicted_seconds", "Seconds spent on these"),
    "llamacpp:n_decode": ("steps", "Decodes"),
    "srb:prompt_tokens_asked": ("prompt_tokens", "Prompt tokens of the requests that were admitted"),
    "srb:prompt_tokens_cached": ("prompt_tokens_cached", "Of these, known from other requests"),
    "srb:disk_reads": ("disk_reads", "Pieces of states read from --cache-disk"),
    "srb:disk_bytes_read": ("disk_bytes_read", "Bytes of these"),
    "srb:disk_bytes_written": ("disk_bytes_written", "Bytes written to --cache-disk"),
    "srb:disk_faults": ("disk_faults", "Pieces of states that couldn't be read from there, or written"),
    "srb:forks": ("forks", "Sequences that began with cells of another"),
}
"""Each with the field of `EngineStats` and what it counts; on the wire their names end in _total."""

_GAUGES = {
    "srb:sequences_running": ("sequences", "Alternatives that hold cells"),
    "srb:sequences_limit": ("max_sequences", "Alternatives that may (--parallel)"),
    "srb:cells_used": ("cells", "KV cells promised to requests"),
    "srb:cells_shared": ("cells_shared", "Of these, of prompts that several alternatives continue"),
    "srb:retained_bytes": ("retained_bytes", "Memory for what finished requests have evaluated"),
    "srb:disk_bytes": ("disk_bytes", "Files of --cache-disk"),
}

_HISTOGRAMS: dict[Measure, tuple[str, str]] = {
    "first_token": ("srb:time_to_first_token_seconds", "From a request's arrival to its first token"),
    "next_token": ("srb:time_between_tokens_seconds", "From a token of an alternative to its next"),
    "decode": ("srb:step_decode_seconds", "Evaluating the batch of a step"),
    "overhead": ("srb:step_overhead_seconds", "All else in a step: drawing, text, bookkeeping"),
}
_BUCKETS = tuple(base * 10**power for power in range(-4, 3) for base in (1, 2, 5))


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

    def text(self, engine: AsyncEngine) -> bytes:
        """All of it in Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(_Snapshot(engine))
        return generate_latest(registry) + generate_latest(self._registry)


@dataclass(frozen=True)
class _Snapshot(Collector):
    """What the engine holds and has done."""

    engine: AsyncEngine

    def collect(self) -> Iterator[Metric]:
        health = self.engine.health
        yield GaugeMetricFamily("llamacpp:requests_processing", "Requests that run", health.running)
        yield GaugeMetricFamily("llamacpp:requests_deferred", "Requests that wait", health.waiting)
        if health.stats:
            yield from _of(health.stats)


def _of(stats: EngineStats) -> Iterator[Metric]:
    for name, (field, text) in _COUNTERS.items():
        yield CounterMetricFamily(name, text, getattr(stats, field))
    for name, (field, text) in _GAUGES.items():
        yield GaugeMetricFamily(name, text, getattr(stats, field))
    aborts = CounterMetricFamily("srb:aborts", "Requests and alternatives that were ended early", labels=["reason"])
    for reason, count in stats.aborts.items():
        aborts.add_metric([reason], count)
    yield aborts
    rates = {
        "llamacpp:prompt_tokens_seconds": (stats.prompt_tokens_evaluated, stats.prompt_seconds, "Prompt tokens"),
        "llamacpp:predicted_tokens_seconds": (stats.tokens_generated, stats.predicted_seconds, "Generated tokens"),
    }
    for name, (tokens, seconds, text) in rates.items():
        yield GaugeMetricFamily(name, f"{text} per second of evaluation", tokens / seconds if seconds else 0)
    per_decode = stats.rows / stats.steps if stats.steps else 0
    yield GaugeMetricFamily("llamacpp:n_busy_slots_per_decode", "Alternatives in a decode, in the mean", per_decode)
    yield GaugeMetricFamily("llamacpp:kv_cache_tokens", "KV cells promised to requests", stats.cells)
    yield GaugeMetricFamily("llamacpp:kv_cache_usage_ratio", "Of all cells, 0 to 1", stats.cells / stats.max_cells)
    yield GaugeMetricFamily("srb:cells_free", "KV cells that are promised to nobody", stats.max_cells - stats.cells)
