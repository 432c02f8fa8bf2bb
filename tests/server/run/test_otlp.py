"""`--otlp-endpoint`: what an OpenTelemetry collector gets of requests in all formats. On the fake backend."""

import asyncio
import io
import json
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import ClientSession, web
from fake_backend import FakeBackend, Gate
from pytest_aiohttp.plugin import AiohttpServer
from server.conftest import Connect
from server.formats.all_formats import FORMATS, STREAMED, in_all_formats, writes
from server.routes.test_pooling import FakeEmbedder
from server.run.conftest import Prepare
from waiting import Clock, until

from srb.engine.engine import Engine
from srb.engine.sampling_params import SamplingParams
from srb.errors import BackendError, SettingsError
from srb.llama.model.chat_template import ChatTemplate
from srb.options.settings import Settings
from srb.server.http import exchange
from srb.server.http.exchange import ENGINE
from srb.server.routes.pooling import TABLES
from srb.server.run import serve
from srb.serving.async_engine import AsyncEngine

if TYPE_CHECKING:
    from srb.server.run.otlp import OtlpTelemetry

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PROVIDED = {"gen_ai.provider.name": "srb", "gen_ai.request.model": "fake"}


@dataclass
class Span:
    name: str
    trace: str
    parent: str
    begin: int
    end: int
    status: int
    message: str
    attributes: dict[str, Any]
    choices: list[dict[str, Any]]
    times: list[int]


@dataclass
class Collector:
    """Decodes what is sent to it. The metrics are (count, sum) by name, operation and error.

    Attributes:
        url: Its address.
        resource: The attributes of the server.
        sent: Everything as it came.
    """

    url: str = ""
    resource: dict[str, Any] = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    metrics: dict[tuple[str, str, str | None], tuple[int, float]] = field(default_factory=dict)
    sent: bytes = b""

    async def traces(self, request: web.Request) -> web.Response:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        self.sent += (body := await request.read())
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resource = values(resource.resource.attributes)
            for span in (each for scope in resource.scope_spans for each in scope.spans):
                assert span.kind == span.SPAN_KIND_SERVER
                assert {event.name for event in span.events} <= {"gen_ai.choice"}
                self.spans.append(
                    Span(
                        span.name,
                        span.trace_id.hex(),
                        span.parent_span_id.hex(),
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        span.status.code,
                        span.status.message,
                        values(span.attributes),
                        [values(event.attributes) for event in span.events],
                        [event.time_unix_nano for event in span.events],
                    )
                )
        return web.Response()

    async def take_metrics(self, request: web.Request) -> web.Response:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        self.sent += (body := await request.read())
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for metric in (each for scope in resource.scope_metrics for each in scope.metrics):
                assert metric.unit == "s"
                for point in metric.histogram.data_points:
                    found = values(point.attributes)
                    assert PROVIDED.items() <= found.items()
                    name = metric.name, found["gen_ai.operation.name"], found.get("error.type")
                    self.metrics[name] = point.count, point.sum
        return web.Response()


def values(attributes: Iterable[Any]) -> dict[str, Any]:
    def value(of: Any) -> Any:
        kind = of.WhichOneof("value")
        return [value(each) for each in of.array_value.values] if kind == "array_value" else getattr(of, kind)

    return {each.key: value(each.value) for each in attributes}


@pytest.fixture
async def collector(aiohttp_server: AiohttpServer) -> Collector:
    made = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", made.traces)
    app.router.add_post("/v1/metrics", made.take_metrics)
    made.url = str((await aiohttp_server(app)).make_url(""))
    return made


@pytest.fixture
async def telemetry(collector: Collector) -> "OtlpTelemetry":
    from srb.server.run.otlp import OtlpTelemetry

    return OtlpTelemetry(collector.url)  # a test closes it to get what was recorded


def backend(text: bytes = b"abc", **options: Any) -> FakeBackend:
    template = ChatTemplate("{{ messages[0].content }}>")
    return FakeBackend(n_cells=4096, chat_template=template, script=writes(text), **options)


@in_all_formats
@pytest.mark.parametrize("streamed", [False, True])
async def test_each_format_has_a_span(
    connect: Connect, collector: Collector, telemetry: "OtlpTelemetry", name: str, streamed: bool
) -> None:
    client = await connect(backend(), observe=telemetry.observe)
    path, body = FORMATS[name]
    path = path.replace("/v1/generate", "/extra/generate/stream") if streamed else path
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    response = await client.post(path, json=body | (STREAMED[name] if streamed else {}), headers=headers)
    assert response.status == 200, await response.text()
    await response.read()
    await telemetry.close()
    (span,) = collector.spans
    operation = "chat" if "messages" in body or "input" in body else "text_completion"
    assert (span.name, span.trace, span.parent, span.status) == (f"{operation} fake", TRACE, PARENT, 0)
    expected = {
        "gen_ai.operation.name": operation,
        **PROVIDED,
        "http.request.method": "POST",
        "http.route": path,
        "gen_ai.response.model": "fake",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 0,
    }
    assert span.attributes.items() >= expected.items()
    assert span.attributes["gen_ai.usage.input_tokens"] > 0
    assert [(each["index"], each["finish_reason"]) for each in span.choices] == [(0, "stop")]
    counts = {metric: count for metric, (count, _) in collector.metrics.items()}
    names = ("request.duration", "time_to_first_token", "time_per_output_token")
    assert counts == {(f"gen_ai.server.{each}", operation, None): 1 for each in names}
    assert collector.resource["service.name"] == "srb"


async def test_a_span_says_what_was_asked_and_how_each_alternative_ended(
    connect: Connect, collector: Collector, telemetry: "OtlpTelemetry"
) -> None:
    client = await connect(backend(), observe=telemetry.observe)
    branches = [{"max_tokens": 2, "label": "secret"}, {"max_tokens": 9}, {"max_tokens": 1, "presence_penalty": -1}]
    sent = {"prompt": "secret>", "branches": branches, "seed": 7, "temperature": 0.5, "top_k": 3, "stop": ["secret"]}
    events = await client.post("/v1/completions", json=sent)
    assert '"text": "a"' in await events.text()
    await telemetry.close()
    (span,) = collector.spans
    asked = {name: value for name, value in span.attributes.items() if "request" in name}
    expected = {"choice.count": 3, "temperature": 0.5, "top_k": 3, "top_p": 0.95, "frequency_penalty": 0.0}
    expected = {f"gen_ai.request.{name}": value for name, value in expected.items()}
    assert asked == expected | {"gen_ai.request.model": "fake", "http.request.method": "POST"}
    assert span.attributes["gen_ai.response.finish_reasons"] == ["length", "stop", "length"]
    assert span.attributes["gen_ai.response.id"] == events.headers["X-Request-Id"]
    assert span.attributes["gen_ai.usage.output_tokens"] == 7
    by_index = {each.pop("index"): each for each in span.choices}
    assert by_index == {
        index: {"finish_reason": reason, "gen_ai.usage.output_tokens": length, "gen_ai.request.seed": 7 + index}
        for index, (reason, length) in enumerate([("length", 2), ("stop", 4), ("length", 1)])
    }
    assert [*sorted(span.times)] == span.times
    first = span.begin + span.attributes["gen_ai.response.time_to_first_chunk"] * 1e9
    assert span.begin < first <= span.times[0] <= span.times[-1] <= span.end
    duration, to_first, per_token = (
        collector.metrics[f"gen_ai.server.{name}", "text_completion", None]
        for name in ("request.duration", "time_to_first_token", "time_per_output_token")
    )
    assert (duration[0], to_first[0], per_token[0]) == (1, 1, 2)  # the third alternative has no token after its first
    assert duration[1] == pytest.approx((span.end - span.begin) / 1e9)
    assert b"secret" not in collector.sent


async def test_the_time_in_the_queue_and_the_cache_are_shown(
    connect: Connect, collector: Collector, telemetry: "OtlpTelemetry"
) -> None:
    client = await connect(backend(), observe=telemetry.observe, make=partial(Engine, cache_bytes=10_000_000))
    for _ in range(2):
        body = {"prompt": "x" * 200 + ">", "stream": False, "n": 2}
        assert (await client.post("/v1/completions", json=body)).status == 200
    await telemetry.close()
    assert [each.attributes["gen_ai.usage.cache_read.input_tokens"] for each in collector.spans] == [0, 201]
    for span in collector.spans:
        assert 0 <= span.attributes["srb.time_in_queue"] <= span.attributes["gen_ai.response.time_to_first_chunk"]


NUMBERS = [
    ("/v1/embeddings", {"input": ["ab", [3]]}, "embeddings", 3),
    ("/embedding", {"content": "ab"}, "embeddings", 2),
    ("/api/embed", {"input": "abc"}, "embeddings", 3),
    ("/rerank", {"query": "q", "documents": ["a", "bc"]}, "rerank", 7),
    ("/v1/score", {"contexts": ["ab"], "continuations": ["c", "de"], "stream": False}, "score", 2),
    ("/v1/score", {"contexts": ["ab"], "continuations": ["c", "de"]}, "score", 2),
]


@pytest.mark.parametrize(("path", "body", "operation", "n_tokens"), NUMBERS)
async def test_embeddings_rankings_and_score_tables_have_spans(
    connect: Connect,
    collector: Collector,
    telemetry: "OtlpTelemetry",
    path: str,
    body: Any,
    operation: str,
    n_tokens: int,
) -> None:
    embedder = FakeEmbedder(rank_template="{query} {document}" if operation == "rerank" else None)
    client = await connect(FakeBackend(embedder=embedder), observe=telemetry.observe)
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    response = await client.post(path, json=body, headers=headers)
    assert response.status == 200, await response.text()
    await response.read()
    await telemetry.close()
    (span,) = collector.spans
    assert (span.name, span.trace, span.parent, span.status) == (f"{operation} fake", TRACE, PARENT, 0)
    assert span.attributes == PROVIDED | {
        "gen_ai.operation.name": operation,
        "gen_ai.response.model": "fake",
        "gen_ai.usage.input_tokens": n_tokens,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "http.request.method": "POST",
        "http.route": path,
    }
    assert {metric: count for metric, (count, _) in collector.metrics.items()} == {
        ("gen_ai.server.request.duration", operation, None): 1
    }


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_table_that_ends_early(
    connect: Connect, collector: Collector, telemetry: "OtlpTelemetry", leaves: bool
) -> None:
    gate = Gate(made := FakeBackend())
    client = await connect(made, observe=telemetry.observe)
    body = {"contexts": ["ab"] * 9, "continuations": ["c"]}
    async with client.post("/v1/score", json=body) as response:
        await until(lambda: gate.holds)
        if leaves:
            response.close()
            await until(lambda: not client.app[TABLES])
        else:
            assert (await client.delete(f"/v1/score/{response.headers['X-Request-Id']}")).status == 204
        gate.open()
        if not leaves:
            await response.read()
    await telemetry.close()
    (span,) = collector.spans
    assert (span.name, span.status, span.attributes["error.type"]) == ("score fake", 2, "cancelled")


async def test_an_error_after_the_first_space(
    connect: Connect, collector: Collector, telemetry: "OtlpTelemetry", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "FIRST_SPACE_SECONDS", 0)
    go_on = threading.Event()

    def on_embed() -> None:
        assert go_on.wait(10)
        raise BackendError("the decode failed")

    client = await connect(FakeBackend(embedder=FakeEmbedder(on_embed=on_embed)), observe=telemetry.observe)
    response = await client.post("/v1/embeddings", json={"input": "a"})
    assert response.status == 200
    go_on.set()
    await response.read()
    await telemetry.close()
    (span,) = collector.spans
    assert (span.status, span.attributes["error.type"]) == (2, "backend_error")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/score"])
async def test_a_client_that_leaves_while_it_sends(
    connect: Connect, collector: Collector, telemetry: "OtlpTelemetry", path: str
) -> None:
    client = await connect(FakeBackend(embedder=FakeEmbedder()), observe=telemetry.observe)
    _reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{{".encode())
    await until(lambda: len(handlers()) == 1)
    (handler,) = handlers()
    writer.close()
    await until(handler.done)
    await telemetry.close()
    (span,) = collector.spans
    assert (span.status, span.attributes["error.type"]) == (2, "cancelled")


def handlers() -> list[asyncio.Task[Any]]:
    """The tasks that answer requests."""
    return [each for each in asyncio.all_tasks() if getattr(each.get_coro(), "__name__", "") == "_handle_request"]


REFUSED = [
    ("/v1/completions", {"prompt": "secret", "n": 99}, 400, "text_completion", "invalid_value"),
    ("/v1/chat/completions", {"messages": "secret"}, 400, "chat", "invalid_value"),
    ("/v1/messages", {"model": "secret"}, 400, "chat", "invalid_value"),
    ("/completion", {"prompt": "secret" * 1000}, 400, "text_completion", "context_length_exceeded"),
    ("/api/generate", b"secret", 400, "text_completion", "invalid_json"),
    ("/api/v1/generate", b"x" * (5 << 20), 413, "text_completion", "payload_too_large"),
    ("/v1/explore", {"prompt": 1}, 400, "explore", "invalid_value"),
    ("/v1/embeddings", {"input": "secret"}, 501, "embeddings", "not_supported"),
    ("/v1/rerank", {"query": "secret"}, 501, "rerank", "not_supported"),
    ("/v1/score", {"contexts": "secret"}, 400, "score", "invalid_value"),
]


@pytest.mark.parametrize(("path", "body", "status", "operation", "code"), REFUSED, ids=lambda value: str(value)[:20])
async def test_a_refused_request_has_a_span(
    connect: Connect,
    collector: Collector,
    telemetry: "OtlpTelemetry",
    path: str,
    body: Any,
    status: int,
    operation: str,
    code: str,
) -> None:
    client = await connect(backend(), observe=telemetry.observe)
    data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
    assert (await client.post(path, data=data)).status == status
    await telemetry.close()
    (span,) = collector.spans
    assert (span.name, span.status, bool(span.message)) == (f"{operation} fake", 2, status >= 500)
    assert span.attributes == PROVIDED | {
        "gen_ai.operation.name": operation,
        "http.request.method": "POST",
        "http.route": path,
        "http.response.status_code": status,
        "error.type": code,
    }
    assert [*collector.metrics] == [("gen_ai.server.request.duration", operation, code)]
    assert b"secret" not in collector.sent


async def test_an_aborted_request_has_a_span(
    connect: Connect, collector: Collector, telemetry: "OtlpTelemetry"
) -> None:
    made = backend(b"x" * 99)
    gate = Gate(made)
    client = await connect(made, observe=telemetry.observe)
    async with client.post("/v1/completions", json={"prompt": "secret>", "n": 2, "seed": 0}) as response:
        gate.step(3)
        await until(lambda: gate.holds)
        assert (await client.delete(f"/v1/completions/{response.headers['X-Request-Id']}")).status == 204
        gate.open()
        await response.read()
    await telemetry.close()
    (span,) = collector.spans
    assert (span.status, span.attributes["error.type"]) == (2, "cancelled")
    assert span.attributes["gen_ai.response.finish_reasons"] == ["abort", "abort"]
    assert [each["finish_reason"] for each in span.choices] == ["abort", "abort"]
    assert 0 < span.attributes["gen_ai.usage.output_tokens"] < 99
    assert [*collector.metrics] == [("gen_ai.server.request.duration", "text_completion", "cancelled")]


async def test_one_aborted_alternative_is_no_error(
    connect: Connect, collector: Collector, telemetry: "OtlpTelemetry"
) -> None:
    made = backend(b"x" * 99)
    gate = Gate(made)
    client = await connect(made, observe=telemetry.observe)
    async with client.post("/v1/completions", json={"prompt": "p>", "n": 2, "max_tokens": 9}) as response:
        gate.step(3)
        await until(lambda: gate.holds)
        request = f"/v1/completions/{response.headers['X-Request-Id']}"
        assert (await client.delete(f"{request}/choices/0")).status == 204
        gate.open()
        await response.read()
    await telemetry.close()
    (span,) = collector.spans
    assert (span.status, span.attributes.get("error.type")) == (0, None)
    assert span.attributes["gen_ai.response.finish_reasons"] == ["abort", "length"]
    assert collector.metrics["gen_ai.server.time_per_output_token", "text_completion", None][0] == 1


@pytest.mark.parametrize("fields", [{"stream": False}, {"stream": True}])
async def test_a_client_that_leaves_ends_the_span(
    connect: Connect, collector: Collector, telemetry: "OtlpTelemetry", fields: dict[str, Any]
) -> None:
    made = backend(b"x" * 99)
    gate = Gate(made)
    client = await connect(made, observe=telemetry.observe)
    engine = client.app[ENGINE]
    sending = asyncio.create_task(client.post("/v1/completions", json={"prompt": "p>"} | fields))
    await until(lambda: gate.holds)
    sending.cancel()
    await asyncio.wait({sending})
    if not sending.cancelled():
        sending.result().close()
    await until(lambda: not engine.requests)
    gate.open()
    await engine._registry.empty()
    await telemetry.close()
    (span,) = collector.spans
    assert (span.status, span.attributes["error.type"]) == (2, "cancelled")


async def test_a_request_that_waits_too_long_has_one_span(
    connect: Connect, collector: Collector, telemetry: "OtlpTelemetry"
) -> None:
    clock, gate = Clock(), Gate(made := backend(b"x" * 99))
    client = await connect(made, observe=telemetry.observe, queue_timeout=5, max_queue=1)
    engine = client.app[ENGINE]
    body = {"prompt": "p>", "n": 8, "max_tokens": 3, "stream": False}
    sending = [asyncio.create_task(client.post("/v1/completions", json=body))]
    await until(lambda: gate.holds and engine.health.running == 1)
    sending.append(asyncio.create_task(client.post("/v1/completions", json=body)))
    await until(lambda: engine.health.waiting == 1)
    assert (await client.post("/v1/completions", json=body)).status == 429
    await clock.until(lambda: [bool(each.refusal) for each in engine.requests] == [False, True], by=2)
    gate.open()
    assert [(await each).status for each in sending] == [200, 503]
    await telemetry.close()
    assert sorted(span.attributes.get("error.type", "") for span in collector.spans) == ["", "queue_full", "timeout"]
    durations = [count for (name, *_), (count, _) in collector.metrics.items() if name.endswith("duration")]
    assert durations == [1, 1, 1]


async def test_an_engine_that_fails(connect: Connect, collector: Collector, telemetry: "OtlpTelemetry") -> None:
    def fails(_params: SamplingParams, _tokens: tuple[int, ...]) -> int:
        raise BackendError("the decode failed")

    client = await connect(FakeBackend(script=fails), observe=telemetry.observe)
    await (await client.post("/v1/completions", json={"prompt": "p>", "n": 1})).read()
    await telemetry.close()
    (span,) = collector.spans
    assert (span.status, span.attributes["error.type"]) == (2, "backend_error")
    assert span.attributes["gen_ai.response.finish_reasons"] == ["error"]


async def test_an_explored_tree_and_a_detached_request_have_spans(
    connect: Connect, collector: Collector, telemetry: "OtlpTelemetry"
) -> None:
    client = await connect(backend(), observe=telemetry.observe)
    body = {"prompt": "p>", "depth": 2, "top_k": 2}
    assert (await client.post("/v1/explore", json=body)).status == 200
    response = await client.post("/v1/responses", json={"input": "hi", "background": True, "store": True})
    assert (await response.json())["status"] in ("queued", "in_progress")
    await client.app[ENGINE]._registry.empty()
    await telemetry.close()
    explored, detached = sorted(collector.spans, key=lambda span: span.begin)
    assert (explored.name, explored.status) == ("explore fake", 0)
    assert (detached.name, detached.status) == ("chat fake", 0)
    assert detached.attributes["gen_ai.response.finish_reasons"] == ["stop"]


async def test_only_what_the_client_samples_is_traced(
    connect: Connect, collector: Collector, telemetry: "OtlpTelemetry"
) -> None:
    client = await connect(backend(), observe=telemetry.observe)
    for flags in ("00", "01", "no traceparent"):
        headers = {"traceparent": f"00-{TRACE}-{PARENT}-{flags}"}
        await (await client.post("/v1/completions", json={"prompt": "p>"}, headers=headers)).read()
    await telemetry.close()
    assert [span.trace == TRACE for span in collector.spans] == [True, False]
    assert collector.metrics["gen_ai.server.request.duration", "text_completion", None][0] == 3


async def test_the_standard_variables(connect: Connect, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    from srb.server.run.otlp import OtlpTelemetry

    monkeypatch.setenv("OTEL_SERVICE_NAME", "stories")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    telemetry = OtlpTelemetry(f"{collector.url}/v1/traces")  # as vLLM's option wants it
    client = await connect(backend(), observe=telemetry.observe)
    await (await client.post("/v1/completions", json={"prompt": "p>"})).read()
    await telemetry.close()
    assert (len(collector.spans), collector.metrics) == (1, {})
    assert collector.resource["service.name"] == "stories"
    assert collector.resource["deployment.environment.name"] == "test"


async def test_a_collector_that_does_not_answer_delays_nothing(
    connect: Connect, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from srb.server.run import otlp

    monkeypatch.setattr(otlp, "CLOSE_SECONDS", 0.01)
    telemetry = otlp.OtlpTelemetry(f"http://127.0.0.1:{unused_tcp_port}")
    client = await connect(backend(), observe=telemetry.observe)
    assert (await client.post("/v1/completions", json={"prompt": "p>", "stream": False})).status == 200
    await telemetry.close()
    assert "the last spans and metrics are lost" in caplog.messages[-1]


@pytest.mark.llama  # `serve` reads the sampling defaults in the model file
async def test_the_server_sends_what_is_left_when_it_stops(
    collector: Collector, serve_engine: Prepare, unused_tcp_port: int
) -> None:
    engine = AsyncEngine(lambda _progress: backend())
    stop = serve_engine(lambda *_: engine)
    serving = asyncio.create_task(serve.serve(Settings(port=unused_tcp_port, otlp_endpoint=collector.url)))
    await until(lambda: bool(engine.urls))
    async with ClientSession(engine.urls[0]) as session:
        assert (await session.post("/v1/completions", json={"prompt": "p>", "stream": False})).status == 200
    assert collector.spans == []
    stop.set_result(None)
    await serving
    assert [span.name for span in collector.spans] == ["text_completion fake"]
    assert len(collector.metrics) == 3


def test_the_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "srb.server.run.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.metric_exporter", None)
    with pytest.raises(SettingsError, match=r"--otlp-endpoint needs OpenTelemetry .*pip install .*llama-srb.otel"):
        serve._make_telemetry(Settings(otlp_endpoint="http://localhost:4318"))


@pytest.mark.parametrize("wrong", ["localhost:4318", "grpc://localhost:4317", "4318"])
def test_an_endpoint_that_is_no_http_address(wrong: str) -> None:
    with pytest.raises(SettingsError, match=r"--otlp-endpoint .*give the collector's HTTP address, such as http://"):
        serve._make_telemetry(Settings(otlp_endpoint=wrong))


def test_a_variable_that_the_sdk_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_EVENT_COUNT_LIMIT", "many")
    with pytest.raises(SettingsError, match=r"one of its variables \(OTEL_...\): OTEL_SPAN_EVENT_COUNT_LIMIT must be"):
        serve._make_telemetry(Settings(otlp_endpoint="http://localhost:4318"))


def test_without_the_option_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "srb.server.run.otlp", raising=False)
    assert serve._make_telemetry(Settings()) is None
