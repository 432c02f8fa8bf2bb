"""`OtlpTelemetry` sends a span and metrics of each request to an OpenTelemetry collector.

Names are those of OpenTelemetry's conventions for generative AI. Prompts and texts aren't sent, and neither are
messages of errors that may quote them. The SDK reads its own variables, such as OTEL_SERVICE_NAME.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Mapping

from aiohttp import web
from aiohttp.typedefs import Handler
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

import srb
from srb.engine.events import Timings, Usage
from srb.errors import SettingsError, SrbError
from srb.server.http.errors import route_of
from srb.server.http.exchange import LIMITS
from srb.server.http.telemetry import FAILED, ON_END, USAGE
from srb.serving.event_log import EventLog
from srb.serving.logs import loggable

logger = logging.getLogger("srb")

CLOSE_SECONDS = 5.0
"""How long the end of the server waits for the collector."""

TRACES, METRICS = "/v1/traces", "/v1/metrics"

_DURATION_BUCKETS = [0.01 * 2**power for power in range(14)]
_FIRST_TOKEN_BUCKETS = [
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0),
]
_PER_TOKEN_BUCKETS = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5]
"""The buckets of the conventions, in seconds."""

_SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "max_tokens")
"""The sampling fields that the conventions name."""

_FINISHED = ("stop", "length")
"""The finish reasons of alternatives that succeeded."""


class OtlpTelemetry:
    """Sends spans and metrics by OTLP over HTTP, in threads of its own.

    Args:
        endpoint: The address of the collector, without the path of a signal.

    Raises:
        SettingsError: It isn't an HTTP address.
    """

    def __init__(self, endpoint: str) -> None:
        if not endpoint.startswith(("http://", "https://")):
            raise SettingsError(
                f"--otlp-endpoint {endpoint}: srb sends OTLP over HTTP; give the collector's HTTP address, such as "
                "http://localhost:4318"
            )
        base = endpoint.rstrip("/").removesuffix(TRACES)
        resource = Resource.create({SERVICE_VERSION: srb.__version__})
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "srb"}))
        self._traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        if _is_on("OTEL_TRACES_EXPORTER"):
            self._traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(base + TRACES)))
        readers = []
        if _is_on("OTEL_METRICS_EXPORTER"):
            readers.append(PeriodicExportingMetricReader(OTLPMetricExporter(base + METRICS)))
        self._metrics = MeterProvider(readers, resource, shutdown_on_exit=False)
        self.tracer = self._traces.get_tracer("srb", srb.__version__)
        self._propagator = TraceContextTextMapPropagator()
        meter = self._metrics.get_meter("srb", srb.__version__)
        self.duration = meter.create_histogram(
            "gen_ai.server.request.duration",
            "s",
            "From a request's arrival to its last token",
            explicit_bucket_boundaries_advisory=_DURATION_BUCKETS,
        )
        self.time_to_first_token = meter.create_histogram(
            "gen_ai.server.time_to_first_token",
            "s",
            "From a request's arrival to its first token",
            explicit_bucket_boundaries_advisory=_FIRST_TOKEN_BUCKETS,
        )
        self.time_per_output_token = meter.create_histogram(
            "gen_ai.server.time_per_output_token",
            "s",
            "Time per token of an alternative, after the first one",
            explicit_bucket_boundaries_advisory=_PER_TOKEN_BUCKETS,
        )

    async def observe(self, operation: str, handler: Handler, request: web.Request) -> web.StreamResponse:
        """Answers a request with a handler, and sends its span: an `Observe`."""
        span = self._begin(operation, request)
        request[ON_END] = span.ended
        try:
            response = await handler(request)
        except (ConnectionError, asyncio.CancelledError):  # the client has disconnected
            if ON_END in request:  # else its event log ends the span
                span.failed("cancelled")
            raise
        except Exception as error:
            span.failed(error)
            raise
        if ON_END in request:
            span.answered(request.get(USAGE), request.get(FAILED))
        return response

    def _begin(self, operation: str, request: web.Request) -> "_RequestSpan":
        """Begins a span, which continues the trace in the client's `traceparent`."""
        now, model = time.time_ns(), request.app[LIMITS].model
        shared: dict[str, AttributeValue] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "srb",
            "gen_ai.request.model": model,
        }
        span = self.tracer.start_span(
            f"{operation} {model}",
            self._propagator.extract(request.headers),
            SpanKind.SERVER,
            {**shared, "http.request.method": request.method, "http.route": route_of(request)},
            start_time=now,
        )
        return _RequestSpan(self, span, shared, now)

    async def close(self) -> None:
        """Sends what is left, for at most CLOSE_SECONDS."""
        closing = threading.Thread(target=self._shut_down, name="srb-otlp", daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_SECONDS)
        if closing.is_alive():
            logger.warning("--otlp-endpoint: the collector can't be reached; the last spans and metrics are lost")

    def _shut_down(self) -> None:
        self._traces.shutdown()
        self._metrics.shutdown()


class _RequestSpan:
    """The span of a request.

    Args:
        telemetry: Records the metrics.
        span: The span.
        shared: The attributes that the metrics have, too.
        started: When the request arrived, in nanoseconds since 1970.
    """

    def __init__(
        self, telemetry: OtlpTelemetry, span: Span, shared: Mapping[str, AttributeValue], started: int
    ) -> None:
        self._telemetry = telemetry
        self._span = span
        self._shared = dict(shared)
        self._started = started
        self._has_ended = False

    def failed(self, error: Exception | str) -> None:
        """Ends the span of a request that wasn't answered."""
        if self._has_ended:  # the engine took it, and its event log has ended with this error
            return
        if isinstance(error, Exception):
            status = error.status if isinstance(error, SrbError) else getattr(error, "status", 500)
            self._span.set_attribute("http.response.status_code", status)
        self._end(error, time.time_ns())

    def answered(self, usage: Usage | None, error: SrbError | str | None) -> None:
        """Ends the span of a request without an event log."""
        self._responded()
        if usage:
            self._span.set_attributes(_tokens(usage))
        self._end(error, time.time_ns())

    def ended(self, event_log: EventLog) -> None:
        """Ends the span of a request that the engine took."""
        if self._has_ended:  # answering failed before the engine had ended it
            return
        try:
            self._report(event_log, time.time_ns())
        except Exception:
            logger.exception("a fault in srb: the span of request %s is incomplete", event_log.request.id)

    def _report(self, log: EventLog, now: int) -> None:
        self._responded()
        taken = now - (_nanoseconds(log.end.timings) if log.end else 0)  # when the engine got the request

        def after(ms: float) -> int:
            return min(max(taken + round(ms * 1e6), self._started), now)

        stops = sorted(log.stops, key=lambda stop: stop.index)
        self._span.set_attributes(_attributes(log))
        self._span.set_attribute("gen_ai.response.finish_reasons", [stop.finish_reason for stop in stops])
        for stop in log.stops:
            self._span.add_event(
                "gen_ai.choice",
                {
                    "index": stop.index,
                    "finish_reason": stop.finish_reason,
                    "gen_ai.usage.output_tokens": stop.length,
                    "gen_ai.request.seed": log.request.branches[stop.index % len(log.request.branches)].seed,
                },
                after(_nanoseconds(stop.timings) / 1e6) if stop.timings else now,
            )
        written = [(stop, stop.timings) for stop in stops if stop.timings and stop.length]
        if written:
            first = min(after(timings.queued_ms + timings.prompt_ms) for _, timings in written) - self._started
            self._span.set_attribute("gen_ai.response.time_to_first_chunk", first / 1e9)
            succeeded = [each for each in written if each[0].finish_reason in _FINISHED]
            if succeeded:
                self._telemetry.time_to_first_token.record(first / 1e9, self._shared, self._context)
            for stop, timings in succeeded:
                if stop.length > 1:
                    seconds = timings.predicted_ms / 1e3 / (stop.length - 1)
                    self._telemetry.time_per_output_token.record(seconds, self._shared, self._context)
        self._end(log.error or _reason_of(log), now)

    def _responded(self) -> None:
        self._shared["gen_ai.response.model"] = model = self._shared["gen_ai.request.model"]
        self._span.set_attribute("gen_ai.response.model", model)

    @property
    def _context(self) -> Context:
        return set_span_in_context(self._span)

    def _end(self, error: Exception | str | None, now: int) -> None:
        self._has_ended = True
        if error:
            self._shared["error.type"] = error_type = error if isinstance(error, str) else _type_of(error)
            self._span.set_attribute("error.type", error_type)
            self._span.set_status(StatusCode.ERROR, None if isinstance(error, str) else loggable(error))
        self._telemetry.duration.record((now - self._started) / 1e9, self._shared, self._context)
        self._span.end(now)


def _is_on(variable: str) -> bool:
    """Whether one of the SDK's variables leaves a signal on. Its values are names of exporters, and none."""
    return os.environ.get(variable, "").strip().lower() != "none"


def _nanoseconds(timings: Timings) -> int:
    """The time from the arrival of a request in the engine to the end of what the timings are of."""
    return round((timings.queued_ms + timings.prompt_ms + timings.predicted_ms) * 1e6)


def _type_of(error: Exception) -> str:
    return (error.code if isinstance(error, SrbError) else None) or type(error).__name__


def _reason_of(log: EventLog) -> str | None:
    """Why a request was ended early. None if it has succeeded, maybe without some of its alternatives."""
    if not log.end:  # its events were lost, or it continues after a restart
        return "_OTHER"
    aborts = [stop.stop_reason for stop in log.stops if stop.finish_reason == "abort"]
    return str(aborts[0]) if log.aborted and aborts else None


def _attributes(log: EventLog) -> dict[str, AttributeValue]:
    """What a request asked for, and what it used."""
    request = log.request
    found: dict[str, AttributeValue] = {"gen_ai.response.id": request.id}
    if len(request.branches) > 1:
        found["gen_ai.request.choice.count"] = len(request.branches)
    for name in _SAMPLING:
        values = {getattr(branch, name) for branch in request.branches}
        value = values.pop()
        if not values and value is not None and (name, value) != ("max_tokens", -1):
            found[f"gen_ai.request.{name}"] = value
    if log.end:
        found |= _tokens(log.end.usage)
        found["gen_ai.usage.output_tokens"] = log.end.usage.completion_tokens
        found["srb.time_in_queue"] = log.end.timings.queued_ms / 1e3
    return found


def _tokens(usage: Usage) -> dict[str, AttributeValue]:
    return {
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
    }
