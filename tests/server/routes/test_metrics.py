"""GET /metrics: Prometheus' own parser reads it."""

from dataclasses import replace
from functools import partial

from fake_backend import IN_STEP, FakeBackend, Gate
from prometheus_client.parser import text_string_to_metric_families
from pytest_aiohttp.plugin import AiohttpClient
from server.conftest import Client
from waiting import until

from srb.engine.engine import Engine
from srb.server.app import create_app
from srb.server.routes.metrics import Metrics
from srb.serving.async_engine import AsyncEngine
from srb.wire.limits import Limits


async def values_of(client: Client) -> dict[str, float]:
    response = await client.get("/metrics")
    assert response.content_type == "text/plain"
    families = text_string_to_metric_families(await response.text())
    return {
        sample.name + "".join(sample.labels.values()): sample.value for family in families for sample in family.samples
    }


async def test_metrics(aiohttp_client: AiohttpClient) -> None:
    metrics = Metrics()
    make = partial(Engine, cache_bytes=10_000, observe=metrics.observe)
    async with AsyncEngine(lambda _progress: FakeBackend(), make=make) as engine:
        client: Client = await aiohttp_client(create_app(engine, Limits("fake", n=4, max_n=8), metrics))
        body = {"prompt": "p" * 20, "n": 3, "max_tokens": 4, "ignore_eos": True, "stream": False}
        for _ in range(2):
            assert (await client.post("/v1/completions", json=body)).status == 200
        values = await values_of(client)
    expected = {
        "llamacpp:prompt_tokens_total": 20,
        "srb:prompt_tokens_asked_total": 40,
        "srb:prompt_tokens_cached_total": 20,
        "llamacpp:tokens_predicted_total": 24,
        "srb:forks_total": 4,
        "llamacpp:n_decode_total": 7,
        "llamacpp:requests_processing": 0,
        "llamacpp:requests_deferred": 0,
        "srb:time_to_first_token_seconds_count": 2,
        "srb:time_between_tokens_seconds_count": 18,
        "srb:step_decode_seconds_count": 7,
        "srb:step_overhead_seconds_count": 7,
    }
    assert {name: values[name] for name in expected} == expected
    assert values["srb:cells_used"] + values["srb:cells_free"] == 256
    assert values["llamacpp:predicted_tokens_seconds"] > 0


async def test_guessed_tokens_are_counted(aiohttp_client: AiohttpClient) -> None:
    backend = FakeBackend(costs=replace(IN_STEP, step=100.0), script=lambda _params, _tokens: ord("p"))
    async with AsyncEngine(lambda _progress: backend) as engine:
        client: Client = await aiohttp_client(create_app(engine, Limits("fake", n=1, max_n=8)))
        body = {"prompt": "p" * 20, "max_tokens": 20, "ignore_eos": True, "stream": False}
        answer = await (await client.post("/completion", json=body)).json()
        values = await values_of(client)
        health = await (await client.get("/health")).json()
    guessed, sampled = answer["timings"]["draft_n"], answer["timings"]["draft_n_accepted"]
    assert guessed >= sampled > 5
    assert values["llamacpp:spec_decode_num_draft_tokens_total"] == health["n_ahead"] == guessed
    assert values["llamacpp:spec_decode_num_accepted_tokens_total"] == health["n_met"] == sampled
    assert values["llamacpp:n_busy_slots_per_decode"] <= 1, "an alternative counts once"


async def test_a_cancelled_request_is_counted_by_its_reason(aiohttp_client: AiohttpClient) -> None:
    gate = Gate(backend := FakeBackend())
    async with AsyncEngine(lambda _progress: backend) as engine:
        client: Client = await aiohttp_client(create_app(engine, Limits("fake", n=4, max_n=8)))
        response = await client.post("/v1/completions", json={"prompt": "p"})
        await client.delete(f"/v1/completions/{response.headers['X-Request-Id']}")
        gate.open()
        await response.read()
        assert (await values_of(client))["srb:aborts_totalcancelled"] == 1


async def test_preemptions_are_counted(aiohttp_client: AiohttpClient) -> None:
    gate = Gate(backend := FakeBackend(n_cells=64))
    make = partial(Engine, cache_bytes=10_000)
    async with AsyncEngine(lambda _progress: backend, make=make) as engine:
        client: Client = await aiohttp_client(create_app(engine, Limits("fake", n=4, max_n=8)))
        body = {"prompt": "p" * 20, "n": 4, "max_tokens": 30, "ignore_eos": True}
        response = await client.post("/v1/completions", json=body)
        await until(lambda: gate.holds)
        while not (health := await (await client.get("/health")).json())["n_preempted"]:
            gate.step()
            await until(lambda: gate.holds)
        values = await values_of(client)
        assert values["srb_preempted"] == health["n_preempted"] > 0
        gate.open()
        await response.read()
        values = await values_of(client)
        health = await (await client.get("/health")).json()
        props = await (await client.get("/props")).json()
    names = ("preemptions", "layout_changes", "swapped_bytes", "swap_seconds")
    assert health["n_ctx"] == 64
    assert health["preemptions"] > 0
    assert health["swapped_bytes"] > 0
    assert {name: values[f"srb_{name}_total"] for name in names} == {name: health[name] for name in names}
    assert (values["srb_kv_layoutunified"], values["srb_kv_layoutstreams"], values["srb_preempted"]) == (1, 0, 0)
    assert props["kv_cache"] == {name: health[name] for name in ("layout", "n_preempted", *names)}


async def test_metrics_while_the_model_loads(aiohttp_client: AiohttpClient) -> None:
    client: Client = await aiohttp_client(
        create_app(AsyncEngine(lambda _progress: FakeBackend()), Limits("f", n=1, max_n=1))
    )
    assert (await values_of(client))["llamacpp:requests_processing"] == 0
